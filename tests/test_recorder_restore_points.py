"""An undo returns weights, moments and scale to a restore point, in place. Data, steps and schedules go on."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from steptape import Recorder, TelemetryError, open_run, verify
from steptape.recorder.operations.restore_points import RestorePoints
from steptape.store.events import FACT_KINDS, Event

BACK = "undo.to(before=3) if loss > 100 or not isfinite(loss)"


def model_of(kind: str = "plain") -> nn.Sequential:
    """Return a small model with weights and buffers; ``tied`` uses one matrix twice."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    if kind == "tied":
        model[2].weight = model[0].weight
    return model


class Training:
    """A loop of one model, which records each update.

    Args:
        store, rules: As for ``Recorder``.
        make: Makes the optimizer.
        kind: As for ``model_of``.
        disturbed: The updates whose loss the rules see as 1,000, and whose weights are hit.
    """

    def __init__(
        self,
        store: Path,
        rules: Any = (BACK,),
        *,
        make: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        kind: str = "plain",
        disturbed: tuple[int, ...] = (),
        **recorder: Any,
    ) -> None:
        self.model, self.disturbed = model_of(kind), disturbed
        self.optimizer = make(self.model.parameters())
        given = rules if isinstance(rules, str) else list(rules) or None
        self.rec = Recorder(store, rules=given, quiet=True, **recorder)
        self.kept: dict[int, Any] = {}
        self.batches = 0

    def state(self) -> Any:
        """Return a copy of everything that an update changes."""
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()["state"]))

    def update(self) -> None:
        """Make one update with the next batch, and keep its result by step."""
        torch.manual_seed(1000 + self.batches)
        self.batches += 1
        step = self.rec.progress.updates + 1
        loss = self.model(torch.randn(8, 6)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if step in self.disturbed:
            with torch.no_grad():
                next(iter(self.model.parameters())).fill_(math.nan)
        self.kept[step] = self.state()
        self.rec.step(loss=1000.0 if step in self.disturbed else loss.item())

    def run(self, updates: int) -> None:
        """Make so many updates, fewer if a rule stops them."""
        for _ in range(updates):
            self.update()
            if self.rec.control.should_stop:
                break

    def events(self) -> list[Event]:
        """Return the events of the run."""
        return list(open_run(self.rec.folder).events())

    def receipts(self, kind: str = "operation_applied") -> list[dict[str, Any]]:
        """Return the attributes of the receipts."""
        return [dict(event.attrs) for event in self.events() if event.kind == kind]


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    """A training with a point every five updates, disturbed at the 18th."""
    made = Training(tmp_path, disturbed=(18,))
    made.rec.restore_points(made.model, made.optimizer, every=5)
    yield made
    made.rec.close()


def test_an_undo_gives_weights_buffers_and_moments_the_values_of_the_point_to_the_bit(training: Training) -> None:
    """The point of step 15 is the newest that is three updates old."""
    training.run(18)

    assert same(training.state(), training.kept[15])


def test_the_training_goes_on_as_if_the_point_were_loaded_and_the_next_data_came(
    training: Training, tmp_path: Path
) -> None:
    """A twin loads what the point held, and trains with the same later batches."""
    training.run(25)
    twin = Training(tmp_path / "twin", rules=())
    weights, moments = training.kept[15]
    twin.model.load_state_dict(weights)
    twin.optimizer.load_state_dict({**twin.optimizer.state_dict(), "state": moments})
    twin.batches = 18
    twin.run(7)
    twin.rec.close()

    assert same(twin.state(), training.state())


def test_the_tensors_stay_the_same_objects(training: Training) -> None:
    """Compiled graphs, wrappers and tied weights hold on to them."""
    before = [*map(id, training.model.state_dict(keep_vars=True).values())]
    training.run(18)

    assert [*map(id, training.model.state_dict(keep_vars=True).values())] == before


def test_the_receipt_names_the_point(training: Training) -> None:
    """Also how often the run went back to it, and at all."""
    training.run(20)

    (receipt,) = training.receipts()
    assert {key: receipt[key] for key in ("point_step", "times", "undos")} == {"point_step": 15, "times": 1, "undos": 1}


def test_points_are_taken_every_so_many_updates_and_after_an_undo_as_many_later(training: Training) -> None:
    """The event says how many bytes each takes."""
    training.run(30)

    assert [event.step for event in training.events() if event.kind == "restore_point"] == [5, 10, 15, 23, 28]
    assert {event.attrs["size_bytes"] > 0 for event in training.events() if event.kind == "restore_point"} == {True}


def test_a_run_with_undos_is_identical_to_its_replay(training: Training) -> None:
    """Receipts are facts of the log."""
    training.run(30)
    training.rec.close()

    assert verify(open_run(training.rec.folder)).identical


def test_no_point_is_taken_while_a_rule_that_orders_an_undo_is_true(tmp_path: Path) -> None:
    """The cooldown keeps the rule from deciding again, and its answer counts all the same."""
    rules = """
controllers:
  - {name: back, triggers: [on_step_end], rule: loss > 100, cooldown: 50, operations: ["undo.to(before=3)"]}
"""
    (tmp_path / "rules.yaml").write_text(rules)
    training = Training(tmp_path / "runs", str(tmp_path / "rules.yaml"), disturbed=tuple(range(18, 28)))
    training.rec.restore_points(training.model, training.optimizer, every=5)
    training.run(32)
    training.rec.close()

    assert [event.step for event in training.events() if event.kind == "restore_point"] == [5, 10, 15, 28]


def test_a_rate_that_is_reduced_with_an_undo_stays_reduced(tmp_path: Path) -> None:
    """The undo does not touch what rules have made of the rate."""
    training = Training(tmp_path, ["undo.to(before=3) and lr x 0.5 if loss > 100"], disturbed=(18, 30))
    training.rec.restore_points(training.model, training.optimizer, every=5)
    training.rec.learning_rate(training.optimizer)
    training.run(32)
    training.rec.close()
    used = {event.step: event.metrics["lr.used"] for event in training.events() if event.kind == "step_end"}

    assert [used[18] / used[1], used[19] / used[1], used[32] / used[1]] == [1.0, 0.5, 0.25]


def test_the_schedule_goes_on(tmp_path: Path) -> None:
    """The scheduler counts steps, and the rate does not go back."""
    training = Training(tmp_path, disturbed=(18,))
    training.rec.restore_points(training.model, training.optimizer, every=5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9)
    rates = []
    for _ in range(20):
        training.update()
        schedule.step()
        rates.append(training.optimizer.param_groups[0]["lr"])
    training.rec.close()

    assert rates == pytest.approx([1e-3 * 0.9**step for step in range(1, 21)])


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam])
def test_optimizers_of_each_kind_go_back(tmp_path: Path, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """One without any state, and those whose state is of tensors and numbers."""
    training = Training(tmp_path, make=lambda weights: make(weights, lr=0.01), disturbed=(8,))  # type: ignore[call-arg]
    training.rec.restore_points(training.model, training.optimizer, every=5)
    training.run(8)
    training.rec.close()

    assert same(training.state(), training.kept[5])


def test_tied_weights_are_kept_once(tmp_path: Path) -> None:
    """The bytes of a point are those of the tensors without repetition."""
    sizes = []
    for kind in ("plain", "tied"):
        training = Training(tmp_path, kind=kind, make=lambda weights: torch.optim.SGD(weights, lr=0.1))
        points = RestorePoints(training.model, training.optimizer)
        sizes.append(points.take(1))
        training.rec.close()

    assert sizes[0] - sizes[1] == 6 * 6 * 4


def test_an_optimizer_that_had_no_state_at_the_point_has_none_after_the_undo() -> None:
    """Adam then begins its moments anew, as at its first update."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    points = RestorePoints(model, optimizer)
    points.take(0)
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    points.restore(0, now=1)

    assert not optimizer.state


def test_gradients_are_cleared(training: Training) -> None:
    """What was accumulated belongs to the weights that were left."""
    training.run(18)

    assert all(weight.grad is None for weight in training.model.parameters())


def test_the_scale_of_mixed_precision_goes_back() -> None:
    """A scaler that has halved its scale over and over would train with underflow."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    points = RestorePoints(model, optimizer, scaler)
    points.take(0)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 6)).sum() * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()
    halved = scaler.get_scale()
    points.restore(0, now=3)

    assert (halved, scaler.get_scale()) == (2.0**7, 2.0**10)


def test_a_compiled_model_goes_back() -> None:
    """Its graph reads the weights that it was compiled with."""
    model = model_of()
    compiled: Any = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(4, 6)
    points = RestorePoints(compiled, optimizer)
    model.eval()
    before = compiled(batch).detach().clone()
    points.take(0)
    compiled(batch).sum().backward()
    optimizer.step()
    points.restore(0, now=1)

    assert torch.equal(compiled(batch), before)


def test_a_model_that_has_other_parameters_since_refuses(training: Training) -> None:
    """The training goes on with the weights that it has."""
    training.run(16)
    training.model.append(nn.Linear(6, 6))
    training.optimizer.add_param_group({"params": list(training.model[3].parameters())})
    training.run(4)

    reasons = {one["reason"] for one in training.receipts("operation_refused")}
    assert reasons == {"the model has other parameters than at step 15"}


def test_an_undo_before_the_first_point_is_refused(training: Training) -> None:
    """No point is three updates old at step 4."""
    training.disturbed = (4,)
    training.run(6)

    assert training.receipts("operation_refused")[0]["reason"] == "there is no restore point up to step 1"


def test_rules_that_order_an_undo_name_the_missing_call_at_the_first_update(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One learns of it before the undo is needed."""
    with Recorder(tmp_path, rules=[BACK], quiet=True) as rec:
        rec.step(loss=1.0)

    expected = "rules may order undo.to(3), and this loop would refuse it. Call rec.restore_points(model, optimizer)"
    assert expected in caplog.text


def test_an_exhausted_undo_asks_for_a_checkpoint_and_the_end(tmp_path: Path) -> None:
    """What does not heal would be undone for ever."""
    training = Training(tmp_path, ["undo.to(before=3, times=2) if loss > 100"], disturbed=(18, 19, 20))
    training.rec.restore_points(training.model, training.optimizer, every=5)
    training.run(30)
    saves = training.rec.control.should_save
    training.rec.close()
    why = "undo.to(3, times=2): the training went back to step 15 2 times already"

    assert (saves, training.rec.progress.updates, open_run(training.rec.folder).info.last.reason) == (True, 20, why)


def test_without_room_the_points_so_far_are_kept_and_it_is_said(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A training must not end for want of memory for its copies."""
    training.run(12)

    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty_like", fails)
        training.run(4)
    training.run(4)

    assert "restore points: no room for another; 2 points of before are kept (no room)" in caplog.text
    assert training.receipts()[0]["point_step"] == 10


def test_a_return_that_fails_midway_ends_the_training_without_an_exception(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are of two moments then. No failure of the recorder is raised into a loop."""

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(RestorePoints, "restore", fails)
    training.run(30)
    (refused,) = training.receipts("operation_refused")

    assert training.rec.progress.updates == 18
    assert refused["reason"] == "RuntimeError: out of memory"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
        ("deepspeed.runtime.engine", "DeepSpeedEngine"),
    ],
)
def test_a_model_whose_parameters_are_not_its_weights_is_refused(module: str, name: str) -> None:
    """The message says what to do."""
    model: Any = type(name, (nn.Module,), {"__module__": module})()
    model.inner = nn.Linear(2, 2)

    with pytest.raises(TelemetryError, match=rf"restore_points: {name} is not supported.*rollback\.to"):
        RestorePoints(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_optimizer_that_keeps_its_own_copies_is_refused(is_wrapped: bool) -> None:
    """DeepSpeed's holds a plain one, which steps on parts of the weights; a framework wraps it once more."""
    model = model_of()
    name, where = "DeepSpeedZeroOptimizer", {"__module__": "deepspeed.runtime.zero.stage_1_and_2"}
    optimizer: Any = type(name, (), where)()
    optimizer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups = optimizer.optimizer.param_groups
    given = SimpleNamespace(optimizer=optimizer, param_groups=optimizer.param_groups) if is_wrapped else optimizer

    with pytest.raises(TelemetryError, match=rf"restore_points: {name} is not supported.*rollback\.to"):
        RestorePoints(model, given)


@pytest.mark.parametrize(("every", "keep"), [(0, 3), (5, 0), (2.5, 3), (True, 3)])
def test_wrong_numbers_are_refused(every: Any, keep: Any) -> None:
    """Both are whole numbers from 1."""
    model = model_of()

    with pytest.raises(TelemetryError, match="must be a whole number from 1"):
        RestorePoints(model, torch.optim.SGD(model.parameters(), lr=0.1), every=every, keep=keep)


def test_a_skip_of_further_updates_leaves_out_as_many(tmp_path: Path) -> None:
    """Ordered at the end of an update, it is for those that come next."""
    with Recorder(tmp_path, rules=["batch.skip(updates=3) if loss > 100"], quiet=True) as rec:
        rec.handle("batch.skip")
        left_out = []
        for step in range(1, 11):
            left_out.append(rec.control.should_skip)
            rec.step(loss=1000.0 if step == 4 else 1.0, applied=not rec.control.should_skip, sample_ids=[step])
    (receipt,) = [event for event in open_run(rec.folder).events() if event.kind == "operation_applied"]

    expected = [False] * 4 + [True] * 3 + [False] * 3
    assert (left_out, receipt.step, receipt.attrs["sample_ids"]) == (expected, 7, [5, 6, 7])


def test_what_an_undo_has_done_is_known_after_a_resume(tmp_path: Path) -> None:
    """The checkpoint is younger than the undo. The new process has no point yet."""
    rules = (BACK, 'warn "{undos} {undos_to_point}" if undos > 0 and step % 5 == 0')
    training = Training(tmp_path, rules, disturbed=(18,))
    training.rec.restore_points(training.model, training.optimizer, every=5)
    training.run(22)
    state = training.rec.state_dict()
    training.rec.close()
    with Recorder(tmp_path, rules=list(rules), resume=state, quiet=True) as rec:
        for _ in range(4):
            rec.step(loss=1.0)
    said = [event.attrs["message"] for event in open_run(rec.folder).events() if event.attrs.get("message")]

    assert said == ["1 1", "1 0"]
    assert verify(open_run(rec.folder)).identical


def test_rules_know_no_point_after_a_resume_until_the_process_has_one(tmp_path: Path) -> None:
    """Data of another level then order no undo that would be refused, and the next point is of their level."""
    model, state = model_of(), None
    for loss in (1.0, 9.0):
        with Recorder(tmp_path, rules=["undo.to(before=1) if loss > 2 * at_point(loss)"], resume=state) as rec:
            rec.restore_points(model, torch.optim.SGD(model.parameters(), lr=0.1), every=5)
            for _ in range(12):
                rec.step(loss=loss)
            state = rec.state_dict()
    facts = [(event.kind, event.step) for event in open_run(rec.folder).events() if event.kind in FACT_KINDS]

    assert facts == [("restore_point", step) for step in (5, 10, 15, 20)]
    assert verify(open_run(rec.folder)).identical


def test_undos_that_a_rollback_takes_back_still_count(tmp_path: Path) -> None:
    """Otherwise a rule that gives up after some tries never would. The points before the checkpoint remain."""
    rules = [
        BACK,
        "rollback.to(last) if loss < 0",
        'warn "{undos} {rollbacks}" if rollbacks > 0 and at_point(loss) > 0',
    ]
    training = Training(tmp_path, rules, disturbed=(18,))
    training.rec.restore_points(training.model, training.optimizer, every=5)
    training.rec.handle("rollback.to", lambda _: None)
    training.run(10)
    training.rec.save("ten.pt", size_bytes=1)
    training.run(10)
    training.rec.step(loss=-1.0)
    training.rec.step(loss=1.0)
    training.rec.close()
    said = [event.attrs["message"] for event in training.events() if event.attrs.get("message")]

    assert said == ["1 1"]
    assert verify(open_run(training.rec.folder)).identical


def test_the_level_of_a_series_at_the_point_is_that_to_which_an_undo_returns(tmp_path: Path) -> None:
    """Steps are numbers here, so that the message says which value it was."""
    rules = [BACK, "warn \"{at_point(series('n'))}\" if step % 6 == 0"]
    with Recorder(tmp_path, rules=rules, quiet=True) as rec:
        model = model_of()
        rec.restore_points(model, torch.optim.SGD(model.parameters(), lr=0.1), every=5)
        for step in range(1, 25):
            rec.step(loss=1000.0 if step == 17 else 1.0, n=float(step))
    said = [event.attrs["message"] for event in open_run(rec.folder).events() if event.attrs.get("message")]

    assert [float(text) for text in said] == [5.0, 10.0, 10.0, 22.0]


def test_weights_of_an_optimizer_that_are_in_no_module_go_back() -> None:
    """A loss may have weights of its own, and an optimizer a copy in full precision."""
    model, scale = model_of(), nn.Parameter(torch.ones(3))
    points = RestorePoints(model, torch.optim.SGD([*model.parameters(), scale], lr=0.1), every=1)
    points.take(1)
    with torch.no_grad():
        scale.fill_(math.nan)
    points.restore(1, now=2)

    assert scale.tolist() == [1.0] * 3


class Pair(NamedTuple):
    """Two values of a parameter's state."""

    sums: torch.Tensor
    number: int


class Stateful(torch.optim.SGD):
    """Keeps a value in the state of each parameter."""

    value: Any = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the weights, and keep the value."""
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = self.value


def test_named_tuples_in_the_state_of_an_optimizer_go_back() -> None:
    """With their types."""
    model = model_of()
    optimizer = Stateful(model.parameters(), lr=0.1)
    optimizer.value = Pair(torch.ones(2), 3)
    optimizer.step()
    points = RestorePoints(model, optimizer, every=1)
    points.take(1)
    optimizer.value = Pair(torch.zeros(2), 4)
    optimizer.step()
    points.restore(1, now=2)
    kept = optimizer.state[next(model.parameters())]["kept"]

    assert (type(kept), kept.sums.tolist(), kept.number) == (Pair, [1.0, 1.0], 3)


def test_a_state_that_cannot_be_copied_costs_the_points_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says why."""
    model = model_of()
    optimizer = Stateful(model.parameters(), lr=0.1)
    optimizer.value = threading.Lock()
    with Recorder(tmp_path, rules=[BACK], quiet=True) as rec:
        rec.restore_points(model, optimizer, every=2)
        for _ in range(8):
            optimizer.step()
            rec.step(loss=1.0)

    assert open_run(rec.folder).status == "completed"
    assert caplog.text.count("restore points: none can be taken (TypeError: cannot pickle '_thread.lock' object)") == 1


@pytest.mark.parametrize(
    ("models", "optimizers", "said"),
    [
        ({"net": nn.Linear(1, 1)}, torch.optim.SGD, "a model is a torch.nn.Module"),
        ([nn.Parameter(torch.ones(1))], torch.optim.SGD, "a model is a torch.nn.Module"),
        (None, torch.optim.SGD, "a model is a torch.nn.Module"),
        (nn.Linear(1, 1), lambda _: None, "an optimizer has param_groups"),
        (nn.Linear(1, 1), lambda _: [None], "an optimizer has param_groups"),
    ],
)
def test_what_is_no_model_or_optimizer_is_refused(models: Any, optimizers: Any, said: str) -> None:
    """At the call, not at the first point."""
    with pytest.raises(TelemetryError, match=said):
        RestorePoints(models, optimizers([nn.Parameter(torch.ones(1))]))
