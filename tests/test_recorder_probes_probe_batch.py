"""A frozen batch runs through the model at checks: its metrics are right, and the training does not notice it."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from steptape.recorder.probes.probe_batch import FrozenBatch, ProbeBatch
from steptape.recorder.probes.probe_values import Readings
from steptape.store.errors import TelemetryError

STANDARD, DEBUG = 1, 2
CLASSES = 23
IDS = torch.randint(0, CLASSES, (4, 6), generator=torch.Generator().manual_seed(1))


class LanguageModel(nn.Module):
    """Token ids in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dropout, self.head = nn.Embedding(CLASSES, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Any:
        """Return logits. Shape (n, positions, classes)."""
        return self.head(self.dropout(self.embedding(ids)))


class LossModel(LanguageModel):
    """Returns an object with its own loss, as models of transformers do."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        """Return logits, and the loss 7 if there are labels."""
        loss = None if labels is None else torch.tensor(7.0)
        return SimpleNamespace(logits=super().forward(input_ids), loss=loss)


class Classifier(nn.Module):
    """Has all that must survive a run untouched: dropout, running statistics, and a buffer that each pass changes."""

    passes: Tensor

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(12, classes)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Any:
        """Return logits of a pass that draws random numbers of every kind, in evaluation, too."""
        self.passes += 1
        noise = torch.randn(inputs.shape) * 0.01 + random.random() * 0.01 + np.random.rand() * 0.01
        return self.head(self.layers(inputs + noise))


def read(part: ProbeBatch, level: int = STANDARD, *, is_check: bool = True) -> Readings:
    """Return the readings of one emission."""
    readings = Readings(level, is_check=is_check)
    part.read(readings)
    return readings


def probed(model: nn.Module, batch: Any, **options: Any) -> Readings:
    """Return the readings of one run."""
    return read(ProbeBatch(model, batch, **options))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities over the last axis, in 64 bits."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def evaluated(model: nn.Module, *inputs: Tensor) -> np.ndarray:
    """Return the logits of a copy of the model in evaluation mode."""
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(*inputs)
    return np.asarray(getattr(logits, "logits", logits))


def values(readings: Readings) -> dict[str, float]:
    """Return all numbers of an emission."""
    return {**readings.numbers, **{name: value.item() for name, value in readings.scalars.items()}}


# --- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_of_token_ids_agree_with_numpy() -> None:
    """The loss is for the next token; the predictions are those at the last position."""
    model = LanguageModel()
    p = softmax(evaluated(model, IDS))
    last = p[:, -1]

    got = values(probed(model, IDS))

    rows, positions = np.indices((4, 5))
    assert got["Probes/fixed_probe_loss"] == pytest.approx(-np.log(p[rows, positions, IDS[:, 1:]]).mean(), rel=1e-6)
    assert got["Probes/logit_entropy"] == pytest.approx(-(last * np.log(last)).sum(-1).mean(), rel=1e-6)
    assert got["Probes/topk_mass_k10"] == pytest.approx(np.sort(last)[:, -10:].sum(-1).mean(), rel=1e-6)
    assert "Probes/output_kl_to_prev" not in got


def test_divergence_to_the_run_before_agrees_with_numpy_and_appears_in_debug_only() -> None:
    """KL(p, p of the run before), whatever the level of the run before was."""
    model = LanguageModel()
    part = ProbeBatch(model, IDS)
    before = softmax(evaluated(model, IDS))[:, -1]
    first = read(part)
    with torch.no_grad():
        model.head.weight.mul_(1.5)
    now = softmax(evaluated(model, IDS))[:, -1]

    second, third = read(part, DEBUG), read(part)

    assert "Probes/output_kl_to_prev" not in {*first.scalars, *third.scalars}
    expected = (now * np.log(now / before)).sum(-1).mean()
    assert second.scalars["Probes/output_kl_to_prev"].item() == pytest.approx(expected, rel=1e-5)


def test_a_pair_of_inputs_and_classes_gives_the_classification_loss() -> None:
    """Logits of shape (n, classes) are predictions as they are; k is the number of classes if that is less."""
    model, inputs, targets = nn.Linear(6, 5), torch.randn(8, 6), torch.randint(0, 5, (8,))
    targets[3] = -100
    p = softmax(evaluated(model, inputs))
    counted = np.flatnonzero(targets.numpy() != -100)

    got = values(probed(model, (inputs, targets)))

    expected = -np.log(p[counted, targets.numpy()[counted]]).mean()
    assert got["Probes/fixed_probe_loss"] == pytest.approx(expected, rel=1e-6)
    assert got["Probes/logit_entropy"] == pytest.approx(-(p * np.log(p)).sum(-1).mean(), rel=1e-6)
    assert got["Probes/topk_mass_k5"] == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("is_shifted", [True, False])
def test_targets_are_for_the_next_position_only_if_they_equal_the_inputs(is_shifted: bool) -> None:
    """Targets that differ from the inputs are for their own positions."""
    model, targets = LanguageModel(), IDS.clone() if is_shifted else IDS.roll(-1, 1)
    p = softmax(evaluated(model, IDS))
    if is_shifted:
        p, expected_targets = p[:, :-1], targets[:, 1:]
    else:
        expected_targets = targets
    rows, positions = np.indices(expected_targets.shape)

    got = values(probed(model, (IDS, targets)))

    expected = -np.log(p[rows, positions, expected_targets]).mean()
    assert got["Probes/fixed_probe_loss"] == pytest.approx(expected, rel=1e-6)


def test_classes_may_be_the_second_dimension_as_in_images() -> None:
    """A segmentation has a loss; predictions at a last position it has none, and that is said."""
    model, images, targets = nn.Conv2d(3, 5, 1), torch.randn(2, 3, 4, 4), torch.randint(0, 5, (2, 4, 4))
    p = softmax(np.moveaxis(evaluated(model, images), 1, -1))
    image, row, column = np.indices(targets.shape)

    readings = probed(model, (images, targets))

    expected = -np.log(p[image, row, column, targets]).mean()
    assert readings.scalars["Probes/fixed_probe_loss"].item() == pytest.approx(expected, rel=1e-6)
    assert "no logits" in readings.absent["Probes/logit_entropy"]


def test_the_loss_that_the_model_returns_comes_before_cross_entropy() -> None:
    """A mapping goes to the model as keyword arguments."""
    readings = probed(LossModel(), {"input_ids": IDS, "labels": IDS})

    assert readings.scalars["Probes/fixed_probe_loss"].item() == 7.0


def test_probe_loss_computes_what_the_loop_calls_its_loss() -> None:
    """It gets the model in evaluation mode and the batch, and may return logits, too."""
    model = nn.Linear(6, 5)

    def squared(model: nn.Module, batch: Any) -> Any:
        assert not model.training
        assert not torch.is_grad_enabled()
        return model(batch["x"]).square().mean()

    def with_logits(model: nn.Module, batch: Any) -> Any:
        logits = model(batch["x"])
        return logits.square().mean(), logits

    batch = {"x": torch.randn(8, 6)}
    expected = np.square(evaluated(model, batch["x"])).mean()

    alone, both = (probed(model, batch, probe_loss=each) for each in (squared, with_logits))

    assert values(alone)["Probes/fixed_probe_loss"] == pytest.approx(expected, rel=1e-6)
    assert "no logits" in alone.absent["Probes/logit_entropy"]
    assert values(both)["Probes/fixed_probe_loss"] == pytest.approx(expected, rel=1e-6)
    assert "Probes/logit_entropy" in both.scalars


@pytest.mark.parametrize(
    "batch",
    [torch.randn(8, 6), (torch.randn(8, 6), torch.randn(8, 5)), (torch.randn(8, 6), torch.full((8,), 99))],
    ids=["no targets", "targets are no classes", "classes beyond the logits"],
)
def test_a_loss_that_cannot_be_computed_is_absent_with_a_reason(batch: Any) -> None:
    """The predictions are there nevertheless."""
    readings = probed(nn.Linear(6, 5), batch)

    assert "give probe_loss" in readings.absent["Probes/fixed_probe_loss"]
    assert "Probes/fixed_probe_loss" not in readings.scalars
    assert "Probes/logit_entropy" in readings.scalars


def test_a_probability_of_zero_adds_nothing() -> None:
    """Entropy and divergence stay finite where a model rules classes out."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 0.0, -torch.inf]))
    part = ProbeBatch(model, torch.randn(4, 2))

    first, second = values(read(part, DEBUG)), values(read(part, DEBUG))

    assert first["Probes/logit_entropy"] == pytest.approx(np.log(2), rel=1e-6)
    assert second["Probes/output_kl_to_prev"] == 0


# --- when it runs -----------------------------------------------------------------------------------------------------


def test_it_runs_at_the_first_emission_and_at_checks() -> None:
    """At the lowest level it does not run."""
    model = nn.Linear(6, 5)
    part = ProbeBatch(model, torch.randn(8, 6))

    runs = [
        bool(read(part, level, is_check=check).scalars)
        for level, check in [(0, True), (1, False), (1, False), (1, True)]
    ]

    assert runs == [False, True, False, True]


# --- the hash ---------------------------------------------------------------------------------------------------------


def test_the_hash_is_the_documented_one() -> None:
    """Recomputed here from the docstring: names in order, and each field after its length."""
    batch = {"y": torch.tensor([1, -2], dtype=torch.int32), "x": (torch.tensor([[0.5]]), True)}
    fields = [
        [b"/x/0", b"torch.float32", b"(1, 1)", np.float32(0.5).tobytes()],
        [b"/x/1", b"bool", b"", b"True"],
        [b"/y", b"torch.int32", b"(2,)", np.array([1, -2], "<i4").tobytes()],
    ]
    content = b"".join(len(field).to_bytes(8, "little") + field for leaf in fields for field in leaf)

    digest = FrozenBatch(batch).digest()

    assert digest == hashlib.sha256(content).digest()


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(4), "y": torch.ones(2)},
        {"x": torch.zeros(2, 2), "y": torch.zeros(2)},
        {"x": torch.zeros(4, dtype=torch.int32), "y": torch.zeros(2)},
        {"x": torch.zeros(4), "z": torch.zeros(2)},
        {"x": torch.zeros(2), "y": torch.zeros(4)},
    ],
    ids=["bytes", "shape", "type", "name", "bytes that move to the next tensor"],
)
def test_whatever_differs_changes_the_hash(other: Any) -> None:
    """Bytes, shapes, types and names."""
    assert FrozenBatch(other).digest() != FrozenBatch({"x": torch.zeros(4), "y": torch.zeros(2)}).digest()


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.uint8, torch.float64])
def test_tensors_of_every_type_have_a_hash(dtype: torch.dtype) -> None:
    """Views, empty tensors and single numbers do, too."""
    batch = [torch.ones(4, 4).to(dtype).T[1:], torch.ones(()).to(dtype), torch.ones(0).to(dtype)]

    assert FrozenBatch(batch).digest() == FrozenBatch([each.clone() for each in batch]).digest()


def test_a_change_of_the_frozen_batch_changes_the_recorded_hash() -> None:
    """The number is the start of the text. Both are computed anew at each run."""
    model = nn.Linear(6, 5)
    part = ProbeBatch(model, torch.randn(8, 6))
    first, same = read(part), read(part)
    assert part._batch is not None
    part._batch.content[0, 0] += 1  # As broken memory would.

    changed = read(part)

    name = "Eval/eval_artifact_hash"
    assert first.numbers[name] == same.numbers[name] == int(first.texts[name][:12], 16)
    assert changed.numbers[name] == int(changed.texts[name][:12], 16) != first.numbers[name]


def test_neither_the_loop_nor_the_model_can_change_the_frozen_batch() -> None:
    """The loop keeps its tensors, and the model gets copies."""

    class Clobbering(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.zero_())

    model, given = Clobbering(6, 5), torch.randn(8, 6)
    part = ProbeBatch(model, given)

    first = read(part)
    given.zero_()
    second = read(part)

    assert first.texts == second.texts != {}


@pytest.mark.parametrize(
    "batch",
    [None, {}, [1, 2], {"x": object()}, {1: torch.ones(2)}, torch.ones(2).to_sparse(), torch.ones(2, device="meta")],
)
def test_a_batch_that_cannot_be_frozen_is_refused(batch: Any) -> None:
    """At once, when the loop asks for the watch."""
    with pytest.raises(TelemetryError, match="probe_batch"):
        ProbeBatch(nn.Linear(2, 2), batch)


# --- the training does not notice -------------------------------------------------------------------------------------


def train(after_update: Callable[[nn.Module], Callable[[], object]]) -> tuple[dict[str, Tensor], list[float]]:
    """Train for 20 updates with torch's own shuffling, and return the state and numbers drawn at the end."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(80, 6), torch.randint(0, 5, (80,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    probe = after_update(model)
    for _ in range(2):
        for inputs, targets in loader:
            loss: Tensor = nn.functional.cross_entropy(model(inputs), targets)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            probe()
    return model.state_dict(), [torch.rand(()).item(), random.random(), np.random.rand()]


def test_a_training_with_the_probe_batch_equals_one_without_to_the_bit() -> None:
    """With dropout, batch normalisation, a counting buffer, shuffling, and random numbers of three libraries."""

    def probing(model: nn.Module) -> Callable[[], object]:
        part = ProbeBatch(model, (torch.randn(8, 6, generator=torch.Generator().manual_seed(9)), torch.arange(8) % 5))
        return lambda: values(read(part, DEBUG))["Probes/fixed_probe_loss"]

    weights, drawn = train(probing)
    expected_weights, expected_drawn = train(lambda _: lambda: None)

    assert drawn == expected_drawn
    assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())
    assert weights["passes"] == 20


def test_modes_gradients_and_buffers_are_as_they_were_even_after_a_failure() -> None:
    """A frozen submodule stays in evaluation mode, and buffers remain the same objects."""
    model = Classifier()
    model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    buffers = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}

    for inputs in (torch.randn(8, 6), torch.randn(8, 3)):
        probed(model, inputs)

    assert [module.training for module in model.modules()] == modes
    assert {name: (buffer, buffer._version) for name, buffer in model.named_buffers()} == buffers
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_autocast_of_the_loop_does_not_reach_the_probe() -> None:
    """The loss is computed in the types of the weights."""
    model = LanguageModel()
    expected = values(probed(model, IDS))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = values(probed(model, IDS))

    assert got == expected


def test_random_numbers_of_a_model_in_evaluation_are_the_same_in_each_run() -> None:
    """Runs of unchanged weights are equal."""

    class Noisy(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + torch.randn(5)

    model = Noisy(6, 5)
    part = ProbeBatch(model, torch.randn(8, 6))

    assert values(read(part)) == values(read(part)) != {}


# --- failures and wrappers --------------------------------------------------------------------------------------------


def test_a_failure_is_said_once_and_ends_the_probes_of_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    """The training never sees it."""
    model = nn.Linear(6, 5)
    part = ProbeBatch(model, torch.randn(8, 3))

    first, second = read(part), read(part)

    assert "probe batch failed: RuntimeError" in first.absent["Probes/fixed_probe_loss"]
    assert not {*second.numbers, *second.scalars, *second.absent}
    assert len(caplog.records) == 1


def test_a_deleted_model_is_no_failure() -> None:
    """The part holds it weakly."""
    model = nn.Linear(6, 5)
    part = ProbeBatch(model, torch.randn(8, 6))
    del model

    assert not values(read(part))


def test_the_run_is_paused_for_those_who_count() -> None:
    """Counting ends where the model's forward pass begins."""
    seen: list[str] = []

    class Paused:
        def __enter__(self) -> None:
            seen.append("paused")

        def __exit__(self, *_: object) -> None:
            seen.append("counting")

    model = nn.Linear(6, 5)
    model.register_forward_hook(lambda *_: seen.append("forward"))
    probed(model, torch.randn(8, 6), paused=Paused)

    assert seen == ["paused", "forward", "counting"]


def test_a_compiled_model_runs_eagerly_and_is_not_compiled_anew() -> None:
    """The compiler sees the training's forward passes only."""
    graphs: list[object] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled_models: list[Any] = [torch.compile(nn.Linear(6, 5), backend=backend), nn.Sequential(nn.Linear(6, 5))]
    compiled_models[1][0] = torch.compile(compiled_models[1][0], backend=backend)
    for model in compiled_models:
        model(torch.randn(8, 6)).sum().backward()
        compiled = len(graphs)
        assert "Probes/logit_entropy" in values(probed(model, torch.randn(8, 6)))

        assert len(graphs) == compiled > 0


def test_the_module_inside_ddp_runs_alone(tmp_path: Any) -> None:
    """No hook of the wrapper runs, so that ranks need not run it together."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(nn.Linear(6, 5))
        seen: list[object] = []
        model.register_forward_pre_hook(lambda *_: seen.append(1))

        readings = probed(model, torch.randn(8, 6))
    finally:
        torch.distributed.destroy_process_group()

    assert "Probes/logit_entropy" in readings.scalars
    assert seen == []
