"""Reads third-party logs of real trainings as plain rows: step, training loss, evaluation loss, seconds.

They lie outside the repository: in the folder that ``STEPTAPE_REAL_RUNS`` names, or in ``shared/runs`` next to the
repository.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(os.environ.get("STEPTAPE_REAL_RUNS", Path(__file__).resolve().parents[2] / "shared" / "runs"))


class Row(NamedTuple):
    """One row of a log; None for a missing value."""

    step: int
    loss: float | None
    eval_loss: float | None
    seconds: float | None


def logs_with_evaluations() -> dict[str, list[Row]]:
    """Return every log with at least three evaluations, by name; empty if the folder does not exist."""
    found = {}
    for path in sorted(FOLDER.glob("hf_trainer_state/*/trainer_state.json")):
        found[path.parent.name] = list(_trainer_state(path))
    for path in sorted(FOLDER.glob("algoperf_csv/*/measurements.csv")):
        columns = ("global_step", "loss", "validation/loss", "total_duration")
        found[path.parent.name] = list(_table(path, *columns))
    for path in sorted(FOLDER.glob("lightning_csv/*/metrics.csv")):
        found[path.parent.name] = list(_table(path, "step", "train_loss", "val_loss", ""))
    return {name: rows for name, rows in found.items() if sum(row.eval_loss is not None for row in rows) >= 3}


def _trainer_state(path: Path) -> Iterator[Row]:
    for entry in json.loads(path.read_text())["log_history"]:
        evaluated = entry.get("eval_loss", entry.get("eval_g0_loss"))
        if "loss" in entry or evaluated is not None:
            yield Row(int(entry["step"]), entry.get("loss"), evaluated, None)


def _table(path: Path, step: str, loss: str, eval_loss: str, seconds: str) -> Iterator[Row]:
    with open(path, newline="") as file:
        for entry in csv.DictReader(file):
            numbers = [float(entry[name]) if entry.get(name) else None for name in (loss, eval_loss, seconds)]
            if numbers[0] is not None or numbers[1] is not None:
                yield Row(int(float(entry[step])), *numbers)
