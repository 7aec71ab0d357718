"""Records runs with checkpoints on disk, for the tests of retention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from steptape import Recorder


def trained(
    folder: Path,
    name: str,
    saves: Sequence[int],
    evals: Mapping[int, float] | None = None,
    *,
    losses: Mapping[int, float] | None = None,
    steps: int = 0,
    fails: bool = False,
    at: str = "checkpoints/{name}-{step}.pt",
    **options: Any,
) -> Path:
    """Record a run in ``folder/runs`` that saves at some steps; return its folder.

    Args:
        folder: The folder of the training program, to which checkpoints are relative.
        name: The run's name.
        saves: The steps of its checkpoints. Each is as many bytes long as its step says.
        evals: ``eval_loss`` by step.
        losses: Losses by step; 1.0 at all others.
        steps: The last step; by default that of the last checkpoint.
        fails: Whether an exception ends it.
        at: The path of a checkpoint.
        **options: Of the recorder.
    """
    with suppress(ZeroDivisionError), Recorder(folder / "runs", name=name, **options) as rec:
        for step in range(1, (steps or max(saves)) + 1):
            rec.step(loss=(losses or {}).get(step, 1.0))
            if step in (evals or {}):
                rec.evaluate(eval_loss=(evals or {})[step])
            if step in saves:
                saved(rec, folder, at.format(name=name, step=step), step)
        if fails:
            raise ZeroDivisionError
        rec.close(seal=True)
    return rec.folder


def saved(rec: Recorder, folder: Path, name: str, size_bytes: int) -> Path:
    """Write a checkpoint and record it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"w" * size_bytes)
    rec.save(name, size_bytes=size_bytes)
    return path
