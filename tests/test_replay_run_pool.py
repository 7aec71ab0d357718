"""Mapping over many runs, in one process or a pool, keeps order, progress and failures, with bounded memory."""

from __future__ import annotations

import math
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from measuring import not_measured
from waiting import PATIENCE_S, until

from steptape import Policy, TelemetryError, backtest, open_store
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.reports.diff import diff_policies
from steptape.replay.run_pool import Progress, RunPool, can_share_work, usable_processes, worthwhile_workers
from steptape.rules.policy_file.metrics import Metric, register_metric
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

RUNS = 5


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at the first loss above 2."""
    return parse_policy("""
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
""")


@pytest.fixture
def store(store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]) -> Path:
    """Some runs, one of them empty."""
    for number in range(RUNS - 1):
        store_record(store_steps([1.0] * number + [3.0, 1.0]), run_id=f"run-{number}", sealed=True)
    return store_record([Event("train_begin")], run_id="run-empty", sealed=True).parent


def test_answers_come_in_order_and_are_counted() -> None:
    """Any number of processes gives the same order and count."""
    seen: list[Progress] = []
    with RunPool(2, seen.append) as readers:
        readers.expect(20)
        answers = [*readers.mapped(operator.neg, range(10)), *readers.mapped(operator.neg, range(10))]

    assert answers == [-number for number in range(10)] * 2
    assert seen == [Progress(done, 20) for done in range(1, 21)]


@not_measured
def test_where_processes_cannot_share_work_one_does_it_all() -> None:
    """A sandbox may have no writable /dev/shm; a process that may write no file cannot make a semaphore either."""
    program = """
import operator, resource
from steptape.replay.run_pool import RunPool, can_share_work
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with RunPool(2) as readers:
    print(can_share_work(), list(readers.mapped(operator.neg, range(3))))
"""
    command = [sys.executable, "-B", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    assert (done.stdout, done.stderr) == ("False [0, -1, -2]\n", "")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failure_is_told_with_what_it_came_of(processes: int) -> None:
    """The remaining items are not processed."""
    with pytest.raises(ValueError, match="math domain") as raised, RunPool(processes) as readers:
        list(readers.mapped(math.sqrt, [1, 4, -3, 9]))

    assert raised.value.__notes__ == ["Raised for -3"]


@pytest.mark.skipif(not can_share_work(), reason="processes cannot share work here: there is no /dev/shm")
@pytest.mark.parametrize("seconds", [[1, -1, 600, 600], [0.3, 0.3, -1]], ids=["while they work", "while they wait"])
def test_a_failure_ends_all_processes(seconds: list[float]) -> None:
    """Those that wait for work hold a lock by turns: to end one of them alone leaves the other waiting forever."""
    before = set(multiprocessing.active_children())
    with pytest.raises(ValueError, match="non-negative"), RunPool(2) as readers:
        list(readers.mapped(time.sleep, seconds))

    until(lambda: set(multiprocessing.active_children()) <= before)


@pytest.mark.skipif(not can_share_work(), reason="processes cannot share work here: there is no /dev/shm")
def test_a_process_that_is_lost_is_told_of() -> None:
    """The caller does not wait for it."""
    with pytest.raises(TelemetryError, match="a process that reads runs ended unexpectedly"), RunPool(2) as readers:
        list(readers.mapped(signal.raise_signal, [signal.SIGKILL] * 1000))


def test_no_more_is_handed_out_than_is_soon_wanted() -> None:
    """A store of any size is processed a few runs at a time."""
    asked: list[int] = []

    class Watched(list[int]):
        """A list that records the items taken."""

        def __getitem__(self, place):  # type: ignore[no-untyped-def]
            found = super().__getitem__(place)
            asked.extend(found)
            return found

    with RunPool(2) as readers:
        answers = readers.mapped(operator.neg, Watched(range(100)))
        next(answers)
        handed_out = len(asked)
        rest = list(answers)

    assert handed_out < 20
    assert len(rest) == 99


@pytest.mark.parametrize(
    ("done", "first_s", "spent_s", "rest", "workers"),
    [
        (1, 0.3, 0.3, 1_000, 0),
        (98, 0.3, 0.9, 0, 0),
        (1, 1.2, 1.2, 97, 0),
        (200, 0.3, 1.1, 800, 1),
        (200, 0.3, 1.1, 9_800, 13),
        (2, 2.0, 4.0, 12, 8),
        (1, 30.0, 30.0, 3, 30),
    ],
    ids=[
        "too early",
        "a small store",
        "modules loaded",
        "not worth two",
        "a large store",
        "slow runs",
        "few slow runs",
    ],
)
def test_workers_are_worth_their_start_by_what_the_first_runs_took(
    done: int, first_s: float, spent_s: float, rest: int, workers: int
) -> None:
    """Each worker must have twice as much to do as its imports take. The first run loads modules, too."""
    assert worthwhile_workers(done, first_s, spent_s, rest) == workers


def test_a_few_quick_runs_start_no_process() -> None:
    """Whatever the number of cores: the imports of a worker take as long as some hundred runs."""
    before = set(multiprocessing.active_children())
    with RunPool(None) as readers:
        answers = list(readers.mapped(operator.neg, range(1_000)))
        started = set(multiprocessing.active_children()) - before

    assert answers == [-number for number in range(1_000)]
    assert not started


#: A program whose runs take long in its own process, and no time in a worker. It prints where each was read.
SLOW_HERE = """
import os, time
from steptape.replay.run_pool import RunPool

OURS = os.getpid() if __name__ == "__main__" else 0

def read(number):
    until_s = time.thread_time() + 0.4
    while OURS and time.thread_time() < until_s:
        pass
    return number, bool(OURS)

if __name__ == "__main__":
    with RunPool(None) as readers:
        found = [*readers.mapped(read, range(60)), *readers.mapped(read, range(2))]
    print([number for number, _ in found] == [*range(60), 0, 1], [is_ours for _, is_ours in found].index(False))
    print([is_ours for _, is_ours in found[-2:]])
"""


@pytest.mark.skipif(not can_share_work() or os.cpu_count() == 1, reason="one process must do it all here")
def test_long_work_gets_workers_once_the_first_runs_show_it(tmp_path: Path) -> None:
    """Results keep their order, and later passes share the workers."""
    (tmp_path / "program.py").write_text(SLOW_HERE)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )

    assert done.stdout == "True 3\n[False, False]\n"


def test_rules_with_classes_that_a_script_registered_stay_in_its_process() -> None:
    """A worker knows installed code alone."""

    @register_metric
    class StepsOfAPool(Metric):
        """Count steps."""

        kinds = reads = frozenset({"step_end"})

        def compute(self, event: Event) -> int:
            return event.step

    plain = parse_policy("controllers: []")
    registered = parse_policy("controller_metrics: [{name: steps, class: StepsOfAPool}]\ncontrollers: []")

    assert [usable_processes([plain], asked) for asked in (None, 4)] == [None, 4]
    assert [usable_processes([plain, registered], asked) for asked in (None, 4)] == [1, 1]


@pytest.mark.parametrize("processes", [1, 2, None])
def test_all_passes_of_a_backtest_are_one_progress(policy: Policy, store: Path, processes: int | None) -> None:
    """The passes are policy, baselines and coverage; excluded runs are read only once, and the total reflects it."""
    seen: list[Progress] = []
    report = backtest(
        policy,
        open_store(store),
        baselines=list(BASELINES.values()),
        with_coverage=True,
        processes=processes,
        on_progress=seen.append,
    )

    assert len(report.excluded) == 1
    assert [come.done for come in seen] == list(range(1, 3 * RUNS - 1))
    assert {come.total for come in seen} == {3 * RUNS, 3 * RUNS - 2}
    assert seen[-1].done == seen[-1].total


def test_a_comparison_in_processes_is_the_one_without(policy: Policy, store: Path) -> None:
    """Progress counts each run for each policy."""
    seen: list[Progress] = []
    never = parse_policy("controllers: []")
    here = diff_policies(policy, never, open_store(store))
    there = diff_policies(policy, never, open_store(store), processes=2, on_progress=seen.append)

    assert there == here
    assert len(there.changed) == RUNS - 1
    assert seen == [Progress(done, 2 * RUNS) for done in range(1, 2 * RUNS + 1)]


def test_an_interrupt_ends_everything_at_once() -> None:
    """It prints one message, and no process remains."""
    program = """
import os, sys, time
from steptape.replay.run_pool import RunPool

def slow(number):
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(600)

if __name__ == "__main__":
    with RunPool(2) as readers:
        list(readers.mapped(slow, range(50)))
"""
    script = Path(os.environ["STEPTAPE_CACHE"]) / "interrupted.py"
    script.write_text(program)
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    children = [int(process.stdout.readline()) for _ in range(2)]
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


#: A program whose pool of two reads forever, each worker in C code that holds the interpreter's lock.
STUCK_POOL = """
import re, sys
from steptape.replay.run_pool import RunPool

def stuck(text):
    print(text, flush=True)
    re.match("(a+)+$", "a" * 50 + "b")

if __name__ == "__main__":
    with RunPool(2) as readers:
        list(readers.mapped(stuck, ["begun"] * 9))
"""


def test_the_workers_of_a_killed_program_end_with_it(tmp_path: Path) -> None:
    """Their output ends when the last of them has ended."""
    (tmp_path / "program.py").write_text(STUCK_POOL)
    with subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        begun = [program.stdout.readline() for _ in range(2)]
        program.kill()
        rest, _ = program.communicate(timeout=PATIENCE_S)

    assert (begun, rest) == (["begun\n"] * 2, "")
