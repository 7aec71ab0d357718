"""``steptape export``: writes a run's events as JSON lines, CSV or Parquet."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from ...store.event_json import event_to_line
from ...store.parquet.formats import to_csv, to_parquet
from ...store.reading.timeline import Attempts
from ...store.run import Run
from ..lookup import run_named
from ..options import RunArgument, StoreOption
from ..output_file import output_file


class ExportFormat(StrEnum):
    """The formats that ``export`` writes."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


#: The format of a file, by its suffix; devices and pipes have none.
_SUFFIXES: Final = {
    ".csv": ExportFormat.CSV,
    ".parquet": ExportFormat.PARQUET,
    ".jsonl": ExportFormat.JSONL,
    ".ndjson": ExportFormat.JSONL,
    "": ExportFormat.JSONL,
}


def export(
    run: RunArgument,
    store: StoreOption = None,
    form: Annotated[
        ExportFormat | None,
        typer.Option("--format", help="Format; by default that of the file's suffix, jsonl without one."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file, not to stdout.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include the events that a resume rolled back.")] = False,
) -> None:
    """Write a run's events as JSON lines, CSV or Parquet.

    CSV and Parquet have one row per event, with a column for each metric, empty or null where the event lacks it.
    """
    form = form or _format_of(output)
    attempts: Attempts = "all" if every else "effective"
    if form is ExportFormat.PARQUET:
        if output is None:
            raise typer.BadParameter("Parquet is binary: name a file with --output FILE")
        with output_file(output, "wb") as binary:
            binary.write(to_parquet(run_named(run, store).table(attempts=attempts)))
        return
    with nullcontext(sys.stdout) if output is None else output_file(output) as file:
        _write_text(run_named(run, store), form, attempts, file)


def _format_of(output: Path | None) -> ExportFormat:
    suffix = output.suffix.casefold() if output else ""
    if suffix not in _SUFFIXES:
        known = ", ".join(filter(None, _SUFFIXES))
        raise typer.BadParameter(f"no format has the suffix {suffix!r} of {output}. Use {known}, or give --format")
    return _SUFFIXES[suffix]


def _write_text(run: Run, form: ExportFormat, attempts: Attempts, file: IO[str]) -> None:
    if form is ExportFormat.CSV:
        file.write(to_csv(run.table(attempts=attempts)).decode())
    else:
        file.writelines(event_to_line(event) + "\n" for event in run.events(rank=None, attempts=attempts, samples=True))
