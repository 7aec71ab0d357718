"""``steptape export``: writes a run's events as text."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ...store.event_json import event_to_line
from ..lookup import run_named
from ..options import RunArgument, StoreOption
from ..output_file import output_file


class ExportFormat(StrEnum):
    """The formats that ``export`` writes."""

    JSONL = "jsonl"


def export(
    run: RunArgument,
    store: StoreOption = None,
    form: Annotated[ExportFormat, typer.Option("--format", help="jsonl: one event per line.")] = ExportFormat.JSONL,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file, not to stdout.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include the events that a resume rolled back.")] = False,
) -> None:
    """Write a run's events as JSON lines, in order."""
    as_line = {ExportFormat.JSONL: event_to_line}[form]
    with nullcontext(sys.stdout) if output is None else output_file(output) as file:
        events = run_named(run, store).events(rank=None, attempts="all" if every else "effective")
        file.writelines(as_line(event) + "\n" for event in events)
