"""The log of a training process that is killed holds every step that returned."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from drawing import scaled, seed

from steptape import TelemetryError, open_store, verify
from steptape.store.parquet.sealing import seal

#: Records as fast as possible and writes one byte to stdout for each step that returned.
LOOP = """
import os, sys
from steptape import Recorder
rec = Recorder(sys.argv[1], rules=sys.argv[2])
for step in range(1, 1_000_000):
    rec.step(loss=float(step % 7), samples=[1.0, 2.0], sample_ids=[step, step + 1])
    os.write(1, b".")
"""

POLICY = """
controllers:
  - name: sixes
    triggers: [on_step_end]
    rule: loss == 6 and mean(loss, 7) > 2
    operations: [hfcontrols.should_save]
"""

KILLS = 6

#: Kills of loops of every variety, each followed by several of its sealers. ``benchmarks/kills.py`` alone makes 1,000.
RANDOM_KILLS = 12


@pytest.mark.parametrize("trial", [pytest.param(0, marks=pytest.mark.only_one), *range(1, KILLS)])
def test_every_step_that_returned_before_a_sigkill_is_readable(tmp_path: Path, trial: int) -> None:
    """Steps, sample losses and live decisions are complete and occur once, before and after sealing."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    store = tmp_path / "runs"
    process = subprocess.Popen([sys.executable, "-c", LOOP, str(store), str(policy)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    acknowledged = len(os.read(process.stdout.fileno(), 1))
    time.sleep(random.Random(trial).uniform(0.0, 0.2))
    process.send_signal(signal.SIGKILL)
    acknowledged += len(process.stdout.read())
    process.wait()
    process.stdout.close()

    (run,) = list(open_store(store))
    for read in ("dead", "sealed"):
        events = list(run.events())
        steps = [event for event in events if event.kind == "step_end"]
        decided = [event.step for event in events if event.kind == "decision"]

        assert [event.seq for event in events] == list(range(len(events))), read
        assert [event.step for event in steps] == list(range(1, len(steps) + 1)), read
        assert acknowledged <= len(steps) <= acknowledged + 1, read
        assert decided[: (acknowledged + 1) // 7] == list(range(6, acknowledged + 1, 7)), read
        assert run.samples().num_rows == 2 * len(steps), read
        assert run.status == "crashed", read
        assert verify(run).identical, read
        seal(run.folder)
    assert not list(run.folder.glob("journal-*"))


def test_nothing_is_lost_or_doubled_wherever_recorders_and_sealers_are_killed() -> None:
    """The moments are random; a failure prints its seed."""
    script = Path(__file__).parents[1] / "benchmarks" / "kills.py"
    kills = scaled(RANDOM_KILLS)
    command = [sys.executable, str(script), "--kills", str(kills), "--workers", "2", "--seed", str(seed())]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    tally = json.loads(result.stdout)
    assert tally["kills"] == kills
    assert tally["acked"] > 0
    assert tally["sealer_kills"] > 0


def test_a_policy_that_was_changed_after_the_run_is_not_verified_by(tmp_path: Path) -> None:
    """Rules stored with a run, even a dead one, must have the recorded digest."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    store = tmp_path / "runs"
    script = LOOP.replace("1_000_000", "30").replace('os.write(1, b".")', "pass") + "os.kill(os.getpid(), 9)\n"
    subprocess.run([sys.executable, "-c", script, str(store), str(policy)], check=False)
    (run,) = list(open_store(store))
    assert verify(run).identical

    run_json = run.folder / "run.json"
    run_json.write_text(run_json.read_text().replace("loss == 6", "loss == 5"))

    with pytest.raises(TelemetryError, match="digest"):
        verify(run)
