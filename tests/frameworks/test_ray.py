"""Backtests, sweeps, certificates and imports on a Ray cluster of two nodes equal those of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from object_storage import KEYS, Place
from waiting import PATIENCE_S, until

from api_serving import PATIENT, served
from steptape import Policy, Recorder, TelemetryError, backtest, open_store, sweep
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import State, import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.choosing.certifying import certify
from steptape.replay.ray_pool import RETRIES, RayPool
from steptape.replay.run_pool import Progress
from steptape.replay.runs.risk import risk_of
from steptape.rules.policy_file.policy import parse_policy
from steptape.shipping.store_push import Backoff, RunPushed, push_once, target_of
from steptape.store.events import Event
from steptape.store.run import Run

ray: Any = pytest.importorskip("ray", reason="needs Ray: pip install 'steptape[ray]'")

RUNS = 12
#: What this module imports is found on the nodes, too, and so are the credentials of the bucket.
_PATH = {"PYTHONPATH": str(Path(__file__).parents[1]), **KEYS}


class Nodes:
    """A cluster of two nodes on this machine, of one core each.

    Attributes:
        address: The address to join it by.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # A loaded machine starts a node in 40 s.
        head = {"num_cpus": 1, "include_dashboard": False, "env_vars": _PATH}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._second: Any = None
        self.add()
        self.address: str = self._cluster.address

    def add(self, **environment: str) -> None:
        """Add the second node, unless it is there."""
        if self._second is None:
            # A program that joins by a node which has just died is ended by Ray.
            self._cluster.wait_for_nodes()
            self._second = self._cluster.add_node(num_cpus=1, env_vars=_PATH | environment)

    def kill_second(self) -> None:
        """End the second node without a word, if it is there."""
        if self._second is not None:
            self._cluster.remove_node(self._second, allow_graceful=False)
            self._second = None

    def end(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def shared_nodes() -> Iterator[Nodes]:
    """The cluster of this module."""
    nodes = Nodes()
    yield nodes
    nodes.end()


@pytest.fixture
def nodes(shared_nodes: Nodes) -> Nodes:
    """The cluster, with both nodes."""
    shared_nodes.add()
    return shared_nodes


@pytest.fixture
def policy() -> Policy:
    """A policy that stops at the first loss above a limit."""
    return parse_policy("""
params: {limit: 2.0}
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > limit, operations: [hfcontrols.should_training_stop]}
""")


@pytest.fixture
def store(store_record: Callable[..., Path], store_steps: Callable[..., list[Event]]) -> Path:
    """Some runs, one of them empty."""
    for number in range(RUNS - 1):
        losses = [1.0 + number / 10] * number + [3.0, 1.0]
        events = store_steps(losses)
        scores = [Event("evaluate", step=len(losses), metrics={"eval_loss": 1.0 / (number + 1)})]
        store_record([*events, *scores], run_id=f"run-{number}", sealed=True)
    return store_record([Event("train_begin")], run_id="run-empty", sealed=True).parent


def test_a_backtest_on_two_nodes_is_the_one_here(nodes: Nodes, policy: Policy, store: Path) -> None:
    """Its three passes over the runs are one progress."""
    asked: dict[str, Any] = {"baselines": list(BASELINES.values()), "with_coverage": True}
    seen: list[Progress] = []
    here = backtest(policy, open_store(store), **asked)
    there = backtest(policy, open_store(store), **asked, pool=RayPool(nodes.address), on_progress=seen.append)

    assert there == here
    assert there.runs_frame().equals(here.runs_frame())
    assert [come.done for come in seen] == list(range(1, 3 * RUNS - 1))
    assert seen[-1].done == seen[-1].total


def test_paths_may_be_relative(nodes: Nodes, policy: Policy, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker computes in the folder of the caller, so that errors name the paths that the caller knows."""
    monkeypatch.chdir(store.parent)
    (store / "run-3" / "run.json").write_text("{")
    runs = [Run.__new__(Run) for _ in range(2)]
    for run, name in zip(runs, ("run-1", "run-3"), strict=True):
        run.folder = Path(store.name, name)
    here = backtest(policy, runs)
    there = backtest(policy, runs, pool=RayPool(nodes.address))

    assert len(here.excluded) == 1
    assert there == here


def test_a_sweep_and_a_certificate_share_one_connection(nodes: Nodes, policy: Policy, store: Path) -> None:
    """Both are those of this process."""
    axes, runs, risk = {"limit": [1.05, 1.55, 2.0]}, [*open_store(store)], risk_of("regret > 10%", "50%", None)
    here = sweep(policy, axes, runs), certify(policy, axes, runs, risk)
    with RayPool(nodes.address) as pool:
        there = sweep(policy, axes, runs, pool=pool), certify(policy, axes, runs, risk, pool=pool)

    assert there[0].frame().equals(here[0].frame())
    assert there[0].runs_frame().equals(here[0].runs_frame())
    assert there[1].choice.p_values.tobytes() == here[1].choice.p_values.tobytes()
    assert there[1].params == here[1].params


def test_an_import_on_two_nodes_writes_the_same_runs(nodes: Nodes, tmp_path: Path) -> None:
    """Each log becomes a run with the same digest, and a second import changes nothing."""
    logs = tmp_path / "logs"
    for number in range(8):
        (logs / f"job-{number}").mkdir(parents=True)
        rows = [f"{step},{number + 1 / step}\n" for step in range(1, 30)]
        (logs / f"job-{number}" / "metrics.csv").write_text("step,loss\n" + "".join(rows))
    sources = find_sources([logs], all_readers()).sources
    here = list(import_sources(tmp_path / "here", sources, ReadOptions()))
    with RayPool(nodes.address) as pool:
        there = list(import_sources(tmp_path / "there", sources, ReadOptions(), mapped=pool.mapped))
        again = list(import_sources(tmp_path / "there", sources, ReadOptions(), mapped=pool.mapped))
    digests = [[run.snapshot().log_digest for run in open_store(tmp_path / name)] for name in ("here", "there")]

    assert there == here
    assert digests[0] == digests[1]
    assert {outcome.state for outcome in again} == {State.UNCHANGED}
    assert not list((tmp_path / "there").glob(".*"))


def _dies_once(asked: tuple[Path, int]) -> int:
    """End the worker at the first call with this number."""
    folder, number = asked
    mark = folder / f"died-{number}"
    if number % 5 == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return -number


def test_blocks_of_killed_workers_are_repeated(nodes: Nodes, tmp_path: Path) -> None:
    """The results are complete and in order."""
    with RayPool(nodes.address) as pool:
        answers = list(pool.mapped(_dies_once, [(tmp_path, number) for number in range(20)]))

    assert answers == [-number for number in range(20)]
    assert len(list(tmp_path.iterdir())) == 4


def _slow(asked: tuple[Path, int]) -> int:
    folder, number = asked
    (folder / f"{number}-{os.environ.get('STEPTAPE_NODE', 'head')}").touch()
    time.sleep(0.3)
    return -number


def test_blocks_of_a_killed_node_are_repeated(nodes: Nodes, tmp_path: Path) -> None:
    """A node is killed while it computes."""
    nodes.kill_second()
    nodes.add(STEPTAPE_NODE="second")
    with RayPool(nodes.address) as pool:
        answers = pool.mapped(_slow, [(tmp_path, number) for number in range(16)])
        first = [next(answers) for _ in range(2)]
        until(lambda: any(tmp_path.glob("*-second")))
        nodes.kill_second()
        rest = list(answers)

    assert first + rest == [-number for number in range(16)]


def test_a_function_that_ends_every_worker_is_told(nodes: Nodes) -> None:
    """Ray repeats the task a few times; then the error names the arguments."""
    with RayPool(nodes.address) as pool, pytest.raises(TelemetryError, match=f"9: Ray lost a task, and {RETRIES} rep"):
        list(pool.mapped(os._exit, [9]))


def test_a_failure_is_the_one_of_the_function(nodes: Nodes) -> None:
    """Its note names the argument."""
    with pytest.raises(ValueError, match="invalid literal") as raised, RayPool(nodes.address) as pool:
        list(pool.mapped(int, ["1", "2", "x"]))

    assert raised.value.__notes__ == ["Raised for 'x'"]


def test_a_node_without_the_store_is_told(nodes: Nodes, policy: Policy, store: Path) -> None:
    """The runs would be excluded there; a report that lacks them would be wrong."""
    hidden = store.with_name("hidden")

    class HidesStore(RayPool):
        """Moves the store back when a worker has missed it."""

        def _is_here(self, block: Any) -> bool:
            hidden.rename(store)
            return super()._is_here(block)

    runs = [*open_store(store)]
    store.rename(hidden)
    with pytest.raises(TelemetryError, match="does not see this run"):
        backtest(policy, runs, pool=HidesStore(nodes.address))


def test_a_run_that_is_deleted_meanwhile_is_excluded(nodes: Nodes, policy: Policy, store: Path) -> None:
    """As in one process."""
    runs = [*open_store(store)]
    (store / "run-2").rename(store.with_name("gone"))
    here = backtest(policy, runs)
    there = backtest(policy, runs, pool=RayPool(nodes.address))

    assert there == here


def test_a_node_with_another_steptape_gets_this_one(nodes: Nodes, tmp_path: Path) -> None:
    """The node finds a foreign package of the same name, and no installed one."""
    foreign = tmp_path / "path" / "steptape"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").touch()
    hides = "import sys\nsys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in repr(each)]\n"
    (foreign.parent / "sitecustomize.py").write_text(hides)
    nodes.kill_second()
    nodes.add(PYTHONPATH=str(foreign.parent), STEPTAPE_NODE="second")
    program = f"""
import os
from steptape.replay.ray_pool import RayPool, code_digest

def look(number):
    import steptape.replay.ray_pool
    return steptape.replay.ray_pool.code_digest(), steptape.__file__, os.environ.get("STEPTAPE_NODE")

with RayPool({nodes.address!r}) as pool:
    found = list(pool.mapped(look, range(40)))
print({{digest for digest, _, _ in found}} == {{code_digest()}}, len(found), any(node for _, _, node in found))
print(all("py_modules" in path for _, path, _ in found))
"""
    script = tmp_path / "script.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, "-P", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    nodes.kill_second()

    assert done.stdout.endswith("True 40 True\nTrue\n"), done.stderr


def pushed(source: Path, address: str) -> None:
    """Push a store."""
    outcomes: list[RunPushed] = []
    push_once(source, target_of(address), outcomes.append, Backoff(print, PATIENCE_S))
    assert {(outcome.refused, outcome.uncompared) for outcome in outcomes} == {("", "")}


def backtested_while_a_node_is_killed(nodes: Nodes, policy: Policy, address: str, cache: Path) -> Backtest:
    """Backtest a store on two nodes. The second has its own cache, and is killed once it has read from the bucket."""
    nodes.kill_second()
    nodes.add(STEPTAPE_CACHE=str(cache))

    def on_progress(progress: Progress) -> None:
        if progress.done == 1:
            until(lambda: any(cache.glob("objects/parts/*")))
            nodes.kill_second()

    return backtest(policy, open_store(address), pool=RayPool(nodes.address), on_progress=on_progress)


def test_each_node_reads_object_storage_into_its_own_cache(
    nodes: Nodes, policy: Policy, store: Path, bucket: Place, tmp_path: Path
) -> None:
    """The report is the one of the folder, also where a node is killed."""
    pushed(store, bucket.address)
    there = backtested_while_a_node_is_killed(nodes, policy, bucket.address, tmp_path / "node")

    assert there == backtest(policy, open_store(store))


def test_a_run_is_the_same_through_a_server_and_object_storage_on_a_cluster(
    nodes: Nodes, policy: Policy, bucket: Place, tmp_path: Path
) -> None:
    """Recorded at A, pushed to a server, sealed there, pushed on to a bucket, backtested from there."""
    for number in range(8):
        with Recorder(tmp_path / "a", run_id=f"run-{number}", quiet=True) as rec:
            for step in range(1, 30):
                rec.step(loss=3.0 if step == 10 + number else 1.0 / step)
                if step % 5 == 0:
                    rec.evaluate(eval_loss=1.0 / step + number)
    (tmp_path / "b").mkdir()
    with served(tmp_path / "b", limits=PATIENT) as client:
        pushed(tmp_path / "a", str(client.base_url))
    pushed(tmp_path / "b", bucket.address)
    here = backtest(policy, open_store(tmp_path / "a"))
    there = backtested_while_a_node_is_killed(nodes, policy, bucket.address, tmp_path / "node")
    digests = [{run.run_id: run.log_digest for run in open_store(tmp_path / name)} for name in ("a", "b")]

    assert there == here
    assert there.runs_frame().equals(here.runs_frame())
    assert {run.run_id: run.log_digest for run in open_store(bucket.address)} == digests[0] == digests[1]


INTERRUPTED = """
import os, sys, time
from pathlib import Path
from steptape.replay.ray_pool import RayPool

def slow(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    with RayPool(sys.argv[1]) as pool:
        list(pool.mapped(slow, [sys.argv[2]] * 20))
"""


@pytest.mark.parametrize("place", ["joined", "local"])
def test_an_interrupt_ends_the_tasks(nodes: Nodes, tmp_path: Path, place: str) -> None:
    """Those that run end, too; a cluster that was joined keeps running."""
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(INTERRUPTED)
    pids.mkdir()
    address = nodes.address if place == "joined" else "local"
    command = [sys.executable, str(script), address, str(pids)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: any(pids.iterdir()))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    until(lambda: not any(Path("/proc", pid.name).exists() for pid in pids.iterdir()))
    with RayPool(nodes.address) as pool:
        assert list(pool.mapped(abs, [-1])) == [1]


def test_metrics_of_the_script_travel(nodes: Nodes, store: Path, tmp_path: Path) -> None:
    """A class that the main script registers decides on the nodes, too."""
    script = tmp_path / "script.py"
    script.write_text(f"""
from steptape import backtest, open_store
from steptape.replay.ray_pool import RayPool
from steptape.rules.policy_file.metrics import Metric
from steptape.rules.policy_file.policy import parse_policy
from steptape.shipping.store_push import Backoff, RunPushed, push_once
from steptape.shipping.store_push import target_of
from steptape.rules.policy_file.metrics import register_metric

@register_metric
class Twice(Metric):
    kinds = frozenset({{"step_end"}})

    def compute(self, event):
        return 2 * event.metrics["loss"]

policy = parse_policy('''
controller_metrics: [{{name: twice, class: Twice}}]
controllers:
  - {{name: stop, triggers: [on_step_end], rule: twice > 5, operations: [hfcontrols.should_training_stop]}}
''')
here = backtest(policy, open_store({str(store)!r}))
print(backtest(policy, open_store({str(store)!r}), pool=RayPool({nodes.address!r})) == here, len(here.results))
""")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.stdout.endswith(f"True {RUNS - 1}\n"), done.stderr


def test_the_command_answers_the_same_with_ray(nodes: Nodes, store: Path, tmp_path: Path) -> None:
    """``--ray`` takes an address, and none with the cluster in RAY_ADDRESS."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("""
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
""")
    command = [sys.executable, "-m", "steptape", "backtest", str(policy), "--store", str(store)]
    environment = {**os.environ, "RAY_ADDRESS": nodes.address}
    tables = []
    for more in (["--processes", "1"], ["--ray", nodes.address], ["--ray"]):
        done = subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        tables.append([line for line in done.stdout.splitlines() if "events/s" not in line and " in " not in line])

    assert tables[1:] == tables[:1] * 2
