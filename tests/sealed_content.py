"""A run for tests of sealing, and functions that return its contents and its files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from steptape import open_run
from steptape.store.events import INTEGER_IDS, Event, SampleLosses

EVENTS = [
    Event("step_end" if step % 3 else "evaluate", step=step, metrics={f"m{step // 8}": step / 7, "loss": float(step)})
    for step in range(24)
]
SAMPLES = {
    index: SampleLosses(struct.pack("<2f", index, -index), struct.pack("<2q", index, 2**40), INTEGER_IDS)
    for index in range(3, 24, 2)
}


def names(folder: Path) -> list[str]:
    """Return the file names in a run's folder, except its JSON files."""
    return sorted(path.name for path in folder.iterdir() if path.suffix not in (".json", ".jsonl"))


def content(folder: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return every event and every row of samples, as readers see them."""
    run = open_run(folder)
    # The order of metrics within an event does not count.
    events = (event._replace(metrics=dict(sorted(event.metrics.items()))) for event in run.events(rank=None))
    return [repr(event) for event in events], run.samples().to_pylist()
