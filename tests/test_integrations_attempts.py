"""The runs of a framework whose callbacks do not learn that a training failed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from steptape import TelemetryError, open_store
from steptape.integrations.attempts import Attempts, state_file
from steptape.recorder.advice import KERAS


class Model:
    """What is trained."""


def attempts(folder: Path, *, keep: int | None = None, **arguments: object) -> Attempts:
    """Return the attempts of a callback that records into a folder."""
    where = folder / "saved"
    return Attempts(folder / "runs", arguments, advice=KERAS, call="fit()", save_to=where, keep=keep)


def ends(folder: Path) -> list[tuple[str, str | None]]:
    """Return how the runs ended, the oldest first."""
    runs = sorted(open_store(folder / "runs"), key=lambda run: run.info.attempts[0].started_ns)
    return [(run.status, run.info.last.reason) for run in runs]


def test_a_training_that_begins_ends_the_one_of_the_same_model_that_did_not_end(tmp_path: Path) -> None:
    """Also if another callback recorded it; a training of another model continues."""
    model, other = Model(), Model()
    unfinished, alive, new = attempts(tmp_path), attempts(tmp_path), attempts(tmp_path)
    unfinished.begin(model, None, {}, {})
    alive.begin(other, None, {}, {})
    new.begin(model, None, {}, {})

    assert (unfinished.live, alive.live is None, new.live is None) == (None, False, False)
    for each in (alive, new):
        each.reach_end()
        each.end()
    assert ends(tmp_path) == [("failed", "fit() did not reach its end"), ("completed", None), ("completed", None)]


def test_a_training_that_fails_within_its_block_has_failed_though_the_block_catches_it(tmp_path: Path) -> None:
    """As one whose exception passes the end of the block."""
    own = attempts(tmp_path)
    with own.training(None, own.end), contextlib.suppress(RuntimeError):
        own.begin(Model(), None, {}, {})
        raise RuntimeError("lost")

    assert ends(tmp_path) == [("failed", "fit() did not reach its end")]


def test_the_arguments_of_the_caller_come_before_those_of_the_framework(tmp_path: Path) -> None:
    """Of the plan as of the config, whose other values are kept."""
    own = attempts(tmp_path, total_steps=7, config={"lr": 1})
    own.begin(Model(), None, {"total_steps": 9, "total_epochs": 3}, {"lr": 2, "epochs": 3})
    own.end()

    (run,) = open_store(tmp_path / "runs")
    assert (run.info.last.plan.total_steps, run.info.last.plan.total_epochs) == (7, 3)
    assert dict(run.info.config) == {"lr": 1, "epochs": 3}


def test_of_ordered_checkpoints_the_newest_are_left(tmp_path: Path) -> None:
    """The state beside a checkpoint goes with it; a file of somebody else stays."""
    own = attempts(tmp_path, keep=1)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "other").write_text("of somebody else")

    def write(path: Path) -> None:
        path.write_text("weights")
        state_file(path).write_text("{}")

    for name in ("first", "second"):
        own.save(name, write)

    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["other", "second", "second.steptape.json"]
    with pytest.raises(TelemetryError, match="keep must be a whole number from 1"):
        attempts(tmp_path, keep=0)


PROGRAM = """
import sys
from steptape.integrations.attempts import Attempts
from steptape.recorder.advice import KERAS

class Model:
    pass

model = Model()
Attempts("runs", {}, advice=KERAS, call="fit()", save_to="saved", keep=None).begin(model, None, {}, {})
try:
    raise RuntimeError("lost")
except RuntimeError:
    if sys.argv[1] == "passed on":
        raise
"""


@pytest.mark.parametrize("what", ["caught", "passed on"])
def test_a_training_that_is_open_when_the_program_ends_has_failed(tmp_path: Path, what: str) -> None:
    """With its exception, unless the program has caught it."""
    command = [sys.executable, "-c", PROGRAM, what]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=what == "caught")

    (run,) = open_store(tmp_path / "runs")
    assert run.status == "failed"
    assert (run.info.last.reason, "lost" in str(run.info.last.failure)) == (
        ("fit() did not reach its end", False) if what == "caught" else (None, True)
    )


def test_a_checkpoint_of_another_run_is_not_written_over(tmp_path: Path) -> None:
    """Two runs of one script save into one folder, and either may hold the best model."""
    kept = []
    for text in ("first", "second"):
        own = attempts(tmp_path)
        own.begin(Model(), None, {}, {})
        for _ in range(2):
            own.save("step=4.keras", partial(Path.write_text, data=text))
        kept.append(own.recorder.run_id if own.recorder else "")
        own.end()

    written = {path.name: path.read_text() for path in (tmp_path / "saved").iterdir()}
    assert written == {"step=4.keras": "first", f"step=4-{kept[1]}.keras": "second"}
