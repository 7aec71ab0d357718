"""Tokens, targets, samples and times of updates agree with an independent count, without a wait for a device."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import pickle
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from steptape.recorder.probes.batch_counts import BatchArguments
from steptape.recorder.probes.data_and_time import DataAndTime
from steptape.recorder.probes.probe_values import Readings
from steptape.rules.metric_catalogue import entry_of

MS = 1_000_000
VOCABULARY = 11


class LanguageModel(nn.Module):
    """Token ids and labels in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Any = None, labels: Any = None) -> Tensor:
        """Return logits. Shape (n, positions, classes)."""
        del attention_mask, labels
        logits: Tensor = self.head(self.embedding(input_ids))
        return logits


class TwoInputs(nn.Module):
    """A model whose arguments have names that say nothing."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return the first."""
        del y
        return x


class Clock:
    """Spans, or probes, of scripted length."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        """Return their time so far."""
        return self.ns


def ids(samples: int, positions: int, seed: int = 0) -> Tensor:
    """Return token ids."""
    return torch.randint(0, VOCABULARY, (samples, positions), generator=torch.Generator().manual_seed(seed))


def labels(samples: int, positions: int, seed: int = 0) -> Tensor:
    """Return labels, a third of which the loss ignores."""
    generator = torch.Generator().manual_seed(seed)
    ignored = torch.rand((samples, positions), generator=generator) < 1 / 3
    return ids(samples, positions, seed).masked_fill(ignored, -100)


def values(part: DataAndTime) -> dict[str, float]:
    """Return all numbers of an emission."""
    readings = read(part)
    return {**readings.numbers, **{name: value.item() for name, value in readings.scalars.items()}}


def read(part: DataAndTime) -> Readings:
    """Return the readings of an emission."""
    readings = Readings(1, is_check=False)
    part.read(readings)
    return readings


def after(part: DataAndTime, model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, float]:
    """Return all numbers after an update with one forward pass."""
    model(*args, **kwargs)
    part.end_update(time.monotonic_ns())
    return values(part)


# --- counts -----------------------------------------------------------------------------------------------------------


def test_counts_of_updates_of_several_passes_agree_with_numpy() -> None:
    """Each update accumulates three passes of different shapes; an emission describes its own update and the sums."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())
    shapes = [(2 + update, 5 + micro, 10 * update + micro) for update in range(4) for micro in range(3)]
    seen = 0.0
    effective = 0.0
    for update in range(4):
        given = [(ids(*shape), labels(*shape)) for shape in shapes[3 * update : 3 * update + 3]]
        for tokens, targets in given:
            model(tokens, labels=targets).sum().backward()
        part.end_update(time.monotonic_ns())
        own = sum(tokens.numpy().size for tokens, _ in given)
        counted = np.concatenate([targets.numpy()[:, 1:].ravel() != -100 for _, targets in given])
        seen, effective = seen + own, effective + counted.sum()
        if update % 2:
            continue

        got = values(part)

        assert got["Tokens/seen"] == seen
        assert got["Data/tokens_per_update"] == own
        assert got["Tokens/effective_seen"] == effective
        assert got["Data/effective_tokens_per_update"] == counted.sum()
        assert got["Data/ignore_frac"] == pytest.approx(1 - counted.mean(), rel=1e-6)


@pytest.mark.parametrize("call", ["keywords", "positions", "mapping"])
def test_arguments_are_found_by_their_names_in_forward(call: str) -> None:
    """A mask of the shape and type of the token ids is no label."""
    model, tokens, targets, mask = LanguageModel(), ids(2, 5), labels(2, 5), torch.ones(2, 5, dtype=torch.int64)
    part = DataAndTime(model, Clock(), Clock())
    if call == "mapping":
        model.forward = dict  # type: ignore[method-assign,assignment]
    named = {"attention_mask": mask, "input_ids": tokens, "labels": targets}

    if call == "keywords":
        got = after(part, model, **named)
    else:
        got = after(part, model, *((tokens, mask, targets) if call == "positions" else (named,)))

    assert got["Data/tokens_per_update"] == 10
    assert got["Data/effective_tokens_per_update"] == (targets[:, 1:] != -100).sum()


@pytest.mark.parametrize(
    "named",
    [
        {"index": torch.arange(2), "tokens": torch.ones(2, 5, dtype=torch.int64)},
        {"prompt": torch.ones(2, 7, dtype=torch.int64), "input_ids": torch.ones(2, 5, dtype=torch.int64)},
    ],
    ids=["one dimension", "another tensor before"],
)
def test_token_ids_have_two_dimensions_and_a_name_before_a_place(named: dict[str, Tensor]) -> None:
    """The numbers of samples, one each, are no tokens."""
    assert BatchArguments(TwoInputs()).content((), named).tokens == 10


def test_two_unnamed_integer_tensors_of_one_shape_are_ids_and_labels() -> None:
    """As models without a library of their own take them."""
    model, tokens, targets = TwoInputs(), ids(2, 5), labels(2, 5)
    part = DataAndTime(model, Clock(), Clock())

    got = after(part, model, tokens, targets)

    assert got["Data/tokens_per_update"] == 10
    assert got["Data/ignore_frac"] == pytest.approx((targets[:, 1:] == -100).float().mean().item(), rel=1e-6)


def test_a_mask_as_the_second_positional_argument_is_no_label() -> None:
    """Its name in ``forward`` says so."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())

    assert "Data/ignore_frac" not in after(part, model, ids(2, 5), torch.ones(2, 5, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(6,), (6, 4, 4)], ids=["classes", "pixels"])
def test_labels_of_another_number_of_dimensions_count_in_full(shape: tuple[int, ...]) -> None:
    """They are for their own positions. The images are samples, not tokens."""
    model, targets = LanguageModel(), torch.zeros(shape, dtype=torch.int64)
    model.forward = lambda images, **_: images  # type: ignore[method-assign]
    part = DataAndTime(model, Clock(), Clock())
    targets[0] = -100
    images = torch.zeros((6, 3, 4, 4), dtype=torch.uint8)

    got = after(part, model, images, labels=targets)

    assert got["Data/effective_tokens_per_update"] == targets.numel() * 5 / 6
    assert got["Data/ignore_frac"] == pytest.approx(1 / 6, rel=1e-6)
    assert "Tokens/seen" not in got
    assert "Perf/achieved_tflops" not in got


def test_finders_replace_the_rules() -> None:
    """For arguments that no rule recognises."""
    model = TwoInputs()
    part = DataAndTime(
        model,
        Clock(),
        Clock(),
        find_ids=lambda named: named["y"].tokens,
        find_labels=lambda named: named["y"].answers,
    )

    class Batch:
        tokens, answers = ids(2, 5), torch.full((2, 5), -100)

    got = after(part, model, torch.zeros(1), Batch())

    assert (got["Data/tokens_per_update"], got["Data/ignore_frac"]) == (10, 1)


def test_passes_in_evaluation_count_for_the_evaluation_only() -> None:
    """It is read once, and then begins anew."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())
    batches = [(ids(3, 6, seed), labels(3, 6, seed)) for seed in range(4)]
    model(batches[0][0], labels=batches[0][1])
    part.end_update(time.monotonic_ns())
    model.eval()
    for tokens, targets in batches[1:3]:
        model(tokens, labels=targets)
    model.train()
    with torch.no_grad():
        model(batches[3][0], labels=batches[3][1])

    evaluation, again, training = part.read_evaluation(), part.read_evaluation(), values(part)

    expected = np.mean([targets.numpy()[:, 1:] == -100 for _, targets in batches[1:]])
    assert float(evaluation["Data/ignore_frac_val"]) == pytest.approx(expected, rel=1e-6)
    assert again == {}
    assert training["Tokens/seen"] == 18


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_pass_that_the_backward_pass_repeats_counts_once(use_reentrant: bool) -> None:
    """A checkpoint of a part of the model, and one of the whole model."""

    class Checkpointed(LanguageModel):
        def forward(self, input_ids: Tensor, *_: Any) -> Any:
            embedded = self.embedding(input_ids)
            return checkpoint(self.head, embedded, use_reentrant=use_reentrant)

    model = Checkpointed()
    part = DataAndTime(model, Clock(), Clock())
    model(ids(2, 5)).sum().backward()
    if not use_reentrant:
        checkpoint(model, ids(2, 5), use_reentrant=False).sum().backward()
    part.end_update(time.monotonic_ns())

    assert values(part)["Tokens/seen"] == (10 if use_reentrant else 20)


def test_a_paused_pass_counts_nowhere() -> None:
    """Such as that of the probe batch."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())
    model(ids(2, 5), labels=labels(2, 5))
    with part.paused():
        model(ids(2, 5), labels=labels(2, 5))
        model.eval()(ids(2, 5), labels=labels(2, 5))
    model.train()
    part.end_update(time.monotonic_ns())

    assert values(part)["Tokens/seen"] == 10
    assert part.read_evaluation() == {}


def test_nothing_waits_for_a_device() -> None:
    """Tensors of the meta device have no values, and raise wherever one is asked for."""
    model = LanguageModel().to("meta")
    part = DataAndTime(model, Clock(), Clock(), peak_tflops=1.0)
    for _ in range(2):
        model(ids(2, 5).to("meta"), labels=labels(2, 5).to("meta")).sum().backward()
        part.end_update(time.monotonic_ns())

    readings = read(part)

    assert readings.numbers["Tokens/seen"] == 20
    assert {value.device.type for value in readings.scalars.values()} == {"meta"}
    assert {"Data/ignore_frac", "Throughput/effective_tokens_per_second", "Perf/mfu"} <= set(readings.scalars)


def test_labels_may_change_their_device() -> None:
    """The sum is on the device rather than on the host."""
    model = LanguageModel()
    model.forward = lambda *_, **__: None  # type: ignore[method-assign,assignment]
    part = DataAndTime(model, Clock(), Clock())
    for device in ("cpu", "meta", "cpu"):
        model(input_ids=ids(2, 5), labels=labels(2, 5).to(device))
        part.end_update(time.monotonic_ns())

    assert read(part).scalars["Data/ignore_frac"].device.type == "meta"


# --- times ------------------------------------------------------------------------------------------------------------


def test_throughput_agrees_with_the_scripted_ends_of_updates() -> None:
    """The time of spans and probes counts nowhere."""
    model, spans, probes = LanguageModel(), Clock(), Clock()
    part = DataAndTime(model, spans, probes, peak_tflops=0.5)
    ends_ns = time.monotonic_ns() + np.array([1_000, 1_127, 6_307]) * MS
    for update, (probes_ms, span_ms) in enumerate([(0, 0), (7, 0), (0, 5_000)]):
        probes.ns += probes_ms * MS
        spans.ns += span_ms * MS
        model(ids(3, 6), labels=labels(3, 6))
        part.end_update(int(ends_ns[update]))
        if update == 0:
            values(part)
    elapsed_s = (np.diff(ends_ns) - np.array([7, 5_000]) * MS).sum() / 1e9
    targets = 2 * (labels(3, 6).numpy()[:, 1:] != -100).sum()
    tflops = targets / elapsed_s * 6 * sum(each.numel() for each in model.parameters()) / 1e12

    got = values(part)

    expected = {
        "Time/step_seconds": elapsed_s / 2,
        "Throughput/steps_per_second": 2 / elapsed_s,
        "Throughput/tokens_per_second": 36 / elapsed_s,
        "Throughput/samples_per_second": 6 / elapsed_s,
        "Throughput/effective_tokens_per_second": targets / elapsed_s,
        "Perf/achieved_tflops": tflops,
        "Perf/mfu": tflops / 0.5,
    }
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_batches_measures_the_wait_for_each_batch() -> None:
    """With real sleeps: what the loader takes is waited for, and what the loop takes is not."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())

    def loader() -> Iterator[Tensor]:
        for seed in range(4):
            time.sleep(0.02)
            yield ids(2, 5, seed)

    seen = []
    for batch in part.batches(loader()):
        time.sleep(0.01)  # Between the batch and the forward pass: computing, not waiting.
        model(batch)
        part.end_update(time.monotonic_ns())
        seen.append(batch)

    got = values(part)

    assert [batch.tolist() for batch in seen] == [ids(2, 5, seed).tolist() for seed in range(4)]
    assert got["Time/data_wait_seconds"] >= 3 * 0.02 / 4  # That of the first batch is start-up.
    assert got["Time/compute_seconds_est"] >= 3 * 0.01 / 4
    assert 0 < got["Time/data_wait_frac"] < 1
    assert got["Time/data_wait_frac"] + got["Time/compute_frac_est"] == pytest.approx(1)
    assert got["Time/data_wait_seconds"] + got["Time/compute_seconds_est"] == pytest.approx(got["Time/step_seconds"])


def test_batches_passes_on_what_the_loader_raises() -> None:
    """The loop sees it as without the probe."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())

    def loader() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    batches = part.batches(loader())

    assert next(batches) == 1
    with pytest.raises(OSError, match="disk"):
        next(batches)


def test_batches_continues_after_the_watch_is_closed() -> None:
    """A loop may close the watch in the middle of an epoch."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())
    batches = part.batches([1, 2, 3])
    first = next(batches)
    part.close()

    assert [first, *batches] == [1, 2, 3]


# --- absence ----------------------------------------------------------------------------------------------------------


def test_what_the_arguments_do_not_show_is_absent_with_a_reason() -> None:
    """Images alone have neither tokens nor targets."""
    model = nn.Linear(4, 2)
    part = DataAndTime(model, Clock(), Clock())
    for _ in range(2):
        model(torch.randn(3, 4))
        part.end_update(time.monotonic_ns())

    readings = read(part)

    assert readings.numbers["Throughput/samples_per_second"] > 0
    assert "no token ids" in readings.absent["Tokens/seen"]
    assert "no labels" in readings.absent["Data/ignore_frac"]
    assert "no labels" in readings.absent["Perf/mfu"]
    assert all(entry_of(name) for name in {*readings.absent, *readings.numbers})


def test_mfu_without_a_peak_is_absent() -> None:
    """The throughput in operations is there."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())
    model(ids(2, 5), labels=labels(2, 5))
    part.end_update(time.monotonic_ns())

    readings = read(part)

    assert "Perf/achieved_tflops" in readings.scalars
    assert readings.absent == {"Perf/mfu": "rec.watch got no peak_tflops"}


def test_a_model_that_is_called_in_parts_has_times_of_updates_only() -> None:
    """The wait is known where the loop iterates over ``batches``."""
    model = LanguageModel()
    unwatched, watched = DataAndTime(model, Clock(), Clock()), DataAndTime(model, Clock(), Clock())
    for _ in watched.batches(range(3)):
        model.head(model.embedding(ids(2, 5)))
        unwatched.end_update(time.monotonic_ns())
        watched.end_update(time.monotonic_ns())

    without, measured = read(unwatched), read(watched)

    assert "called in parts" in without.absent["Tokens/seen"]
    assert "watch.batches" in without.absent["Time/data_wait_frac"]
    assert "Time/step_seconds" in without.numbers
    assert 0 <= measured.numbers["Time/data_wait_frac"] <= 1


def test_an_evaluation_without_labels_has_no_ignored_share_and_says_so() -> None:
    """At the next emission."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())
    model.eval()(ids(2, 5))

    assert part.read_evaluation() == {}
    assert "hold no labels" in read(part).absent["Data/ignore_frac_val"]


def test_arguments_that_cannot_be_counted_never_reach_the_training(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged once, and its metrics are absent."""
    model = LanguageModel()

    def broken(named: Any) -> Tensor:
        raise KeyError(*named)

    part = DataAndTime(model, Clock(), Clock(), find_ids=broken)
    for _ in range(3):
        assert model(ids(2, 5)).shape == (2, 5, VOCABULARY)
        part.end_update(time.monotonic_ns())

    assert "could not be counted: KeyError" in read(part).absent["Tokens/seen"]
    assert len(caplog.records) == 1


def test_a_label_tensor_without_targets_has_no_share() -> None:
    """One position leaves nothing to predict."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())

    got = after(part, model, ids(2, 1), labels=ids(2, 1))

    assert got["Data/effective_tokens_per_update"] == 0
    assert "Data/ignore_frac" not in got
    assert all(map(math.isfinite, got.values()))


# --- life -------------------------------------------------------------------------------------------------------------


def test_a_watched_model_can_be_pickled_copied_and_deleted() -> None:
    """The copy counts nothing, and nothing keeps the model."""
    model = nn.Linear(4, 2)
    part = DataAndTime(model, Clock(), Clock())
    twin = copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))(torch.randn(3, 4))
    twin(torch.randn(3, 4))
    part.end_update(time.monotonic_ns())
    reference = weakref.ref(model)
    del model
    gc.collect()

    assert reference() is None
    assert "Throughput/samples_per_second" not in values(part)


def test_a_model_that_is_deleted_before_the_first_emission_has_counts() -> None:
    """Its parameters can no longer be counted."""
    model = LanguageModel()
    part = DataAndTime(model, Clock(), Clock())
    for end_ns in (1, 2):
        model(ids(3, 6), labels=labels(3, 6))
        part.end_update(time.monotonic_ns() + end_ns * MS)
    del model
    gc.collect()

    assert values(part)["Tokens/seen"] == 36


def test_closing_leaves_no_hook() -> None:
    """However often a model is watched."""
    model = nn.Linear(4, 2)
    for _ in itertools.repeat(None, 100):
        part = DataAndTime(model, Clock(), Clock())
        part.close()
        part.close()

    assert not model._forward_pre_hooks
    assert not model._forward_pre_hooks_with_kwargs


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_trains_in_one_graph(in_place: bool) -> None:
    """Compiled in place, its passes are not seen; inside the compiler's wrapper they are."""
    model = LanguageModel()
    watched: Any = model if in_place else torch.compile(model, backend="eager", fullgraph=True)
    part = DataAndTime(watched, Clock(), Clock())
    if in_place:
        model.compile(backend="eager", fullgraph=True)
    watched(ids(2, 5)).sum().backward()
    part.end_update(time.monotonic_ns())

    readings = read(part)

    assert ("Tokens/seen" in readings.numbers) is not in_place
    assert ("compiled in a larger region" in readings.absent.get("Tokens/seen", "")) is in_place
