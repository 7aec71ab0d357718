"""nanoGPT's loop with seven statements: the same weights, a rule stops it, a SIGKILL loses nothing, it resumes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from steptape import open_store, verify
from steptape.store.run import Run

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "scripts" / "nanogpt.py"
PAGE = EXAMPLE.parents[2] / "docs" / "how-to" / "nanogpt.md"

#: The example's last step.
LAST = 61


def train(folder: Path, *arguments: str, script: Path = EXAMPLE) -> list[str]:
    """Run a script in a folder, and return the losses that it prints."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.splitlines()


def recorded(folder: Path) -> Run:
    """Return the only run of a folder."""
    (run,) = open_store(folder / "runs")
    return run


def steps(run: Run) -> list[int]:
    """Return the steps of a run's updates."""
    return [event.step for event in run.events() if event.kind == "step_end"]


def test_the_weights_are_those_of_the_loop_without_steptape(tmp_path: Path) -> None:
    """Bit for bit, and so are the losses. The loop without steptape is the example without its seven statements."""
    text = EXAMPLE.read_text(encoding="utf-8")
    plain = re.sub(r".*\brec\b.*\n|from steptape .*\n", "", text.replace(" or control.should_stop", ""))
    (tmp_path / "plain.py").write_text(plain)

    losses = train(tmp_path / "with")

    assert train(tmp_path / "without", script=tmp_path / "plain.py") == losses
    weights = [torch.load(tmp_path / name / "ckpt.pt")["model"] for name in ("with", "without")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    run = recorded(tmp_path / "with")
    assert (steps(run), run.status, run.info.last.plan.total_steps) == ([*range(1, LAST + 1)], "completed", LAST)
    assert [float(line.split()[-1]) for line in losses] == [
        event.metrics["loss"] for event in run.events() if event.kind == "step_end"
    ]


def test_a_rule_stops_the_loop(tmp_path: Path) -> None:
    """At the step that decides."""
    rule = "{name: enough, triggers: [on_step_end], rule: step >= 33, operations: [hfcontrols.should_training_stop]}"
    (tmp_path / "stop.yaml").write_text(f"controllers:\n  - {rule}\n")

    train(tmp_path, "stop.yaml")

    assert (steps(recorded(tmp_path))[-1], recorded(tmp_path).status) == (33, "stopped")
    assert verify(recorded(tmp_path)).identical


def test_a_killed_loop_has_all_of_its_steps_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    """The resumed attempt counts on from step 40; each step is in the run once."""
    with subprocess.Popen([sys.executable, str(EXAMPLE)], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [next(process.stdout) for _ in range(47)]
        process.send_signal(signal.SIGKILL)
        seen += process.stdout.readlines()
    killed = recorded(tmp_path)
    assert (killed.status, process.returncode) == ("crashed", -signal.SIGKILL)
    assert steps(killed)[-1] >= len(seen) - 1 >= 46

    train(tmp_path)

    run = recorded(tmp_path)
    assert (steps(run), run.status) == ([*range(1, LAST + 1)], "completed")
    assert [(attempt.attempt, attempt.from_step) for attempt in run.info.attempts] == [(0, None), (1, 40)]


def test_the_page_counts_the_statements_that_it_shows() -> None:
    """The diff adds seven statements, and the lines around them."""
    diff = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)

    added = [line[1:].strip() for block in diff for line in block.splitlines() if line.startswith("+")]
    marks = (
        "rec = Recorder(",
        "rec.evaluate(",
        "rec.save(",
        "grad_norm =",
        "control = rec.step(",
        "if iter_num",
        "rec.close()",
    )
    assert [sum(line.startswith(mark) for line in added) for mark in marks] == [1] * 7
