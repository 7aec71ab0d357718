"""Sample losses that are computed from logits and labels, and their way into a run."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from steptape import Recorder, Samples, TelemetryError, open_run
from steptape.integrations import torch as integration
from steptape.integrations.torch import joined_samples, sample_losses

IGNORED = -100


def tokens_of_three() -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and labels of 3 samples of 5 tokens: all count, 2 count, none counts."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 7, (3, 5), generator=generator)
    labels[1, :3] = labels[2] = IGNORED
    return torch.randn(3, 5, 7, generator=generator), labels


def test_the_loss_of_a_sample_is_the_mean_over_its_labels_that_count() -> None:
    """One without such a label has 0, where a mean would be NaN."""
    logits, labels = tokens_of_three()
    found = sample_losses(logits, labels)
    expected = [float(cross_entropy(logits[n], labels[n])) for n in range(2)]

    assert found["samples"].tolist() == pytest.approx([*expected, 0.0], rel=1e-6)
    assert found["sample_tokens"].tolist() == [5, 2, 0]


def test_shifted_logits_predict_the_next_label() -> None:
    """The last logits predict nothing, and the first label is predicted by none."""
    logits, labels = tokens_of_three()
    found = sample_losses(logits, labels, shift=True)
    expected = [float(cross_entropy(logits[n, :-1], labels[n, 1:])) for n in range(2)]

    assert found["samples"].tolist() == pytest.approx([*expected, 0.0], rel=1e-6)
    assert found["sample_tokens"].tolist() == [4, 2, 0]


def test_a_sample_of_one_label_has_its_cross_entropy() -> None:
    """As in the classification of texts or images."""
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    found = sample_losses(logits, labels)

    assert [*found] == ["samples"]
    assert torch.allclose(found["samples"], cross_entropy(logits, labels, reduction="none"))


def test_half_precision_is_computed_in_float32_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts cut samples anywhere."""
    logits, labels = tokens_of_three()
    whole = sample_losses(logits.bfloat16().float(), labels)["samples"]
    monkeypatch.setattr(integration, "_LOGITS_AT_A_TIME", 7 * 4)

    assert torch.equal(sample_losses(logits.bfloat16(), labels)["samples"], whole)


def test_a_nan_among_the_logits_is_a_sample_loss_of_nan_if_its_label_counts() -> None:
    """And of no other sample."""
    logits, labels = tokens_of_three()
    logits[1, 0] = logits[0, 4] = math.nan

    assert sample_losses(logits, labels)["samples"].isnan().tolist() == [True, False, False]


def test_gradients_and_random_numbers_stay_as_they_are() -> None:
    """The result belongs to no graph."""
    logits, labels = tokens_of_three()
    logits.requires_grad_()
    state = torch.get_rng_state()
    found = sample_losses(logits * 1.0, labels, tokens=True)

    assert not any(each.requires_grad for each in found.values())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("logits", "labels", "shift", "what"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 3), False, "logits must have shape"),
        (torch.zeros(2, 9, 4, 3), torch.zeros(2, 9, 4).long(), False, "logits must have shape"),
        (torch.zeros(2, 1), torch.zeros(2).long(), False, "logits must have shape"),
        (torch.zeros(2, 3), torch.zeros(2), False, "labels must be whole numbers"),
        (torch.zeros(2, 3), torch.zeros(2).long(), True, "only labels of tokens can be shifted"),
    ],
    ids=["labels of other shape", "pixels", "a regression", "numbers as labels", "shifted classes"],
)
def test_what_is_no_classification_is_refused(logits: Any, labels: Any, shift: bool, what: str) -> None:
    """A wrong number would be worse than none."""
    with pytest.raises(TelemetryError, match=what):
        sample_losses(logits, labels, shift=shift)


def test_micro_batches_of_other_lengths_are_recorded_as_one_batch(tmp_path: Path) -> None:
    """With the ids of each, and only the losses of tokens that count."""
    logits, labels = tokens_of_three()
    parts = [
        {**sample_losses(logits, labels, tokens=True), "sample_ids": torch.tensor([7, 8, 9])},
        {**sample_losses(logits[:2, 3:], labels[:2, 3:], tokens=True), "sample_ids": [5, 6]},
    ]
    with Recorder(tmp_path, samples=Samples(tokens_over=0.0)) as rec:
        rec.step(loss=1.0, **joined_samples(parts))
    rows = open_run(rec.folder).samples().to_pylist()

    assert [(row["sample_id"], row["tokens"]) for row in rows] == [("7", 5), ("8", 2), ("9", 0), ("5", 2), ("6", 2)]
    assert [len(row["token_losses"] or ()) for row in rows] == [5, 2, 0, 2, 2]
    assert rows[1]["token_losses"] == rows[4]["token_losses"]


def test_an_update_of_which_a_micro_batch_lacks_losses_keeps_its_ids_alone() -> None:
    """Their digest still shows the order of the data."""
    given = {"samples": torch.ones(2), "sample_tokens": torch.ones(2), "sample_ids": [1, 2]}

    assert joined_samples([given, {"sample_ids": [3]}]) == {"sample_ids": [1, 2, 3]}
    assert joined_samples([]) == {}


def test_poisoned_samples_are_named_by_bad_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a loop of one's own, by one argument more."""
    torch.manual_seed(0)
    logits, labels = torch.zeros(8, 6, 5), torch.randint(0, 5, (8, 6))
    poisoned = logits.clone()
    poisoned[2] = -30 * torch.nn.functional.one_hot(labels[2], 5)
    with caplog.at_level(logging.WARNING, "steptape.rules"), Recorder(tmp_path, rules="bad_batches") as rec:
        for step in range(12):
            given = poisoned if step == 10 else logits
            loss = cross_entropy(given.view(-1, 5), labels.view(-1))
            rec.step(loss=loss, sample_ids=range(8 * step, 8 * step + 8), **sample_losses(given, labels))

    (entry,) = [record.getMessage() for record in caplog.records]
    assert entry.startswith("bad_samples at step 11: 1 of 8 samples carry")
    assert entry.endswith("['82']")
