"""Replay reads a run through one snapshot: it lists the folder once, and all facts are of one moment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptape import Policy, Recorder, backtest, open_run, verify
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

POLICY = """
params: {limit: 3.0}
controllers:
  - {name: keep, triggers: [on_step_end], rule: loss > limit, operations: [hfcontrols.should_save]}
  - {name: stop, triggers: [on_step_end], rule: loss > 100, operations: [hfcontrols.should_training_stop]}
"""

#: Opens a run and a policy, judges the run in the way given as third argument, and prints how often its files were
#: opened. The first round loads modules; the second one counts.
COUNTING = """
import collections, json, os, sys
from steptape.replay.runs.incidents import IncidentLabels
from steptape import backtest, sweep, verify
from steptape.replay.runs.objective import declared_objective
from steptape.replay.policies.findings_on_runs import compared_with
from steptape.replay.runs.replaying import replay
from steptape.replay.run_pool import RunPool
from steptape.replay.policies.coverage import coverage_of
from steptape import load_policy
from steptape import open_run

run, policy = open_run(sys.argv[1]), load_policy(sys.argv[2])
merit = declared_objective("eval_loss", None)
ways = {
    "backtest": lambda: backtest(policy, [run]),
    "labelled backtest": lambda: backtest(policy, [run], labels=IncidentLabels({run.folder.name: ()})),
    "verify": lambda: verify(run),
    "replay": lambda: replay(policy, run),
    "sweep": lambda: sweep(policy, {"limit": [3.0]}, [run], objective=merit),
    "check": lambda: compared_with(policy, [run]).findings,
    "coverage": lambda: coverage_of(policy, [run], RunPool()),
}
seen, is_counting = collections.Counter(), False

def count(event, arguments):
    if is_counting and event in ("open", "os.listdir", "os.scandir"):
        path = str(arguments[0]) if arguments[0] is not None else "."
        if path == str(run.folder) or os.path.dirname(path) == str(run.folder):
            seen[os.path.basename(path) if event == "open" else "listed"] += 1

sys.addaudithook(count)
for is_counting in (False, True):
    ways[sys.argv[3]]()
is_counting = False
print(json.dumps(seen))
"""

#: Records a short run with rules for each line of its input, and prints the folder of each when it begins.
WRITING = """
import sys, time
from steptape import Recorder
for number, _ in enumerate(sys.stdin):
    with Recorder(sys.argv[1], rules=sys.argv[2], run_id=f"run-{number}") as rec:
        print(rec.folder, flush=True)
        for step in range(1, int(sys.argv[3]) + 1):
            rec.step(loss=float(step % 5))
            if step % 50 == 0:
                time.sleep(0.001)
"""

#: At least 8 runs are read, and at most 100 if none of them ends while it is read.
RUNS = range(8, 100)

#: Enough steps that reading a run takes as long as ending it.
STEPS = 2_000


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    """The policy as a file."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture(params=["live", "finished"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, policy_file: Path) -> Iterator[Path]:
    """The folder of a run with decisions that is live or has ended."""
    with Recorder(tmp_path / "runs", rules=policy_file) as rec:
        for step in range(1, 41):
            rec.step(loss=float(step % 5))
        rec.evaluate(eval_loss=1.0)
        if request.param == "live":
            yield rec.folder
    if request.param == "finished":
        rec.close(seal=True)
        yield rec.folder


@pytest.mark.parametrize("way", ["backtest", "labelled backtest", "verify", "replay", "sweep", "check", "coverage"])
def test_a_run_is_listed_once_and_its_run_json_read_once(folder: Path, policy_file: Path, way: str) -> None:
    """Python's audit events count the system calls, in a process that does nothing else."""
    command = [sys.executable, "-c", COUNTING, str(folder), str(policy_file), way]
    result = subprocess.run(command, capture_output=True, text=True, check=True)

    seen = json.loads(result.stdout)
    # To verify a run is to compare the bytes of each file with their digests, once all is read.
    most = 2 if way == "verify" else 1
    assert seen["listed"] == 1, seen
    assert 1 <= seen["run.json"] <= most, seen
    assert max(seen.get(name, 0) for name in ("columns.json", "digests.json", "annotations.jsonl")) <= most, seen


def contradictions(result: RunResult) -> Iterator[str]:
    """Yield facts of a result that no single moment of a run of ``WRITING`` has together."""
    (place,) = result.identity.seq_ranges
    recorded = place.last + 1 - result.identity.event_count
    steps = result.recorded.steps
    if result.status not in ("running", "completed"):
        yield f"a run that never fails is {result.status}"
    if result.status == "completed" and steps != STEPS:
        yield f"it has ended after {steps} of {STEPS} steps"
    # The live rules decide at step 4, 9, ...; the newest of these decisions may not have been written yet.
    if (steps + 1) // 5 - recorded not in (0, 1):
        yield f"its last seq {place.last} leaves {recorded} decisions beside {result.identity.event_count} events"
    if result.identity.log_digest and result.status != "completed":
        yield "a log that still grows has a digest"


def looked_at(policy: Policy, run: Run) -> RunResult | None:
    """Backtest a run that may be recording; return None if it holds no step yet."""
    report = backtest(policy, [run])
    assert all(excluded.reason == "it recorded no step and no metric" for excluded in report.excluded)
    return report.results[0] if report.results else None


def test_all_facts_about_a_live_run_are_of_one_moment(tmp_path: Path, policy_file: Path) -> None:
    """This process repeatedly judges and verifies runs while another records, ends and seals them."""
    policy = parse_policy(POLICY)
    command = [sys.executable, "-c", WRITING, str(tmp_path / "runs"), str(policy_file), str(STEPS)]
    seen: list[RunResult] = []
    faults: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number in range(RUNS.stop):
            if number >= RUNS.start and {result.status for result in seen} == {"running", "completed"}:
                break
            print(file=writer.stdin, flush=True)
            run = open_run(writer.stdout.readline().strip())
            while run.status == "running" or not run.log_digest:
                result = looked_at(policy, run)
                if result is not None:
                    seen.append(result)
                    faults += contradictions(result)
                verdict = verify(run)
                if not verdict.identical:
                    faults.append(f"not identical: {verdict}")

    assert writer.returncode == 0
    assert {result.status for result in seen} == {"running", "completed"}
    assert faults == []
