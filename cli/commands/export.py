"""``steptape export``: writes a run's events as JSON lines, CSV or Parquet."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Final

import typer

from ...store.arrow_tables import to_csv, to_parquet
from ...store.event_json import event_to_line
from ...store.reading.snapshot import Attempts
from ...store.run import Run
from ..lookup import run_named
from ..options import ExportArguments, ExportFormat
from ..output import output_file

#: The format of a file, by its suffix; devices and pipes have none.
_SUFFIXES: Final[Mapping[str, ExportFormat]] = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    "": "jsonl",
}


def export(asked: ExportArguments) -> None:
    """Write a run's events as JSON lines, CSV or Parquet."""
    form = asked.form or _format_of(asked.output)
    attempts: Attempts = "all" if asked.every else "effective"
    if form == "parquet":
        if asked.output is None:
            raise typer.BadParameter("Parquet is binary: name a file with --output FILE")
        with output_file(asked.output, "wb") as binary:
            binary.write(to_parquet(run_named(asked.run, asked.store).table(attempts=attempts)))
        return
    with nullcontext(sys.stdout) if asked.output is None else output_file(asked.output) as file:
        _write_text(run_named(asked.run, asked.store), form, attempts, file)


def _format_of(output: Path | None) -> ExportFormat:
    suffix = output.suffix.casefold() if output else ""
    if suffix not in _SUFFIXES:
        known = ", ".join(filter(None, _SUFFIXES))
        raise typer.BadParameter(f"no format has the suffix {suffix!r} of {output}. Use {known}, or give --format")
    return _SUFFIXES[suffix]


def _write_text(run: Run, form: ExportFormat, attempts: Attempts, file: IO[str]) -> None:
    if form == "csv":
        file.write(to_csv(run.table(attempts=attempts)).decode())
    else:
        events = chain(run.info.plan_events(), run.events(rank=None, attempts=attempts, samples=True))
        file.writelines(event_to_line(event) + "\n" for event in events)
