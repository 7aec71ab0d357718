"""Writes logs into a folder, imports it and reads the runs back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steptape import open_run
from steptape.importers.discovery import all_readers, find_sources, reader_of
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions

#: Kind, step and values of each event of each run, by name; and the problems.
Read = tuple[dict[str, list[tuple[str, int, dict[str, float]]]], list[str]]


def imported(tmp_path: Path, files: dict[str, Any], kind: str = "", **options: Any) -> Read:
    """Write files below ``logs``, import that folder into ``store`` and return the runs.

    Args:
        tmp_path: The folder of both.
        files: Contents by name.
        kind: The reader; every one by default.
        options: As for ``ReadOptions``.
    """
    for name, content in files.items():
        path = tmp_path / "logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = find_sources([tmp_path / "logs"], [reader_of(kind)] if kind else all_readers())
    outcomes = list(import_sources(tmp_path / "store", found.sources, ReadOptions(**options)))
    runs = {}
    for outcome in outcomes:
        if outcome.run_id:
            events = open_run(tmp_path / "store" / outcome.run_id).events(attempts="all")
            runs[outcome.name] = [(event.kind, event.step, dict(event.metrics)) for event in events]
    return runs, [outcome.problem for outcome in outcomes if outcome.problem]


def lines(*rows: dict[str, Any]) -> str:
    """Return objects as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)
