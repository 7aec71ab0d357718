"""Values on a device are never waited for, come at a fixed lag, and lead to decisions independent of copy speed."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_tensors import DeviceTensor
from probed_models import ResidualModel
from waiting import PATIENCE_S, until

from steptape import Journal, Recorder, Samples, load_policy, open_run, verify
from steptape.recorder.device_values import COPIES, VALUE_LAG, Bundle
from steptape.recorder.probes.norms import Measurements
from steptape.replay.runs.replaying import replay
from steptape.store.events import Event
from steptape.store.run import Run

RULES = """
controllers:
  - name: spike
    triggers: [on_step_end]
    rule: loss > 1.5 * mean(loss, 4)
    for: 3
    operations: [hfcontrols.should_save]
  - name: warm
    triggers: [on_step_end]
    rule: lr > 0.5
    operations: [hfcontrols.should_log]
  - name: worse
    triggers: [on_evaluate]
    rule: eval_loss > loss
    operations: [hfcontrols.should_log]
"""

RARELY = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_log]}
  - name: often
    triggers: [on_step_end]
    rule: times_fired("high") % 3 == 2
    for: 2
    operations: [hfcontrols.should_save]
  - {name: rate, triggers: [on_step_end], rule: lr > 0, cooldown: 4, operations: []}
"""

LOSSES = [2.0, 1.5, 9.0, 9.5, 1.0, math.nan, 30.0, 31.0, 1.0, 0.5, 40.0, 50.0, 60.0, 1.0]


class OnDevice:
    """A tensor on a device that this machine lacks: recognised by its interface, and an error to read."""

    is_cpu = False
    device = torch.device("meta")

    def __init__(self, value: Any) -> None:
        self.hidden = torch.as_tensor(value)

    def item(self) -> float:
        """Raise: a recorder must not call this."""
        raise AssertionError("the recorder has waited for the device")


@pytest.fixture(params=["at once", "slowly", "at random"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], OnDevice]:
    """A device whose copies take arbitrary times; calling it makes tensors."""
    delays = random.Random(0)
    seconds = {"at once": lambda: 0.0, "slowly": lambda: 0.02, "at random": lambda: delays.uniform(0, 0.02)}

    class Copy:
        def __init__(self, tensors: Sequence[OnDevice]) -> None:
            self._done = threading.Event()
            self._host = [tensor.hidden for tensor in tensors]
            self._timer = threading.Timer(seconds[request.param](), self._done.set)
            self._timer.start()

        def wait(self) -> Sequence[torch.Tensor]:
            assert self._done.wait(PATIENCE_S)
            self._timer.join()
            return self._host

    monkeypatch.setitem(COPIES, "meta", Copy)
    return OnDevice


def train(store: Path, rules: Path, as_loss: Callable[[float], Any], **options: Any) -> Run:
    """Train over the losses, with an evaluation at every fifth step."""
    with Recorder(store, rules=rules, **options) as rec:
        for step, loss in enumerate(LOSSES, 1):
            rec.step(loss=as_loss(loss), lr=1.0 if step == 3 else 0.1)
            if step % 5 == 0:
                rec.evaluate(eval_loss=1.2)
    return open_run(rec.folder)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Rules on host values, on device values, and on both."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def fired(run: Run) -> list[tuple[str, int]]:
    """Return each controller that fired and the step of its values, sorted by controller."""
    return sorted((row["controller"], row["step"]) for row in run.decisions().to_pylist())


def late(run: Run) -> list[Event]:
    """Return the events that brought device values."""
    return [event for event in run.events() if event.is_late]


def test_device_values_are_recorded_in_step_order_before_an_evaluation_and_the_end(
    tmp_path: Path, rules: Path, device: Callable[[Any], OnDevice]
) -> None:
    """Their lag does not depend on the copies."""
    run = train(tmp_path / "runs", rules, device)

    assert [event.step for event in late(run)] == list(range(1, len(LOSSES) + 1))
    assert [event.value_lag for event in late(run)] == [4, 3, 2, 1, 0, 4, 3, 2, 1, 0, 3, 2, 1, 0]
    assert repr([event.metrics["loss"] for event in late(run)]) == repr(LOSSES)
    assert run.series("loss")["step"].to_pylist() == list(range(1, len(LOSSES) + 1))


def test_rules_decide_as_they_do_with_values_of_the_host(
    tmp_path: Path, rules: Path, device: Callable[[Any], OnDevice]
) -> None:
    """Each rule decides once per step, patience included, on the values of its step; the replay agrees."""
    on_host = train(tmp_path / "host", rules, float)
    on_device = train(tmp_path / "device", rules, device)

    assert fired(on_device) == fired(on_host)
    assert {name for name, _ in fired(on_host)} == {"spike", "warm", "worse"}
    assert verify(on_device).identical


def test_a_stall_between_a_step_and_its_values_changes_no_decision(
    tmp_path: Path, rules: Path, device: Callable[[Any], OnDevice]
) -> None:
    """The event is written without the values that the loop has on the device, which may be what hangs."""

    def has_stalled(folder: Path) -> bool:
        return any(event.kind == "stalled" for event in open_run(folder).events())

    on_host = train(tmp_path / "host", rules, float)
    with Recorder(tmp_path / "device", rules=rules) as rec:
        for step, loss in enumerate(LOSSES, 1):
            rec.step(loss=device(loss), lr=1.0 if step == 3 else 0.1)
            if step == 7:
                rec.watch_stalls(0.1)
                until(lambda: has_stalled(rec.folder))
            if step % 5 == 0:
                rec.evaluate(eval_loss=1.2)
    on_device = open_run(rec.folder)
    kinds = [(event.kind, event.step) for event in on_device.events()]

    assert kinds.index(("stalled", 7)) < kinds.index(("step_end", 7), kinds.index(("step_end", 7)) + 1)
    assert fired(on_device) == fired(on_host)
    assert verify(on_device).identical


def test_a_loss_that_is_reported_at_some_steps_only_decides_alike_on_the_device(
    tmp_path: Path, device: Callable[[Any], OnDevice]
) -> None:
    """Live, after a resume and in a replay; controllers that read the deciding one decide with it."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RARELY)
    reported = {1: 1.0, 2: 5.0, 5: 1.0, 8: 4.0, 11: 1.0, 14: 3.0}

    def trained(store: Path, as_loss: Callable[[float], Any]) -> Run:
        with Recorder(store, run_id="r", rules=rules) as rec:
            for step in range(1, 10):
                rec.step(lr=0.1, **({"loss": as_loss(reported[step])} if step in reported else {}))
            state = rec.state_dict()
            rec.step(loss=as_loss(-9.0), lr=0.1)
        with Recorder(store, rules=rules, resume=state) as again:
            for step in range(10, 17):
                again.step(lr=0.1, **({"loss": as_loss(reported[step])} if step in reported else {}))
        return open_run(rec.folder)

    on_host, on_device = trained(tmp_path / "host", float), trained(tmp_path / "device", device)

    assert fired(on_device) == fired(on_host)
    assert [step for name, step in fired(on_host) if name == "high"] == [2, 3, 4, 8, 9, 10, 14, 15, 16]
    assert verify(on_device).identical
    assert verify(on_host).identical
    assert [row["step"] for row in on_device.decisions().to_pylist()] == [
        judged.outcome.step for judged in replay(load_policy(rules), on_device).decisions
    ]


def test_a_decision_on_a_late_value_says_both_steps(
    tmp_path: Path, rules: Path, device: Callable[[Any], OnDevice]
) -> None:
    """It holds the step of the value and the number of updates since then."""
    run = train(tmp_path / "runs", rules, device)
    decisions = [event for event in run.events() if event.kind == "decision"]
    lags = {event.attrs["controller"]: event.attrs.get("value_lag", 0) for event in reversed(decisions)}

    assert lags == {"spike": 1, "warm": 0, "worse": 0}


@pytest.mark.parametrize("lag", [0, 1, 5, 100])
def test_the_lag_may_be_chosen(tmp_path: Path, rules: Path, lag: int, device: Callable[[Any], OnDevice]) -> None:
    """A lag of zero waits for each copy."""
    run = train(tmp_path / "runs", rules, device, journal=Journal(value_lag=lag))

    assert [event.value_lag for event in late(run)][:5] == [min(lag, 5 - step) for step in range(1, 6)]


def test_sample_losses_of_a_device_come_late_too(tmp_path: Path, device: Callable[[Any], OnDevice]) -> None:
    """They have their ids, which may be on the host, and the values of their step."""
    with Recorder(tmp_path, samples=Samples(top=2)) as rec:
        for step in range(1, 5):
            losses = device([1.0 * step, 5.0 * step, 3.0 * step])
            rec.step(lr=0.1, samples=losses, sample_ids=["a", "b", "c"])

    rows = open_run(rec.folder).samples().to_pylist()

    assert [(row["step"], row["sample_id"], row["loss"], row["position"]) for row in rows] == [
        (step, name, loss * step, position)
        for step in range(1, 5)
        for name, loss, position in (("b", 5.0, 1), ("c", 3.0, 2))
    ]


def test_what_is_saved_before_a_checkpoint_holds_the_values_of_its_step(
    tmp_path: Path, rules: Path, device: Callable[[Any], OnDevice]
) -> None:
    """A checkpoint's state leaves no value on the device."""
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        for loss in LOSSES[:7]:
            rec.step(loss=device(loss))
        state = rec.state_dict()
        rec.step(loss=device(-1.0))
    with Recorder(tmp_path / "runs", rules=rules, resume=state) as again:
        for loss in LOSSES[7:]:
            again.step(loss=device(loss))

    run = open_run(rec.folder)

    assert repr(run.series("loss")["value"].to_pylist()) == repr(LOSSES)
    assert verify(run).identical


@pytest.mark.parametrize(("lag", "steps"), [(2, [3, 4, 5, 6, 7, 7, 7]), (4, [5, 5, 5, 7, 7, 7, 7])])
def test_nothing_is_waited_for_before_its_time(
    lag: int, steps: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step returns while its copy is in progress, also that of the last update of a batch."""
    arrived: list[int] = []

    class Copy:
        def __init__(self, tensors: Sequence[OnDevice]) -> None:
            self._host = [tensor.hidden for tensor in tensors]

        def wait(self) -> Sequence[torch.Tensor]:
            arrived.append(rec._live.position.step)
            return self._host

    monkeypatch.setitem(COPIES, "meta", Copy)
    with Recorder(tmp_path, journal=Journal(value_lag=lag)) as rec:
        for step in range(1, 8):
            rec.step(loss=OnDevice(float(step)))

    assert arrived == steps


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of values in each copy of a device that has real tensors."""
    sizes: list[int] = []

    class Copy:
        def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
            self._host = [tensor.detach().as_subclass(torch.Tensor).clone() for tensor in tensors]
            sizes.append(sum(tensor.numel() for tensor in self._host))

        def wait(self) -> Sequence[torch.Tensor]:
            return self._host

    monkeypatch.setitem(COPIES, "meta", Copy)
    return sizes


def test_the_values_of_consecutive_updates_come_in_one_copy(tmp_path: Path, copied: list[int]) -> None:
    """They are recorded at the second update after the last of them, each with its own step."""
    with Recorder(tmp_path, journal=Journal(value_lag=5)) as rec:
        for step in range(1, 14):
            rec.step(loss=DeviceTensor(torch.tensor(float(step))), norm=DeviceTensor(torch.tensor(2.0 * step)))

    events = late(open_run(rec.folder))

    assert copied == [8, 8, 8, 2]
    assert [(event.metrics["loss"], event.metrics["norm"]) for event in events] == [(n, 2 * n) for n in range(1, 14)]
    assert [event.value_lag for event in events] == [5, 4, 3, 2, 5, 4, 3, 2, 4, 3, 2, 1, 0]


def test_a_loop_may_write_into_a_tensor_that_it_has_recorded(tmp_path: Path, copied: list[int]) -> None:
    """The values are those at the call."""
    loss = DeviceTensor(torch.zeros(()))
    with Recorder(tmp_path) as rec:
        for step in range(1, 5):
            loss.fill_(float(step))
            rec.step(loss=loss)

    assert [event.metrics["loss"] for event in late(open_run(rec.folder))] == [1.0, 2.0, 3.0, 4.0]
    assert copied == [4]


def test_values_that_a_stack_would_round_are_copied_by_themselves(tmp_path: Path, copied: list[int]) -> None:
    """Also those of several types, and tensors that are no scalar."""
    given = [torch.tensor(2**24 + 1), torch.tensor(0.1, dtype=torch.float64), torch.tensor([0.5]), torch.tensor(True)]
    with Recorder(tmp_path) as rec:
        for each in given:
            rec.step(value=DeviceTensor(each), loss=DeviceTensor(torch.tensor(1.0)))

    assert [event.metrics["value"] for event in late(open_run(rec.folder))] == [2.0**24 + 1, 0.1, 0.5, 1.0]
    assert copied == [2, 2, 2, 2]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_loop_is_never_synchronized(tmp_path: Path) -> None:
    """Torch itself would raise."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        with Recorder(tmp_path) as rec:
            weight = torch.zeros(64, device="cuda")
            for _ in range(20):
                weight = weight + 1
                rec.step(loss=weight.mean(), samples=weight)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert open_run(rec.folder).series("loss")["value"].to_pylist() == [float(step) for step in range(1, 21)]


def test_a_copy_that_fails_costs_its_values_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training continues; the log holds the gap."""

    class Broken:
        def __init__(self, tensors: Sequence[OnDevice]) -> None:
            self._host = [tensor.hidden for tensor in tensors]

        def wait(self) -> Sequence[torch.Tensor]:
            if float(self._host[0]) == 2.0:
                raise RuntimeError("CUDA error: device-side assert triggered")
            return self._host

    monkeypatch.setitem(COPIES, "meta", Broken)
    with Recorder(tmp_path) as rec:
        for step in range(1, 6):
            rec.step(loss=OnDevice(float(step)))

    run = open_run(rec.folder)
    (gap,) = [event for event in run.events() if event.kind == "gap"]

    assert run.series("loss")["value"].to_pylist() == [1.0, 3.0, 4.0, 5.0]
    assert "device-side assert" in gap.attrs["first_error"]
    assert "device-side assert" in caplog.text


def test_values_of_several_types_of_devices_arrive_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that one device cannot give costs no other; the names stay with their values."""

    class Copy:
        def __init__(self, tensors: Sequence[OnDevice]) -> None:
            self._host = [tensor.hidden for tensor in tensors]

        def wait(self) -> Sequence[torch.Tensor]:
            return self._host

    class Elsewhere(OnDevice):
        device = torch.device("xpu")

    monkeypatch.setitem(COPIES, "xpu", Copy)
    bad = torch.ones((), device="meta")
    with Recorder(tmp_path) as rec:
        for step in range(1, 5):
            rec.step(a=Elsewhere(float(step)), bad=bad, b=Elsewhere(10.0 * step))

    assert [event.metrics for event in late(open_run(rec.folder))] == [
        {"a": float(step), "b": 10.0 * step} for step in range(1, 5)
    ]


def test_a_loop_that_counts_steps_anew_in_each_epoch_leaves_nothing_on_the_device(
    tmp_path: Path, rules: Path, device: Callable[[Any], OnDevice]
) -> None:
    """A value of a step after the loop's current one is due, too."""
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        for _ in range(3):
            for step, loss in enumerate(LOSSES):
                rec.step(step=step, loss=device(loss))
                assert len(rec._live.event_log.late) <= VALUE_LAG

    run = open_run(rec.folder)

    assert sum("loss" in event.metrics for event in late(run)) == 3 * len(LOSSES)
    assert verify(run).identical


def test_values_whose_wait_was_interrupted_are_recorded_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the loop, and the run records every value requested so far."""
    interrupts = iter([KeyboardInterrupt])

    class Copy:
        def __init__(self, tensors: Sequence[OnDevice]) -> None:
            self._host = [tensor.hidden for tensor in tensors]

        def wait(self) -> Sequence[torch.Tensor]:
            for interrupt in interrupts:
                raise interrupt
            return self._host

    monkeypatch.setitem(COPIES, "meta", Copy)
    rec = Recorder(tmp_path, journal=Journal(value_lag=2))
    rec.step(loss=OnDevice(1.0))
    rec.step(loss=OnDevice(2.0))
    with pytest.raises(KeyboardInterrupt), rec:
        rec.step(loss=OnDevice(3.0))

    run = open_run(rec.folder)

    assert run.status == "interrupted"
    assert run.series("loss")["value"].to_pylist() == [1.0, 2.0, 3.0]


def test_sample_losses_that_move_to_a_device_are_not_waited_for_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preceding steps had host samples, for which a function was compiled."""

    class Losses(OnDevice):
        dtype = torch.float32

        def data_ptr(self) -> int:
            return 0

        def detach(self) -> torch.Tensor:
            raise AssertionError("the recorder has waited for the device")

    monkeypatch.setitem(COPIES, "meta", lambda tensors: SimpleNamespace(wait=lambda: [t.hidden for t in tensors]))
    with Recorder(tmp_path) as rec:
        for _ in range(3):
            rec.step(loss=1.0, samples=torch.tensor([1.0]))
        rec.step(loss=1.0, samples=Losses([2.0]))

        assert len(rec._live.event_log.late) == 1
    assert open_run(rec.folder).samples()["loss"].to_pylist() == [1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("prefix", ["", "actor/"])
def test_the_metrics_of_a_watch_arrive_late_like_other_values(
    prefix: str, tmp_path: Path, device: Callable[[Any], OnDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All metrics of an emission come in one copy, at their own step, and rules decide as without a device."""
    rules, norm = tmp_path / "rules.yaml", f"{prefix}Gradients/norm"
    rules.write_text(
        f"""
controllers:
  - {{name: grows, triggers: [on_step_end], rule: delta(series("{norm}")) > 0, operations: []}}
  - {{name: rate, triggers: [on_step_end], rule: series("{prefix}LR") < 0.1, operations: []}}
"""
    )
    copies: list[int] = []
    on_host = Measurements.bundle

    def on_device(self: Measurements, compute: Any) -> Bundle | None:
        bundle = on_host(self, compute)
        assert bundle is not None
        copies.append(len(bundle.tensors))
        return bundle._replace(tensors=[device(tensor) for tensor in bundle.tensors])

    plain = watched_training(tmp_path / "plain", rules, prefix)
    monkeypatch.setattr(Measurements, "bundle", on_device)
    late = watched_training(tmp_path / "late", rules, prefix)

    def norms(run: Run) -> list[tuple[int, float]]:
        return [(event.step, event.metrics[norm]) for event in run.events() if norm in event.metrics]

    def decided(run: Run) -> list[tuple[str, int]]:
        judged = replay(load_policy(rules), run).decisions
        return [(decision.outcome.controller, decision.outcome.step) for decision in judged]

    lags = {event.value_lag for event in late.events() if norm in event.metrics and event.step < 9}
    assert norms(late) == norms(plain) != []
    assert lags == {2}
    assert copies == [1, 1, 1, 1]
    assert decided(late) == decided(plain) != []
    assert verify(late).identical


def watched_training(store: Path, rules: Path, prefix: str) -> Run:
    """Train nine updates with a watch that emits at the first and every third."""
    torch.manual_seed(0)
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(store, rules=rules, journal=Journal(value_lag=2), strict=True) as rec:
        rec.watch(model, optimizer, every=3, budget=None, prefix=prefix)
        for step in range(1, 10):
            optimizer.param_groups[0]["lr"] = 0.05 if step > 5 else 0.1
            optimizer.zero_grad()
            (model(torch.randn(16, 8)).square().mean() * step).backward()
            optimizer.step()
            rec.step(loss=float(step))
    return open_run(rec.folder)
