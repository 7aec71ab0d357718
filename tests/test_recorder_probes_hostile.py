"""Loops that treat a watch badly: failing passes, odd step numbers, wrong arguments, several watches."""

from __future__ import annotations

import gc
import logging
import math
import time
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probed_models import ResidualModel
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, grad, vmap

from steptape import Recorder, TelemetryError, open_run
from steptape.recorder.probes.norms import histogram
from steptape.store.events import Event

LEVEL_AT_2 = (
    "controllers:\n- {name: look, triggers: [on_step_end], rule: step == 2, once: true, operations: [detail.set(2)]}\n"
)
CUT_AT_4 = "controllers:\n- {name: cut, triggers: [on_step_end], rule: step == 4, operations: [lr.reduce(0.5)]}\n"


def emissions(rec: Recorder, name: str = "Probes/every") -> list[Event]:
    """Return the steps of a run that carry a metric."""
    events = open_run(rec.folder).events()
    return [event for event in events if event.kind == "step_end" and name in event.metrics]


def failures(rec: Recorder) -> list[str]:
    """Return the notes of a run about failed probes."""
    texts = [str(event.attrs.get("text")) for event in open_run(rec.folder).events() if event.kind == "annotation"]
    return [text for text in texts if "failed" in text]


def batch(seed: int) -> torch.Tensor:
    """Return a batch that depends on its number alone. Shape (16, 8)."""
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))


def watched() -> tuple[ResidualModel, torch.optim.SGD]:
    """Return a model and its optimizer."""
    torch.manual_seed(0)
    model = ResidualModel()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def backward(model: Any, step: int) -> float:
    """Run forward and backward pass, and return the norm of all gradients."""
    model.zero_grad()
    model(batch(step)).square().mean().backward()
    return norm_of(model)


def norm_of(model: nn.Module) -> float:
    """Return the norm of all gradients of a model."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return math.sqrt(sum(float(each.double().square().sum()) for each in gradients))


def fail(_: torch.Tensor) -> None:
    """Fail in a backward pass."""
    raise RuntimeError("out of memory")


def test_the_update_after_a_failed_backward_pass_has_its_norm(tmp_path: Path) -> None:
    """A loop that repeats an update after an error of its backward pass loses no metric."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=1, budget=None)
        x = model.embedding(batch(0))
        x.register_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            (model(batch(0)).sum() + model.head(x).sum()).backward()
        expected = backward(model, 1)
        optimizer.step()
        rec.step()

    assert emissions(rec)[0].metrics["Gradients/norm"] == pytest.approx(expected, rel=1e-6)


def test_a_probe_that_fails_in_the_backward_pass_does_not_end_it(tmp_path: Path) -> None:
    """A broken scaler costs the norms, not the training."""

    class Broken:
        def is_enabled(self) -> bool:
            raise RuntimeError("no scaler for you")

    model, optimizer = watched()
    with Recorder(tmp_path) as rec:
        rec.watch(model, optimizer, every=1, budget=None, scaler=Broken())
        for step in range(3):
            backward(model, step)
            optimizer.step()
            rec.step()

    assert failures(rec) == ["probes failed at the backward pass: RuntimeError: no scaler for you"]


def test_failures_with_numbers_in_their_text_are_said_a_few_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A text that differs each time does not fill the log."""

    class Counting:
        calls = 0

        def is_enabled(self) -> bool:
            self.calls += 1
            raise RuntimeError(f"failure {self.calls}")

    model, optimizer = watched()
    with Recorder(tmp_path) as rec, caplog.at_level(logging.WARNING, "steptape"):
        rec.watch(model, optimizer, every=1, budget=None, scaler=Counting())
        for step in range(20):
            backward(model, step)
            optimizer.step()
            rec.step()

    assert len(failures(rec)) == 5


@pytest.mark.parametrize("every", [1, 3])
def test_a_step_recorded_before_its_update_mixes_no_updates(every: int, tmp_path: Path) -> None:
    """With ``rec.step`` before the optimizer's step, the gradient before clipping is right and the rest absent."""
    model, optimizer = watched()
    expected = []
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, every=every, budget=None)
        for step in range(7):
            expected.append(backward(model, step))
            rec.step()
            optimizer.step()

    found = emissions(rec)

    assert [event.metrics["Gradients/norm"] for event in found] == pytest.approx(
        [expected[event.step - 1] for event in found], rel=1e-6
    )
    assert not any("Gradients/norm_used" in event.metrics for event in found)
    assert "after rec.step" in watch.absent["Gradients/norm_used"]


def test_steps_that_leave_out_multiples_of_the_cadence_emit(tmp_path: Path) -> None:
    """A loop that counts by fours emits once in each ten steps of its own count."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=10, budget=None)
        for step in range(4, 84, 4):
            backward(model, step)
            optimizer.step()
            rec.step(step=step)

    steps = [event.step for event in emissions(rec)]

    assert steps[0] == 4
    assert all(8 <= later - earlier <= 12 for earlier, later in pairwise(steps))


def test_slow_measurements_continue_after_steps_restart(tmp_path: Path) -> None:
    """A count that begins anew in each epoch, or a rollback, does not end the checks."""
    model, optimizer = watched()
    with Recorder(tmp_path) as rec:
        rec.watch(model, optimizer, every=5, check_every=10, budget=None)
        for step in (*range(1, 21), *range(1, 21)):
            backward(model, step)
            optimizer.step()
            rec.step(step=step)

    checks = [event.step for event in open_run(rec.folder).events(samples=True) if event.vectors]

    assert checks == [1, 10, 20, 2, 10, 20]


def test_the_end_of_a_run_removes_all_hooks(tmp_path: Path) -> None:
    """A model that trains on after its run costs nothing."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, every=1, budget=None)
        backward(model, 0)
        optimizer.step()
        rec.step()

    assert watch.is_closed
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks


def test_a_loop_watches_one_model_after_another(tmp_path: Path) -> None:
    """A deleted model leaves its prefix free, as in cross-validation."""
    with Recorder(tmp_path, strict=True) as rec:
        for fold in range(3):
            model, optimizer = watched()
            rec.watch(model, optimizer, every=1, budget=None)
            backward(model, fold)
            optimizer.step()
            rec.step()
            del model, optimizer
            gc.collect()

    assert [event.step for event in emissions(rec)] == [1, 2, 3]


def test_a_state_is_loaded_after_the_watch_was_made(tmp_path: Path) -> None:
    """A watch without an optimizer records nothing before the first update."""
    model, _ = watched()
    with Recorder(tmp_path, strict=True) as rec:
        rec.step()
        state = rec.state_dict()
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model)
        rec.load_state_dict(state)
        backward(model, 1)
        rec.step()

    assert emissions(rec)[-1].step == 2


def test_a_rule_sets_the_level_of_all_watches_and_keeps_none_alive(tmp_path: Path) -> None:
    """``detail.set`` is an order to the loop, not to one watch."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(LEVEL_AT_2)
    model, optimizer = watched()
    with Recorder(tmp_path / "runs", rules=policy, strict=True) as rec:
        closed = weakref.ref(watch := rec.watch(model, optimizer))
        watch.close()
        del watch
        gc.collect()
        first, second = (rec.watch(model, optimizer, prefix=prefix) for prefix in ("a/", "b/"))
        for step in range(3):
            backward(model, step)
            optimizer.step()
            rec.step()

    assert closed() is None
    assert (first.level, second.level) == ("debug", "debug")


def test_the_rate_before_is_the_one_that_rules_made(tmp_path: Path) -> None:
    """A reduced rate differs from the one before at one update only, whichever attached first."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(CUT_AT_4)
    for is_watch_first in (False, True):
        model, optimizer = watched()
        with Recorder(tmp_path / "runs", rules=policy, strict=True) as rec:
            if not is_watch_first:
                rec.learning_rate(optimizer)
            rec.watch(model, optimizer, every=100, budget=None)
            if is_watch_first:
                rec.learning_rate(optimizer)
            for step in range(7):
                backward(model, step)
                optimizer.step()
                rec.step()

        rates = [(e.step, e.metrics["LR/previous"], e.metrics["LR"]) for e in emissions(rec, "LR/previous")]
        assert rates == [(5, 0.1, 0.05)]


def test_a_later_backward_pass_belongs_to_another_update(tmp_path: Path) -> None:
    """A generator's pass through the discriminator changes nothing of the discriminator's norms."""
    critic, optimizer = watched()
    generator = nn.Linear(8, 8)
    expected = []
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(critic, optimizer, every=1, budget=None)
        for step in range(3):
            expected.append(backward(critic, step))
            optimizer.step()
            critic(generator(batch(step))).square().mean().backward()
            rec.step()

    found = emissions(rec)

    assert [event.metrics["Gradients/norm"] for event in found] == pytest.approx(expected, rel=1e-6)
    assert [event.metrics["Gradients/clip_coef"] for event in found] == pytest.approx([1, 1, 1])


def test_gradients_outside_of_the_optimizer_are_not_clipped(tmp_path: Path) -> None:
    """Parameters that another optimizer trains take no part in the clip coefficient."""
    model, _ = watched()
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=1, budget=None)
        backward(model, 0)
        optimizer.step()
        rec.step()

    metrics = emissions(rec)[0].metrics

    assert metrics["Gradients/norm_used"] < 0.9 * metrics["Gradients/norm"]
    assert (metrics["Gradients/clip_coef"], metrics["Gradients/clipped"]) == (1, 0)


@pytest.mark.parametrize("every", [1, 2])
def test_a_model_that_trains_in_evaluation_mode_has_its_norms(every: int, tmp_path: Path) -> None:
    """A forgotten ``model.train()`` costs the first gradient before clipping alone."""
    model, optimizer = watched()
    model.eval()
    expected = []
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=every, budget=None)
        for step in range(5):
            expected.append(backward(model, step))
            optimizer.step()
            rec.step()

    first, *found = emissions(rec)

    assert "Gradients/norm" not in first.metrics
    assert [event.metrics["Gradients/norm"] for event in found] == pytest.approx(
        [expected[event.step - 1] for event in found], rel=1e-6
    )


def test_gradients_that_the_loop_sets_are_explained(tmp_path: Path) -> None:
    """No backward pass fills them, so there is no norm before clipping."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, every=1, budget=None)
        for step in range(2):
            gradients = torch.autograd.grad(model(batch(step)).square().mean(), [*model.parameters()])
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            rec.step()

    assert "Gradients/norm_used" in emissions(rec)[-1].metrics
    assert "sets them by itself" in watch.absent["Gradients/norm"]


def test_gradients_removed_before_the_update_are_explained(tmp_path: Path) -> None:
    """``zero_grad`` in the wrong place shows."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, every=1, budget=None)
        backward(model, 0)
        optimizer.zero_grad()
        optimizer.step()
        rec.step()

    assert "had a gradient" in watch.absent["Gradients/norm_used"]


def test_transforms_of_torch_func_leave_an_emission_whole(tmp_path: Path) -> None:
    """Gradients for each sample, as differentially private training takes them, break nothing."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=1, budget=None)
        for step in range(2):
            parameters = {name: each.detach() for name, each in model.named_parameters()}

            def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
                return torch.as_tensor(functional_call(model, parameters, (x[None],)).square().mean())

            gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, batch(step))
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name].mean(0)
            optimizer.step()
            rec.step()

    assert failures(rec) == []
    assert len(emissions(rec)) == 2


def test_fake_tensors_leave_an_emission_whole(tmp_path: Path) -> None:
    """An estimate of memory in the middle of an update breaks nothing."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=1, budget=None)
        expected = backward(model, 0)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            model(mode.from_tensor(batch(0)))
        optimizer.step()
        rec.step()

    assert failures(rec) == []
    assert emissions(rec)[0].metrics["Gradients/norm"] == pytest.approx(expected, rel=1e-6)


def test_frozen_weights_of_eight_bits_count(tmp_path: Path) -> None:
    """PyTorch computes no norm of them, so they are measured in a wider type."""
    model, optimizer = watched()
    model.register_parameter("small", nn.Parameter(torch.full((4, 4), 2.0).to(torch.float8_e4m3fn), False))
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, level="debug", every=1, budget=None)
        backward(model, 0)
        optimizer.step()
        rec.step()

    assert emissions(rec)[0].metrics["weights/small/norm"] == pytest.approx(8)


def test_complex_gradients_have_the_mean_of_both_parts(tmp_path: Path) -> None:
    """Mean and deviation are those of real and imaginary parts together."""
    model, optimizer = watched()
    phase = nn.Parameter(torch.randn(6, dtype=torch.complex64))
    model.register_parameter("phase", phase)
    optimizer.add_param_group({"params": [phase]})
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, level="debug", every=1, budget=None)
        model(batch(0))
        (phase * torch.randn(6, dtype=torch.complex64)).abs().square().sum().backward()  # type: ignore[no-untyped-call]
        assert phase.grad is not None
        parts = torch.view_as_real(phase.grad).double().numpy().copy()
        optimizer.step()
        rec.step()

    metrics = emissions(rec)[0].metrics

    assert metrics["gradients/phase/mean"] == pytest.approx(parts.mean(), rel=1e-5)
    assert metrics["gradients/phase/std"] == pytest.approx(parts.std(), rel=1e-5)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_histogram_of_short_numbers_is_that_of_numpy(kind: torch.dtype) -> None:
    """Differences of 16-bit numbers neither overflow nor round elements into another bin."""
    values = torch.linspace(-60000, 60000, 1001).to(kind)

    counts = histogram(values)[2:].numpy()

    assert (counts == np.histogram(values.double().numpy(), 64)[0]).all()


def test_the_time_of_the_first_update_includes_no_probe_and_all_of_the_loop(tmp_path: Path) -> None:
    """The search for the model's structure counts neither as waiting nor as computing."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, level="debug", every=1, budget=None)
        backward(model, 0)
        time.sleep(0.05)
        optimizer.step()
        rec.step()

    assert emissions(rec)[0].metrics["Time/step_seconds"] >= 0.05


def test_the_probe_batch_of_one_watch_is_no_evaluation_of_another(tmp_path: Path) -> None:
    """Two recorders on one model count its own passes alone."""

    class Labelled(ResidualModel):
        def forward(self, x: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
            """Ignore the labels."""
            return super().forward(x)

    model = Labelled()
    held = {"x": batch(0), "labels": torch.zeros(16, 8, dtype=torch.int64)}
    with Recorder(tmp_path, strict=True) as rec, Recorder(tmp_path, strict=True) as other:
        rec.watch(model, every=1, budget=None, probe_batch=held, probe_loss=lambda m, given: m(**given).mean())
        other.watch(model, every=1, budget=None)
        model(batch(0))
        rec.step()
        other.step()
        other.evaluate(loss=1)

    evaluated = [event.metrics for event in open_run(other.folder).events() if event.kind == "evaluate"]

    assert evaluated == [{"loss": 1}]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"sites": {"blocks": "layers.*"}}, "no module of the model"),
        ({"sites": {"blocks": 3}}, "sites"),
        ({"sites": "blocks"}, "not a mapping"),
        ({"probe_batch": "text"}, "probe_batch"),
        ({"prefix": 5}, "prefix"),
        ({"scaler": 3}, "scaler"),
        ({"probe_loss": 3}, "probe_loss"),
    ],
)
def test_a_wrong_argument_is_refused_at_once_and_attaches_nothing(
    arguments: dict[str, Any], what: str, tmp_path: Path
) -> None:
    """The loop hears of it before the first update, in which it would cost all metrics."""
    model, optimizer = watched()
    with Recorder(tmp_path) as rec, pytest.raises(TelemetryError, match=what):
        rec.watch(model, optimizer, **arguments)

    assert not model._forward_pre_hooks


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    """A function in its place gives an error that says so."""
    given: Any = math.sqrt

    with Recorder(tmp_path) as rec, pytest.raises(TelemetryError, match="not a module"):
        rec.watch(given)


def test_a_level_may_be_a_number(tmp_path: Path) -> None:
    """The argument takes what ``set_level`` takes."""
    number: Any = 2

    with Recorder(tmp_path) as rec:
        assert rec.watch(nn.Linear(2, 2), level=number).level == "debug"


def test_a_level_set_in_the_middle_of_an_emission_shows_at_the_next_update(tmp_path: Path) -> None:
    """The emission under way keeps its level, and the next update emits at the new one."""
    model, optimizer = watched()
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, every=100, budget=None)
        for step in range(4):
            backward(model, step)
            if step == 0:
                watch.set_level("debug")
            optimizer.step()
            rec.step()

    assert [(event.step, event.metrics["Probes/level"]) for event in emissions(rec)] == [(1, 1), (2, 2)]


def test_a_disabled_watch_has_the_attributes_of_a_watch(tmp_path: Path) -> None:
    """A loop that prints them runs with a disabled recorder, too."""
    watch = Recorder(tmp_path, mode="disabled").watch(nn.Linear(2, 2))

    assert (watch.level, watch.every, watch.prefix) == ("minimal", 1, "")
