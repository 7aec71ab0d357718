"""``rec.watch`` measures gradients, parameters and updates in any loop, and leaves the training as it is."""

from __future__ import annotations

import copy
import gc
import io
import logging
import math
import pickle
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probed_models import ResidualModel, arrays, expected_numbers, gradients
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from steptape import Recorder, TelemetryError, open_run, verify
from steptape.recorder.probes.norms import tails
from steptape.recorder.probes.watch import CadenceBudget
from steptape.rules.metric_catalogue import entry_of
from steptape.store.events import Event
from steptape.store.run import Run

BLOCKS = [[f"blocks.{index}.up.weight", f"blocks.{index}.down.weight"] for index in range(4)]


def emissions(folder: Path, name: str = "Probes/every") -> list[Event]:
    """Return the steps of a run that carry a metric."""
    events = open_run(folder).events(samples=True)
    return [event for event in events if event.kind == "step_end" and name in event.metrics]


def notes(folder: Path) -> list[str]:
    """Return the texts of a run's annotations."""
    return [str(event.attrs["text"]) for event in open_run(folder).events() if event.kind == "annotation"]


def batch(seed: int) -> torch.Tensor:
    """Return a batch that depends on its number alone. Shape (16, 8)."""
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))


def train(rec: Recorder | None, model: Any, optimizer: Any, steps: int, clip_norm: float | None = None) -> None:
    """Train a model, with a recorder or without."""
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_([*model.parameters()], clip_norm)
        optimizer.step()
        if rec is not None:
            rec.step(loss=loss)


def test_norms_ratios_and_quantiles_are_those_of_numpy(tmp_path: Path) -> None:
    """Each number of an emission is that of NumPy over the same tensors, to 1e-6."""
    torch.manual_seed(0)
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=3, clip_norm=0.5, budget=None)
        for step in range(7):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            before, weights = gradients(model), arrays(dict(model.named_parameters()))
            nn.utils.clip_grad_norm_([*model.parameters()], 0.5)
            used = gradients(model)
            optimizer.step()
            rec.step()
            after = arrays(dict(model.named_parameters()))
            if step + 1 in (1, 3, 6):
                expected.append(expected_numbers(before, used, weights, after, BLOCKS, 0.1, 0.5))

    found = emissions(rec.folder)

    assert [event.step for event in found] == [1, 3, 6]
    for event, numbers in zip(found, expected, strict=True):
        assert {name: event.metrics[name] for name in numbers} == pytest.approx(numbers, rel=1e-6)


def test_single_tensors_and_histograms_are_those_of_numpy(tmp_path: Path) -> None:
    """At debug, each tensor has norm, mean, deviation, exact update and counts."""
    torch.manual_seed(0)
    model = ResidualModel(depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, level="debug", budget=None)
        model(batch(0)).square().mean().backward()
        gradient, weights = gradients(model), arrays(dict(model.named_parameters()))
        optimizer.step()
        rec.step()
        after = arrays(dict(model.named_parameters()))

    (event,) = emissions(rec.folder)

    for name, array in gradient.items():
        assert event.metrics[f"gradients/{name}/norm"] == pytest.approx(np.linalg.norm(array), rel=1e-5)
        assert event.metrics[f"gradients/{name}/mean"] == pytest.approx(array.mean(), abs=1e-6)
        assert event.metrics[f"gradients/{name}/std"] == pytest.approx(array.std(), rel=1e-4, abs=1e-6)
        moved = np.linalg.norm(after[name] - weights[name])
        assert event.metrics[f"updates/{name}/update_norm"] == pytest.approx(moved, rel=1e-4)
        assert event.metrics[f"weights/{name}/norm"] == pytest.approx(np.linalg.norm(after[name]), rel=1e-5)
        share = array.mean() ** 2 / np.square(array).mean()
        assert event.metrics[f"gradients/{name}/mean_share"] == pytest.approx(share, rel=1e-3, abs=1e-6)
        counts = np.asarray(event.vectors[f"gradients_hist/{name}"])
        assert counts[0] == pytest.approx(array.min(), rel=1e-6)
        assert counts[1] == pytest.approx(array.max(), rel=1e-6)
        assert counts[2:].sum() == array.size
    assert event.metrics["Optimizer/opt_state_finite"] == 1


def test_tails_of_a_tensor_are_those_of_numpy(tmp_path: Path) -> None:
    """At a check: the shares beyond ten root mean squares, and within a thousandth of one."""
    model = nn.Linear(1000, 4, bias=False)
    inputs = torch.cat([torch.zeros(600), torch.randn(396) * 0.1, torch.full((4,), 50.0)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, level="debug", budget=None)
        model(inputs).sum().backward()
        optimizer.step()
        rec.step()

    (event,) = emissions(rec.folder)
    for name, array in (("gradients", inputs.numpy()), ("weights", model.weight.detach().numpy())):
        rms = np.sqrt(np.square(array, dtype=np.float64).mean())
        far = (np.abs(array) > 10 * rms).mean()
        assert event.metrics[f"{name}/weight/outlier_rate_k10"] == pytest.approx(far)
    near = (np.abs(inputs.numpy()) <= np.sqrt(np.square(inputs.numpy(), dtype=np.float64).mean()) / 1000).mean()
    assert event.metrics["gradients/weight/near_zero_rate"] == pytest.approx(near)
    assert event.metrics["gradients/weight/outlier_rate_k10"] == pytest.approx(0.004)


def test_tails_of_nothing_and_of_what_is_not_finite_are_not_known() -> None:
    """Tensors of all types count: halves, complex ones, and those of zeros, all of which are near zero."""
    zeros, halves = torch.zeros(5), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float16)

    assert [value.item() for value in tails(zeros)] == [0.0, 1.0]
    assert [value.item() for value in tails(halves)] == pytest.approx([0.0, 1 / 3])
    assert [value.item() for value in tails(halves.to(torch.complex64))] == pytest.approx([0.0, 4 / 6])
    for unknown in (torch.zeros(0), torch.tensor([1.0, math.nan]), torch.tensor([math.inf])):
        assert all(math.isnan(value.item()) for value in tails(unknown))


def test_a_single_element_has_no_deviation(tmp_path: Path) -> None:
    """Its gradient is its mean, so that a rule about deviations of 0 leaves it alone."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, level="debug", budget=None)
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        rec.step()

    (event,) = emissions(rec.folder)
    assert event.metrics["gradients/weight/mean"] == 1.0
    assert not {"gradients/weight/std", "gradients/weight/mean_share"} & event.metrics.keys()


def test_every_recorded_metric_is_in_the_catalogue_and_at_its_level(tmp_path: Path) -> None:
    """No name is recorded that the catalogue lacks, nor below its level."""
    for level in ("minimal", "standard", "debug"):
        model = ResidualModel()
        optimizer = torch.optim.AdamW(model.parameters())
        with Recorder(tmp_path, strict=True) as rec:
            rec.watch(model, optimizer, level=level, budget=None)
            train(rec, model, optimizer, 2)

        (event,) = emissions(rec.folder)

        entries = {name: entry_of(name) for name in (*event.metrics, *event.vectors)}
        assert [name for name, entry in entries.items() if entry is None] == []
        assert [name for name, entry in entries.items() if entry and level not in entry.levels] == []


def test_a_watch_takes_the_place_of_that_of_another_recorder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cell that runs twice leaves no hook of the first recorder behind."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = (Recorder(tmp_path, quiet=True) for _ in range(2))
    watches = [rec.watch(model, optimizer, every=1, budget=None) for rec in (first, second)]
    hooks = len(model._forward_pre_hooks)
    train(second, model, optimizer, 1)
    first.step()
    watches[1].close()
    second.close()
    first.close()

    assert [watch.is_closed for watch in watches] == [True, True]
    assert len(model._forward_pre_hooks) == 0 < hooks
    assert (len(emissions(first.folder)), len(emissions(second.folder))) == (0, 1)
    assert caplog.messages == [f"watch: the run {first.run_id} had this model; its watch ends"]


def test_standard_is_bounded_by_blocks_and_debug_grows_with_tensors(tmp_path: Path) -> None:
    """More tensors in a block add nothing at standard, and nothing of a block is there at minimal."""
    counts = {}
    for level in ("minimal", "standard", "debug"):
        for extra in (0, 30):
            model = ResidualModel(extra=extra)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with Recorder(tmp_path, strict=True) as rec:
                rec.watch(model, optimizer, level=level, budget=None)
                train(rec, model, optimizer, 1)
            (event,) = emissions(rec.folder)
            counts[level, extra] = len(event.metrics) + len(event.vectors)
            if level == "minimal":
                assert not [name for name in event.metrics if "block_" in name]
                assert not event.vectors

    assert counts["standard", 0] == counts["standard", 30]
    assert counts["minimal", 0] == counts["minimal", 30]
    assert counts["debug", 30] > counts["debug", 0] + 4 * 30


def test_a_watched_training_is_bit_equal_to_one_without(tmp_path: Path) -> None:
    """Probes change neither weights nor the random numbers of the loop."""
    trained = []
    for is_watched in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(ResidualModel(), nn.Dropout(0.5))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Recorder(tmp_path, strict=True) as rec:
            if is_watched:
                rec.watch(model, optimizer, level="debug", every=2, budget=None, check_every=4)
            train(rec, model, optimizer, 12, clip_norm=0.1)
        trained.append([*model.parameters()])

    assert all(torch.equal(plain, watched) for plain, watched in zip(*trained, strict=True))


def clip_twice_iterated(parameters: Iterable[nn.Parameter], clip_norm: float) -> None:
    """Clip as a helper does that exhausts a generator before it scales."""
    norm = torch.stack([each.grad.norm() for each in parameters if each.grad is not None]).norm()
    for each in parameters:
        if each.grad is not None:
            each.grad.mul_(min(1.0, clip_norm / float(norm)))


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that read a tensor's value on the host: on a GPU each would wait for the device."""

    NAMES = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "bincount", "unique")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__.split(".")[-1] in self.NAMES
        return func(*args, **(kwargs or {}))


def host_reads(folder: Path, **watched: Any) -> int:
    """Return the reads of a training of twelve updates, with a watch if it has arguments."""
    torch.manual_seed(0)
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(folder, strict=True) as rec:
        if watched:
            rec.watch(model, optimizer, budget=None, **watched)
        with HostReads() as reads:
            for step in range(12):
                optimizer.zero_grad()
                loss = model(batch(step)).square().mean()
                loss.backward()
                optimizer.step()
                rec.step(loss=loss.detach().item())  # The loop's own read.
    return int(reads.count)


@pytest.mark.parametrize("level", ["minimal", "standard", "debug"])
def test_probes_read_no_tensor_on_the_host(level: str, tmp_path: Path) -> None:
    """Neither silent updates nor emissions add an operation that would wait for a device."""
    assert host_reads(tmp_path, level=level, every=5, check_every=10) == 12


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_silent_updates_never_wait(tmp_path: Path) -> None:
    """With torch's synchronisation as an error, silent updates pass, and their losses arrive later."""
    model = ResidualModel().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=100, budget=None)
        given = batch(0).cuda()
        for step in range(30):
            if step == 5:
                torch.cuda.set_sync_debug_mode("error")
            optimizer.zero_grad()
            loss = model(given).square().mean()
            loss.backward()
            optimizer.step()
            rec.step(loss=loss)
        torch.cuda.set_sync_debug_mode("default")

    assert [event.step for event in emissions(rec.folder)] == [1]


def test_a_clip_that_does_nothing_shows(tmp_path: Path) -> None:
    """A helper that iterates twice clips nothing: the norm that the optimizer uses contradicts the coefficient."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, clip_norm=0.01, budget=None)
        model(batch(0)).square().mean().backward()
        clip_twice_iterated(model.parameters(), 0.01)
        optimizer.step()
        rec.step()

    (event,) = emissions(rec.folder)

    coefficient, norm = event.metrics["Gradients/clip_coef"], event.metrics["Gradients/norm"]
    assert event.metrics["Gradients/norm_used"] == pytest.approx(norm)
    assert coefficient * norm == pytest.approx(0.01, rel=1e-3)
    assert coefficient < 0.5


@pytest.mark.parametrize("every", [1, 3])
def test_each_update_counts_once_in_throughput(every: int, tmp_path: Path) -> None:
    """Samples per second and updates per second share the seconds."""
    torch.manual_seed(0)
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, quiet=True) as rec:
        rec.watch(model, optimizer, every=every, budget=None)
        train(rec, model, optimizer, 7)

    rates = [event.metrics for event in emissions(rec.folder, "Throughput/steps_per_second")]

    per_update = [each["Throughput/samples_per_second"] / each["Throughput/steps_per_second"] for each in rates]
    assert per_update == pytest.approx([len(batch(0))] * len(rates))
    assert rates


def test_a_jump_of_the_rate_is_recorded_at_its_update(tmp_path: Path) -> None:
    """Between emissions, an update whose rate differs by more than a tenth records both rates."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=100, budget=None)
        for step in range(1, 8):
            optimizer.param_groups[0]["lr"] = {1: 0.1, 2: 0.01, 5: 0.0099}.get(step, optimizer.param_groups[0]["lr"])
            model(batch(step)).sum().backward()
            optimizer.step()
            rec.step()

    found = {event.step: event.metrics for event in emissions(rec.folder, "LR")}

    assert [*found] == [1, 2]
    assert found[2] == {"LR": 0.01, "LR/previous": 0.1}


@pytest.mark.parametrize("accumulated", [1, 3])
def test_gradients_are_those_of_the_whole_update(accumulated: int, tmp_path: Path) -> None:
    """With accumulation, the norm is that of the accumulated gradients."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, budget=None)
        for step in range(accumulated):
            model(batch(step)).sum().backward()
        expected = np.sqrt(sum((array**2).sum() for array in gradients(model).values()))
        optimizer.step()
        rec.step()

    (event,) = emissions(rec.folder)

    assert event.metrics["Gradients/norm"] == pytest.approx(expected, rel=1e-6)


def test_a_closure_is_measured_as_it_ran(tmp_path: Path) -> None:
    """LBFGS computes its gradients within its step."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.as_tensor(model(batch(0)).square().mean())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, budget=None)
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        expected = np.sqrt(sum((array**2).sum() for array in gradients(model).values()))
        rec.step()

    (event,) = emissions(rec.folder)

    assert event.metrics["Gradients/norm_used"] == pytest.approx(expected, rel=1e-6)


def test_a_gan_with_two_optimizers_and_two_watches(tmp_path: Path) -> None:
    """Each model has its metrics under its own prefix, from its own optimizer's step."""
    generator, critic = ResidualModel(), ResidualModel(depth=2, width=2)
    critic.head = nn.Linear(2, 1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.2)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(generator, of_generator, prefix="G/", budget=None)
        rec.watch(critic, of_critic, prefix="D/", budget=None)
        for step in range(2):
            of_critic.zero_grad()
            critic(generator(batch(step)).detach()).mean().backward()
            of_critic.step()
            of_generator.zero_grad()
            critic(generator(batch(step))).mean().backward()
            of_generator.step()
            rec.step()
        with pytest.raises(TelemetryError, match="prefix"):
            rec.watch(critic, of_critic, prefix="D/")

    (event,) = emissions(rec.folder, "G/Probes/every")

    assert event.metrics["G/LR"] == 0.1
    assert event.metrics["D/LR"] == 0.2
    assert event.metrics["G/Gradients/block_3/norm"] > 0
    assert event.metrics["D/Updates/block_1/ratio"] > 0


def test_one_watch_of_several_optimizers_takes_each_rate(tmp_path: Path) -> None:
    """The ratio of a block uses the rate of the optimizer that updates it."""
    model = ResidualModel(depth=2)
    slow = torch.optim.SGD(model.blocks[0].parameters(), lr=1e-3)
    fast = torch.optim.SGD(model.blocks[1].parameters(), lr=1.0)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, [slow, fast], budget=None)
        model(batch(0)).sum().backward()
        for optimizer in (slow, fast):
            optimizer.step()
        rec.step()

    metrics = emissions(rec.folder)[0].metrics

    grads = metrics["Gradients/block_0/norm"] / metrics["Gradients/block_1/norm"]
    ratios = metrics["Updates/block_0/ratio"] / metrics["Updates/block_1/ratio"]
    assert ratios / grads == pytest.approx(1e-3, rel=0.5)


def scaled_training(
    store: Path, rules: str | None = None, *, accumulation: int = 1, fused: bool = False, says: bool | None = None
) -> Run:
    """Train 40 updates with a scale that overflows at the first ones, and record the norm of the gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    with Recorder(store, rules=rules, strict=True) as rec:
        rec.watch(model, optimizer, scaler=scaler, clip_norm=1.0, budget=None)
        for step in range(40):
            optimizer.zero_grad()
            for micro in range(accumulation):
                with torch.autocast("cpu", torch.float16):
                    loss = model(batch(step + 100 * micro)).square().mean() / accumulation
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if rec.step(loss=loss, grad_norm=norm, applied=says).should_stop:
                break
    return open_run(rec.folder)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("fused", [False, True])
def test_an_update_that_the_scaler_skips_counts_as_not_applied(accumulation: int, fused: bool, tmp_path: Path) -> None:
    """The loop need not say so, whether the optimizer is called or skips it itself; a rule on norms trains on."""
    run = scaled_training(tmp_path, "nano_train", accumulation=accumulation, fused=fused)

    steps = [event for event in run.events() if event.kind == "step_end"]
    overflows = [event.step for event in steps if not np.isfinite(event.metrics["grad_norm"])]
    assert overflows[:3] == [1, 2, 3]
    assert [event.step for event in steps if event.attrs.get("applied") is False] == overflows
    assert (len(steps), run.status) == (40, "completed")
    assert verify(run).identical


@pytest.mark.parametrize("says", [True, False])
def test_what_the_loop_says_of_an_update_counts_more_than_the_scaler(says: bool, tmp_path: Path) -> None:
    """It may know of another optimizer."""
    run = scaled_training(tmp_path, says=says)

    assert run.progress().skipped == (0 if says else 40)


@pytest.mark.parametrize(("says", "reads"), [(None, 3), (True, 0), (False, 0)])
def test_what_a_fused_optimizer_skipped_is_read_only_if_the_loop_does_not_say_it(
    says: bool | None, reads: int, tmp_path: Path
) -> None:
    """On a GPU each read of ``found_inf`` would wait for the device."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, scaler=scaler, every=1000, budget=None)
        counts = []
        for step in range(4):
            scaler.scale(model(batch(step)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            with HostReads() as host:
                rec.step(applied=says)
            counts.append(host.count)

    assert sum(counts[1:]) == reads  # The first update emits.


def test_what_an_optimizer_did_before_the_loop_said_so_does_not_count_for_the_next_update(tmp_path: Path) -> None:
    """The update that the loop speaks of ends with its call, also for the scaler."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, scaler=scaler, budget=None)
        for says, factor in ((True, 1.0), (None, float("inf"))):
            optimizer.zero_grad()
            scaler.scale(model(batch(0)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            rec.step(applied=says)

    assert [event.step for event in open_run(rec.folder).events() if event.attrs.get("applied") is False] == [2]


def test_a_skipped_update_of_a_scaler_is_no_failure(tmp_path: Path) -> None:
    """The scaler's factor is taken out of the norms, and a step that it skips has no norm in use."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, scaler=scaler, every=1, budget=None)
        for step in range(2):
            optimizer.zero_grad()
            loss = model(batch(step)).sum() * (float("inf") if step else 1.0)
            scaler.scale(loss).backward()
            expected = np.sqrt(sum((array**2).sum() for array in gradients(model).values())) / 1024
            scaler.step(optimizer)
            scaler.update()
            rec.step()
            if not step:
                first = expected

    whole, skipped = emissions(rec.folder)

    assert whole.metrics["Gradients/norm"] == pytest.approx(first, rel=1e-6)
    assert whole.metrics["Gradients/norm_used"] == pytest.approx(first, rel=1e-6)
    assert not np.isfinite(skipped.metrics["Gradients/norm"])
    assert "Gradients/norm_used" not in skipped.metrics


class Odd(nn.Module):
    """Holds a frozen, a shared, an unused, a complex, a sparse, a half and an empty parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8, sparse=True)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.shared = nn.Linear(8, 8)
        self.again = self.shared
        self.unused = nn.Linear(8, 8)
        self.phase = nn.Parameter(torch.ones(8, dtype=torch.complex64))
        self.small = nn.Linear(8, 8).bfloat16()
        self.nothing = nn.Parameter(torch.empty(0))
        self.lazy = nn.LazyLinear(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Use all but the unused one."""
        x = self.again(self.shared(self.frozen(self.embedding(ids))))
        x = (x * self.phase).abs() + self.nothing.sum()
        return torch.as_tensor(self.lazy(self.small(x.bfloat16()).float()))


def test_odd_parameters_are_measured_as_far_as_they_can_be(tmp_path: Path) -> None:
    """Shared weights count once; what has no values yet is left out until it has."""
    model = Odd()
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, level="debug", every=1, budget=None)
        for step in range(2):
            model.zero_grad()
            model(torch.arange(6)).sum().backward()
            expected = np.sqrt(
                sum(float(each.grad.to_dense().abs().double().square().sum()) for each in _with_gradients(model))
            )
            rec.step(loss=step)

    first, second = emissions(rec.folder)

    assert second.metrics["Gradients/norm"] == pytest.approx(expected, rel=1e-2)
    assert "LR" in watch.absent
    assert not [note for note in notes(rec.folder) if "failed" in note]
    assert first.metrics["Gradients/norm"] > 0


def _with_gradients(model: nn.Module) -> list[Any]:
    return [each for each in model.parameters() if each.grad is not None]


def test_a_step_without_gradients_has_none(tmp_path: Path) -> None:
    """An update before any backward pass records what there is."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, budget=None)
        optimizer.step()
        rec.step()

    metrics = emissions(rec.folder)[0].metrics

    assert "Gradients/norm" not in metrics
    assert metrics["Parameters/norm"] > 0


@pytest.mark.parametrize("how", ["wrapped", "in place", "inside"])
def test_a_compiled_model_stays_whole(how: str, tmp_path: Path) -> None:
    """No hook breaks a compiled region, however the model was compiled."""
    torch.compiler.reset()
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained: Any = torch.compile(model, backend="eager", fullgraph=True) if how != "in place" else model
    if how == "in place":
        model.compile(backend="eager", fullgraph=True)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(trained if how == "wrapped" else model, optimizer, every=2, budget=None)
        train(rec, trained, optimizer, 5)

    found = emissions(rec.folder)

    assert [event.step for event in found] == [1, 2, 4]
    assert all("Gradients/norm_used" in event.metrics for event in found)
    assert "Gradients/norm" in found[-1].metrics
    assert not [note for note in notes(rec.folder) if "failed" in note]


def test_a_watched_model_can_be_copied_and_pickled_at_any_time(tmp_path: Path) -> None:
    """A copy that is made in the middle of an emission trains on alone."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, every=1, budget=None)
        loss = model(batch(0)).sum()
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        torch.save(model, io.BytesIO())
        loss.backward()
        optimizer.step()
        rec.step()
        for each in copies:
            each(batch(0)).sum().backward()

    assert len(emissions(rec.folder)) == 1


def test_a_deleted_model_is_freed_and_its_watch_ends(tmp_path: Path) -> None:
    """The watch holds the model weakly."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, every=1, budget=None)
        train(rec, model, optimizer, 2)
        reference = weakref.ref(model)
        del model, optimizer
        gc.collect()

        assert reference() is None
        assert watch.is_closed
        rec.step(loss=1.0)


def test_a_thousand_watches_leave_nothing_behind(tmp_path: Path) -> None:
    """Closing removes each hook, also in the middle of an emission."""
    model = ResidualModel(depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        for number in range(1000):
            watch = rec.watch(model, optimizer, budget=None)
            if number % 10 == 0:
                model(batch(0)).sum().backward()
            watch.close()
        before = len(gc.get_objects())
        for _ in range(100):
            rec.watch(model, optimizer, budget=None).close()
        gc.collect()

        assert len(gc.get_objects()) <= before + 50
        hooks = [hook for each in model.modules() for hook in (*each._forward_hooks, *each._forward_pre_hooks)]
        assert hooks == []
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
        assert not any(each._post_accumulate_grad_hooks for each in model.parameters())


def test_a_failing_probe_is_said_once_and_training_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A structure that cannot be read costs its metrics, not the training."""

    class Broken(ResidualModel):
        is_broken = False

        def named_modules(self, *arguments: Any, **named: Any) -> Any:
            if self.is_broken:
                raise RuntimeError("no modules for you")
            return super().named_modules(*arguments, **named)

    model = Broken()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path) as rec, caplog.at_level(logging.WARNING, "steptape"):
        rec.watch(model, optimizer, every=1, budget=None)
        model.is_broken = True
        train(rec, model, optimizer, 5)

    assert sum("probes failed" in record.message for record in caplog.records) == 1
    assert sum("probes failed" in note for note in notes(rec.folder)) == 1
    assert open_run(rec.folder).status == "completed"


def test_a_cadence_that_costs_too_much_grows_and_is_recorded(tmp_path: Path) -> None:
    """A toy model's emission is far above a thousandth of its step."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, every=2, budget=0.001)
        train(rec, model, optimizer, 40)

    cadences = [event.metrics["Probes/every"] for event in emissions(rec.folder)]

    assert cadences[0] == 2
    assert watch.every > 2
    assert watch.every % 2 == 0
    assert any("to keep to the budget" in note for note in notes(rec.folder))


def test_the_level_changes_at_the_next_update(tmp_path: Path) -> None:
    """After ``set_level`` the next update emits at the new level, and a note says so."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, level="minimal", every=100, budget=None)
        train(rec, model, optimizer, 5)
        watch.set_level("debug")
        train(rec, model, optimizer, 5)
        with pytest.raises(TelemetryError, match="level"):
            watch.set_level("full")

    assert [(event.step, event.metrics["Probes/level"]) for event in emissions(rec.folder)] == [(1, 0), (6, 2)]
    assert "probes: level minimal -> debug" in notes(rec.folder)


def test_a_rule_raises_the_level(tmp_path: Path) -> None:
    """``detail.set`` is carried out by the watch at the next update, with a receipt."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "controllers:\n"
        "- {name: look, triggers: [on_step_end], rule: step == 4, once: true, operations: [detail.set(2)]}\n"
    )
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path / "runs", rules=policy, strict=True) as rec:
        rec.watch(model, optimizer, every=100, budget=None)
        train(rec, model, optimizer, 6)

    assert [(event.step, event.metrics["Probes/level"]) for event in emissions(rec.folder)] == [(1, 1), (5, 2)]
    kinds = [event.kind for event in open_run(rec.folder).events()]
    assert "operation_applied" in kinds
    assert verify(open_run(rec.folder)).identical


def test_rules_read_the_rate_that_rules_made(tmp_path: Path) -> None:
    """With ``rec.learning_rate`` the ratio uses the rate of the rules, whichever attached first."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "controllers:\n- {name: cut, triggers: [on_step_end], rule: step == 2, operations: [lr.reduce(0.5)]}\n"
    )
    for is_watch_first in (False, True):
        model = ResidualModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Recorder(tmp_path / "runs", rules=policy, strict=True) as rec:
            if not is_watch_first:
                rec.learning_rate(optimizer)
            rec.watch(model, optimizer, every=1, budget=None)
            if is_watch_first:
                rec.learning_rate(optimizer)
            train(rec, model, optimizer, 4)

        assert [event.metrics["LR"] for event in emissions(rec.folder)] == pytest.approx([0.1, 0.1, 0.05, 0.05])


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"level": "full"}, "level"),
        ({"every": 0}, "every"),
        ({"every": 1.5}, "every"),
        ({"budget": -1}, "budget"),
        ({"clip_norm": float("nan")}, "clip_norm"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], what: str, tmp_path: Path) -> None:
    """The error names the argument, and nothing is attached."""
    model = nn.Linear(2, 2)
    with Recorder(tmp_path) as rec, pytest.raises(TelemetryError, match=what):
        rec.watch(model, torch.optim.SGD(model.parameters()), **arguments)

    assert not model._forward_pre_hooks


def test_what_is_no_optimizer_is_refused(tmp_path: Path) -> None:
    """A scheduler in its place gives an error that says what to give."""
    model = nn.Linear(2, 2)
    with Recorder(tmp_path) as rec, pytest.raises(TelemetryError, match="not an optimizer"):
        rec.watch(model, [1e-3])

    assert not model._forward_pre_hooks


def test_a_disabled_recorder_watches_nothing(tmp_path: Path) -> None:
    """All calls of the handle work."""
    model = nn.Linear(8, 2)
    rec = Recorder(tmp_path, mode="disabled")

    with rec.watch(model) as watch:
        watch.set_level("debug")
        listed = [*watch.batches([1, 2])]

    assert listed == [1, 2]
    assert not model._forward_pre_hooks


def test_the_norm_of_a_large_tensor_is_exact(tmp_path: Path) -> None:
    """A sum of millions of squares in 32 bits would be off by a thousandth."""
    model = nn.Linear(3000, 3000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        rec.watch(model, optimizer, budget=None)
        model(torch.randn(2, 3000)).square().sum().backward()
        expected = np.sqrt(sum((array**2).sum() for array in gradients(model).values()))
        weight = np.sqrt(sum((array**2).sum() for array in arrays(dict(model.named_parameters())).values()))
        optimizer.step()
        rec.step()

    (event,) = emissions(rec.folder)

    assert event.metrics["Gradients/norm"] == pytest.approx(expected, rel=1e-6)
    assert event.metrics["Parameters/norm"] == pytest.approx(weight, rel=1e-6)


def convolutional() -> nn.Module:
    """Return a convolutional network of equal blocks. Takes (n, 3, 8, 8)."""
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(512, 2))


@pytest.mark.parametrize("level", ["standard", "debug"])
def test_a_convolutional_network_is_watched(level: Any, tmp_path: Path) -> None:
    """Its convolutions are the blocks; attention is listed as not observable."""
    model = convolutional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, level=level, every=1, budget=None)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 3, 8, 8)).square().mean().backward()
            optimizer.step()
            rec.step()

    found = emissions(rec.folder)

    assert len(found) == 3
    assert all(event.metrics[f"Gradients/block_{block}/norm"] > 0 for event in found for block in range(3))
    assert all(event.metrics[f"Residual/block_{block}/rms"] > 0 for event in found for block in (0, 2))
    assert any(name.startswith("Attention/") for name in watch.absent)
    assert not [note for note in notes(rec.folder) if "failed" in note]


def test_a_loss_that_is_not_finite_between_emissions_stops_at_its_update(tmp_path: Path) -> None:
    """The decision is on disk before the exception of the loop leaves."""
    model = ResidualModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stopped_at = 0
    with suppress(ArithmeticError), Recorder(tmp_path, rules="nano_train") as rec:
        rec.watch(model, optimizer, every=10, budget=None)
        for step in range(1, 20):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean() * (float("nan") if step == 7 else 1.0)
            loss.backward()
            optimizer.step()
            if rec.step(loss=loss).should_stop:
                stopped_at = step
                raise ArithmeticError("the loss is not finite")

    run = open_run(rec.folder)
    decisions = [event for event in run.events() if event.kind == "decision"]

    assert stopped_at == 7
    assert ("loss_not_finite", 7) in [(event.attrs["controller"], event.step) for event in decisions]
    assert run.status == "failed"
    assert verify(run).identical


def test_the_first_two_emissions_are_not_judged_nor_the_one_after_a_change() -> None:
    """They include the first use of everything, such as the compilation of kernels."""
    budget = CadenceBudget(1, share=0.1)

    changed = [budget.charge(cost, 1.0) for cost in (9.0, 9.0, 1.0, 9.0, 5.0)]

    assert changed == [False, False, True, False, True]
    assert budget.every == 50
