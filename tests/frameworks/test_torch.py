"""Plain loops of PyTorch, on one process and on several: what is recorded, how rules stop them, what is skipped."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrun import run_job
from waiting import PATIENCE_S

from steptape import Recorder, TelemetryError, backtest, open_run, open_store, verify
from steptape.integrations.torch import watch_steps
from steptape.rules.policy_file.policy import parse_policy

LOOPS = Path(__file__).with_name("torch_loops.py")
STOP = """
controllers:
  - {name: level, triggers: [on_step_end], rule: "step >= 7", operations: [hfcontrols.should_training_stop]}
"""
#: It orders no stop, and what it decides depends on steps before the checkpoint.
FALLS = """
controllers:
  - name: falls
    triggers: [on_step_end]
    rule: "len(loss) >= 4 and loss < mean(loss, 4)"
    for: 3
    operations: [hfcontrols.should_save]
"""
KINDS = ("ddp", "fsdp")

#: A first rank, a last one and one between.
WORLD_SIZE = 3


#: Places of a NaN: rank, step and micro-step.
POISONS = [(rank, 5, micro_step) for rank in (0, WORLD_SIZE - 1) for micro_step in (0, 1)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """The store and the trainings, by name, of one job."""
    folder = tmp_path_factory.mktemp("job")
    store = {"store": str(folder / "runs")}
    (folder / "stop.yaml").write_text(STOP)
    (folder / "falls.yaml").write_text(FALLS)
    falls = {**store, "rules": str(folder / "falls.yaml")}
    trainings: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        trainings |= {
            f"{kind} plain": {"kind": kind},
            f"{kind} recorded": {"kind": kind, **falls},
            f"{kind} stopped": {"kind": kind, **store, "rules": str(folder / "stop.yaml")},
            f"{kind} cut": {"kind": kind, **falls, "keep_at": 5, "end": 8},
            f"{kind} resumed": {"kind": kind, **falls, "keep_at": 5, "resume": True},
        }
        for rank, step, micro_step in POISONS:
            poison = {"kind": kind, **store, "poison": [rank, step, micro_step], "end": 6}
            trainings[f"{kind} poisoned {rank} {micro_step}"] = poison
    trainings["fsdp partial norm"] = {"kind": "fsdp", **store, "partial_norm": True}
    done = run_job(LOOPS, folder, WORLD_SIZE, [*trainings.values()])
    return folder / "runs", dict(zip(trainings, done, strict=True))


def decisions_of(store: Path, training: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Return step and controller of each decision."""
    run = open_store(store).run(training[0]["run_id"])
    return [(row["step"], row["controller"]) for row in run.decisions().to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
class TestRanks:
    """Several processes train one model."""

    def test_recording_changes_no_bit_of_any_loss(self, job: Any, kind: str) -> None:
        """Each rank has losses of its own."""
        store, trainings = job

        plain, recorded = trainings[f"{kind} plain"], trainings[f"{kind} recorded"]
        assert [rank["losses"] for rank in recorded] == [rank["losses"] for rank in plain]
        assert len({tuple(rank["losses"]) for rank in plain}) == WORLD_SIZE
        assert verify(open_store(store).run(recorded[0]["run_id"])).identical

    def test_a_rule_stops_all_ranks_at_the_same_step(self, job: Any, kind: str) -> None:
        """None waits for another in a collective."""
        store, trainings = job
        stopped = trainings[f"{kind} stopped"]
        run = open_store(store).run(stopped[0]["run_id"])

        assert [len(rank["losses"]) for rank in stopped] == [7] * WORLD_SIZE
        assert run.status == "stopped"
        free = open_store(store).run(trainings[f"{kind} recorded"][0]["run_id"])
        (foretold,) = backtest(parse_policy(STOP), [free]).results
        assert foretold.predicted is not None
        assert foretold.predicted.steps == 7
        last = run.rows("SELECT rank, max(step) AS step FROM steps GROUP BY rank ORDER BY rank")
        assert last == [{"rank": rank, "step": 7} for rank in range(WORLD_SIZE)]

    def test_a_nan_is_seen_at_its_step_on_its_rank(self, job: Any, kind: str) -> None:
        """One micro-batch has it; from the next step on all ranks have it."""
        store, trainings = job
        for poisoned, step, micro_step in POISONS:
            run = open_store(store).run(trainings[f"{kind} poisoned {poisoned} {micro_step}"][0]["run_id"])

            seen = run.rows("SELECT step, rank FROM steps WHERE isnan(loss) ORDER BY step, rank")

            assert seen[: WORLD_SIZE + 1] == [
                {"step": step, "rank": poisoned},
                *({"step": step + 1, "rank": rank} for rank in range(WORLD_SIZE)),
            ]

    def test_a_resumed_run_decides_as_an_unsplit_one(self, job: Any, kind: str) -> None:
        """The first course ends three steps after the checkpoint."""
        store, trainings = job
        whole, cut, resumed = (trainings[f"{kind} {name}"] for name in ("recorded", "cut", "resumed"))

        assert resumed[0]["run_id"] == cut[0]["run_id"]
        assert cut[0]["losses"][:5] + resumed[0]["losses"] == whole[0]["losses"]
        assert decisions_of(store, resumed) == decisions_of(store, whole) != []


def test_a_part_of_a_distributed_tensor_is_refused_and_gathered_by_nobody(job: Any) -> None:
    """Rank 0 alone records it: a gathering would hang, and the rank's own part would be a wrong number."""
    store, trainings = job
    training = trainings["fsdp partial norm"]
    run = open_store(store).run(training[0]["run_id"])

    (said,) = [warning for warning in training[0]["warnings"] if "DTensor" in warning]
    assert "grad_norm.full_tensor()" in said
    assert "all ranks" in said
    assert run.rows("SELECT count(loss) AS n FROM steps WHERE rank = 0") == [{"n": 12}]
    assert run.metrics() == ["loss"]


def test_a_distributed_tensor_that_every_rank_has_whole_is_recorded(job: Any) -> None:
    """As FSDP2's ``clip_grad_norm_`` returns it."""
    store, trainings = job
    run = open_store(store).run(trainings["fsdp recorded"][0]["run_id"])

    norms = run.rows("SELECT step, min(grad_norm) AS low, max(grad_norm) AS high FROM steps GROUP BY step")

    assert len(norms) == 12
    assert all(row["low"] == row["high"] > 0 for row in norms)


def test_the_example_is_stopped_by_its_policy_on_both_ranks(tmp_path: Path) -> None:
    """It starts two processes itself."""
    example = Path(__file__).resolve().parents[2] / "examples" / "scripts" / "ddp.py"
    (tmp_path / "stop.yaml").write_text(STOP)

    subprocess.run([sys.executable, str(example), "stop.yaml"], cwd=tmp_path, check=True, timeout=PATIENCE_S)

    (run,) = open_store(tmp_path / "runs")
    assert run.status == "stopped"
    assert run.rows("SELECT rank, max(step) AS step FROM steps GROUP BY rank ORDER BY rank") == [
        {"rank": 0, "step": 7},
        {"rank": 1, "step": 7},
    ]
    assert len(example.read_text().splitlines()) <= 45


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_gradient_scaler_skipped_is_recorded_as_not_applied(tmp_path: Path, fused: bool) -> None:
    """The scaler does not call a plain optimizer then, and tells a fused one."""
    weights = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weights], lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    moved = []

    with Recorder(tmp_path) as rec, watch_steps(rec, optimizer):
        for step in range(1, 9):
            before = weights.detach().clone()
            loss = (weights * torch.tensor([1.0, math.inf if step in (3, 4, 7) else 1.0, 1.0])).sum()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            rec.step(loss=loss.detach())
            moved.append(not torch.equal(before, weights))

    said = [event.attrs.get("applied", True) for event in open_run(rec.folder).events() if event.kind == "step_end"]
    assert said == moved == [True, True, False, False, True, True, False, True]


def test_what_the_loop_says_of_a_step_counts_and_closing_ends_the_watch(tmp_path: Path) -> None:
    """Of several optimizers one is enough."""
    weights = torch.nn.Parameter(torch.ones(3))
    generator, critic = torch.optim.SGD([weights], lr=0.1), torch.optim.SGD([weights], lr=0.1)

    with Recorder(tmp_path) as rec:
        watch = watch_steps(rec, generator, critic)
        critic.step()
        rec.step(loss=1.0)  # One of two is enough.
        rec.step(loss=2.0)  # None.
        rec.step(loss=3.0, applied=True)
        rec.step({"loss": 4.0})
        rec.step(loss=5.0, applied=None)
        watch.close()
        watch.close()
        rec.step(loss=6.0)

    said = [event.attrs.get("applied", True) for event in open_run(rec.folder).events() if event.kind == "step_end"]
    assert said == [True, False, True, False, False, True]


def test_a_watch_of_an_optimizer_takes_the_place_of_that_of_an_earlier_recorder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cell that runs twice leaves no hook of the first recorder behind."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    first, second, third = (Recorder(tmp_path, quiet=True) for _ in range(3))
    for rec in (first, second):
        watch = watch_steps(rec, optimizer)
    first.step(loss=1.0)  # Its own optimizer does not turn, and nothing watches it.
    second.close()
    watch_steps(third, optimizer)
    third.step(loss=1.0)
    watch.close()

    said = [event.attrs.get("applied", True) for rec in (first, third) for event in open_run(rec.folder).events()]
    assert said.count(False) == 1
    assert len(optimizer._optimizer_step_post_hooks) == 1
    assert caplog.messages == [f"watch_steps: the run {first.run_id} had an optimizer of these; its watch ends"]


def test_one_watch_at_a_time_takes_at_least_one_optimizer(tmp_path: Path) -> None:
    """A second watch would hide what the first one saw; without an optimizer no update would count as applied."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    with Recorder(tmp_path) as rec:
        with pytest.raises(TelemetryError, match="no optimizer"):
            watch_steps(rec)
        with watch_steps(rec, optimizer):
            with pytest.raises(TelemetryError, match=r"watched already.*one call"):
                watch_steps(rec, optimizer)
            for _ in range(2):
                optimizer.step()
                rec.step(loss=1.0)
        with watch_steps(rec, optimizer):
            rec.step(loss=1.0)

    said = [event.attrs.get("applied", True) for event in open_run(rec.folder).events() if event.kind == "step_end"]
    assert said == [True, True, False]
