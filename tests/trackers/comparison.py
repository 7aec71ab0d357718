"""Imports the output of real trackers and compares every value, bit for bit, with the tools' own readings."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steptape import open_run
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import Outcome, State, import_sources
from steptape.importers.source import ReadOptions

Series = dict[str, list[list[object]]]

#: Kinds of readers whose source may be Hugging Face's Trainer.
_OF_TRAINER: Final = ("trainer_state", "text")
#: The problem of a file that was cut short. What precedes the cut is compared.
_CUT: Final = "the file ends inside a record"


def imported(outcomes: Sequence[Outcome], store: Path) -> Series:
    """Return step and bits of every value of a source's runs; a study's trials are series of one metric."""
    series: Series = {}
    for outcome in outcomes:
        run = open_run(store / outcome.run_id)
        training = ""
        for event in run.events(attempts="all"):
            if event.kind == "step_end":
                training = repr(event.metrics)
            elif event.kind == "log" and outcome.kind in _OF_TRAINER and repr(event.metrics) == training:
                continue  # A Trainer's training row is also a log.
            for metric, value in event.metrics.items():
                name = run.info.name.rpartition("/")[2] if outcome.kind == "optuna" else metric
                if outcome.kind != "optuna" or metric == "intermediate_value":
                    series.setdefault(name, []).append([event.step, value.hex()])
    return series


def differences(expected: Series, found: Series) -> list[str]:
    """Return one sentence per metric that differs."""
    told = []
    for name in sorted(expected.keys() | found.keys()):
        theirs, ours = expected.get(name, []), found.get(name, [])
        if sorted(map(str, theirs)) != sorted(map(str, ours)):
            at = next((pair for pair in zip(theirs, ours, strict=False) if pair[0] != pair[1]), None)
            told.append(f"{name}: {len(theirs)} values there, {len(ours)} here; first difference: {at}")
    return told


def main(out: Path) -> int:
    """Import the expected sources, compare them and return the exit status."""
    expected: dict[str, Series] = json.loads((out / "expected.json").read_text())
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        for place, series in expected.items():
            path = out / place if not Path(place).is_absolute() else Path(place)
            outcomes = list(import_sources(store, find_sources([path], all_readers()).sources, ReadOptions()))
            told = differences(series, imported([o for o in outcomes if o.state is not State.FAILED], store))
            told += [outcome.problem for outcome in outcomes if outcome.problem and _CUT not in outcome.problem]
            values = sum(map(len, series.values()))
            print(f"{'DIFFERS' if told or not values else 'same'}: {place}: {values} values")
            for line in told:
                print(f"  {line}")
            status |= bool(told) or not values
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
