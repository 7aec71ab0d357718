"""Probes read attention scores and probabilities that a model shows, exactly, and say why others are absent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from probe_models import HEADS, WIDTH, NanoGPT, armed_parts, one_update, tokens_of
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

INPUT = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def attention_of(values: dict[str, float], block: int = 0) -> dict[str, float]:
    """Return the attention metrics of a block, by the last part of their names."""
    prefix = f"Attention/block_{block}/"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def expected(scores: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> dict[str, float]:
    """Return the metrics of scores in NumPy. ``mask`` is True where a key is not seen."""
    hidden = np.where(mask, -np.inf, scores)
    shares = np.exp(hidden - hidden.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    entropy = float(-np.sum(shares * np.log(np.where(shares > 0, shares, 1)), -1).mean())
    seen = scores[np.broadcast_to(~mask, scores.shape)]
    return {
        "max_attn_logit": float(seen.max()),
        "attn_entropy": entropy,
        "attn_entropy_norm": entropy / math.log(scores.shape[-1]),
        "frac_logits_gt_tau": float((seen > 100).mean()),
    }


def scores_by_hand(model: NanoGPT, block: int, tokens: Tensor) -> np.ndarray[Any, Any]:
    """Return Q K^T / sqrt(d) of a block in NumPy, without a mask."""
    blocks = model.blocks
    x = model.transformer["wte"](tokens) + model.transformer["wpe"](torch.arange(tokens.shape[1]))
    for each in list(blocks)[:block]:
        x = each(x)
    layer = blocks[block]
    q, k, _ = (
        layer.attn.qkv(layer.ln_1(x))
        .detach()
        .double()
        .numpy()
        .reshape(*x.shape[:2], 3, HEADS, -1)
        .transpose(2, 0, 3, 1, 4)
    )
    return q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])  # type: ignore[no-any-return]


CAUSAL = np.triu(np.ones((5, 5), dtype=bool), 1)


@pytest.mark.parametrize("mask", [-math.inf, -1e4, -1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("block", [0, 2, 3])
def test_scores_before_a_softmax_module_agree_with_numpy(mask: float, block: int) -> None:
    """Each kind of mask is left out of the maximum and of the share above 100."""
    torch.manual_seed(0)
    model = NanoGPT(mask=mask).double()
    for each in model.blocks:
        each.attn.qkv.weight.data *= 20

    values, absent = one_update(model, lambda: model(tokens_of()), level=2)

    known = expected(scores_by_hand(model, block, tokens_of()), CAUSAL)
    assert known["frac_logits_gt_tau"] > 0
    assert attention_of(values, block) == pytest.approx(known, rel=1e-6)
    assert absent == {}


def test_standard_reads_three_metrics_of_the_sentinel_blocks() -> None:
    """The share above 100 belongs to debug."""
    model = NanoGPT(layers=5)

    values, _ = one_update(model, lambda: model(tokens_of()))

    assert {name for name in values if name.startswith("Attention")} == {
        f"Attention/block_{block}/{name}"
        for block in (0, 2, 4)
        for name in ("max_attn_logit", "attn_entropy", "attn_entropy_norm")
    }


def test_dropout_after_a_softmax_module_changes_nothing() -> None:
    """Its output are the probabilities before dropout."""
    model = NanoGPT(dropout=0.5)

    values, absent = one_update(model, lambda: model(tokens_of()))

    assert absent == {}
    known = expected(scores_by_hand(model, 0, tokens_of()), CAUSAL)
    assert attention_of(values)["attn_entropy"] == pytest.approx(known["attn_entropy"], rel=1e-5)


def test_a_named_module_shows_its_scores() -> None:
    """Any module whose output are the masked scores serves."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.Linear(WIDTH, WIDTH)
            self.scores = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.scores(self.attn(x) @ x.mT), -1) @ x

    model: Any = nn.Sequential(Named(), Named())

    values, _ = one_update(model, lambda: model(INPUT), level=2, sites={"blocks": "*", "attention_scores": "*.scores"})

    known = expected((model[0].attn(INPUT) @ INPUT.mT).detach().double().numpy(), np.zeros((5, 5), dtype=bool))
    assert attention_of(values) == pytest.approx(known, rel=1e-5)


def test_one_key_has_no_entropy() -> None:
    """Its normalised entropy is zero, not a division by zero."""
    model = NanoGPT()

    values, _ = one_update(model, lambda: model(tokens_of()[:, :1]))

    assert attention_of(values)["attn_entropy"] == 0
    assert attention_of(values)["attn_entropy_norm"] == 0


def test_scores_that_are_all_masked_have_no_greatest() -> None:
    """It is NaN, not the value of the mask."""
    model: Any = nn.Sequential(nn.Identity(), nn.Identity())

    values, _ = one_update(
        model, lambda: model(torch.full((1, 2, 2), -1e9)), sites={"blocks": "*", "attention_scores": "*"}
    )

    assert math.isnan(values["Attention/block_0/max_attn_logit"])


class Functional(nn.Module):
    """A block whose attention computes its softmax in a function, and returns what another function makes of it."""

    def __init__(self, returned: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.attn = FunctionalAttention(returned)

    def forward(self, x: Tensor) -> Tensor:
        """Drop what is returned besides the output."""
        result = self.attn(x)
        return result if isinstance(result, Tensor) else result[0]


class FunctionalAttention(nn.Module):
    """Attention of one head."""

    def __init__(self, returned: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.key, self.value, self.returned = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), returned

    def forward(self, x: Tensor) -> Any:
        """Attend."""
        shares = functional.softmax(x @ self.key(x).mT, -1)
        return shares @ self.value(x), *self.returned(shares)


RETURNED = {
    "plain": lambda p: (p,),
    "cast": lambda p: (p.to(torch.float64),),
    "no dropout": lambda p: (functional.dropout(p, 0.0),),
    "behind a bias": lambda p: (p[:1] * 3, p),
    "behind none": lambda p: (None, p),
}


@pytest.mark.parametrize("name", RETURNED)
def test_returned_probabilities_are_found_by_the_graph_that_computed_them(name: str) -> None:
    """They yield the entropy; the scores are not shown."""
    model: Any = nn.Sequential(Functional(RETURNED[name]), Functional(RETURNED[name]))

    values, absent = one_update(model, lambda: model(INPUT))

    known = expected((INPUT @ model[0].attn.key(INPUT).mT).detach().double().numpy(), np.zeros((5, 5), dtype=bool))
    assert attention_of(values) == pytest.approx(
        {key: known[key] for key in ("attn_entropy", "attn_entropy_norm")}, rel=1e-5
    )
    assert absent["Attention/block_*/max_attn_logit"] == "the attention module returns probabilities, not scores"


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (lambda p: (functional.dropout(p, 0.5),), "after dropout"),
        (lambda p: (p.log(),), "attn_implementation='eager'"),
        (lambda p: (p.mT,), "attn_implementation='eager'"),
        (lambda p: (p.mean(0, keepdim=True),), "mean of its heads"),
        (lambda p: (p.detach(),), "origin is unknown"),
        (lambda _: (None,), "attn_implementation='eager'"),
        (lambda _: (), "attn_implementation='eager'"),
        (lambda p: (functional.softmax(p, 1),), "not over the last dimension"),
    ],
    ids=["dropout", "logarithm", "transposed", "mean", "detached", "none", "nothing", "other dimension"],
)
def test_anything_else_that_is_returned_is_no_probability(returned: Callable[[Tensor], Any], reason: str) -> None:
    """An entropy of it would be a wrong number."""
    model: Any = nn.Sequential(Functional(returned), Functional(returned))

    values, absent = one_update(model, lambda: model(INPUT))

    assert attention_of(values) == {}
    assert reason in absent["Attention/block_*/attn_entropy"]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_returned_probabilities_are_found_under_checkpointing(use_reentrant: bool) -> None:
    """Reading the graph starts no recomputation."""
    model: Any = nn.Sequential(Functional(lambda p: (p,)), Functional(lambda p: (p,)))

    def forward() -> None:
        x = INPUT.clone().requires_grad_()
        for block in model:
            x = checkpoint(block, x, use_reentrant=use_reentrant)
        x.sum().backward()  # type: ignore[no-untyped-call]

    values, _ = one_update(model, forward)

    known, _ = one_update(model, lambda: model(INPUT))
    assert attention_of(values) == pytest.approx(attention_of(known), rel=1e-6)


class Multihead(nn.Module):
    """PyTorch's attention in a block."""

    def __init__(self, dropout: float = 0.0, **options: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, dropout=dropout, batch_first=True)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        return self.attn(x, x, x, **self.options)[0]  # type: ignore[no-any-return]


def test_multihead_attention_shows_its_weights_if_asked_for_each_head() -> None:
    """The entropy is that of PyTorch's own weights."""
    model: Any = nn.Sequential(*(Multihead(need_weights=True, average_attn_weights=False) for _ in range(2)))

    values, _ = one_update(model, lambda: model(INPUT))

    weights = model[0].attn(INPUT, INPUT, INPUT, average_attn_weights=False)[1].detach().double()
    assert attention_of(values)["attn_entropy"] == pytest.approx(
        float(-(weights * weights.log()).sum(-1).mean()), rel=1e-5
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"need_weights": False}, "returns no weights"),
        ({"need_weights": True}, "mean of its heads"),
        ({"need_weights": True, "average_attn_weights": False, "dropout": 0.5}, "after dropout"),
    ],
)
def test_multihead_attention_else_shows_none(options: dict[str, Any], reason: str) -> None:
    """The fused kernel returns none, an average and weights after dropout are no probabilities."""
    model: Any = nn.Sequential(*(Multihead(**options) for _ in range(2)))

    values, absent = one_update(model, lambda: model(INPUT))

    assert attention_of(values) == {}
    assert reason in absent["Attention/block_*/attn_entropy"]


def test_a_softmax_that_blocks_share_is_not_attributed() -> None:
    """Its last call belongs to the last block only."""
    model = NanoGPT()
    blocks = list(model.blocks)
    for block in blocks:
        block.attn.softmax = blocks[0].attn.softmax

    values, absent = one_update(model, lambda: model(tokens_of()))

    assert attention_of(values) == {}
    assert absent["Attention/block_*/*"] == "blocks share the module that shows the scores"


def test_several_softmax_modules_and_a_wrong_dimension_are_not_guessed_at() -> None:
    """``sites`` can name the one that counts."""
    several, wrong = NanoGPT(layers=1), NanoGPT(layers=1)
    several.blocks[0].attn.gate = nn.Softmax(-1)
    wrong.blocks[0].attn.softmax = nn.Softmax(1)

    reasons = [one_update(model, lambda model=model: model(tokens_of()))[1] for model in (several, wrong)]  # type: ignore[misc]

    assert "holds 2 nn.Softmax" in reasons[0]["Attention/block_*/*"]
    assert reasons[1]["Attention/block_*/attn_entropy"] == "its softmax is not over the last dimension"


def test_a_model_without_attention_says_so() -> None:
    """So does one without blocks."""
    plain, single = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2)

    reasons = [armed_absences(model)["Attention/block_*"] for model in (plain, single)]

    assert "no attention module" in reasons[0]
    assert "no repeated blocks" in reasons[1]


def armed_absences(model: nn.Module) -> dict[str, str]:
    """Return what is absent in an update without a forward pass."""
    readings, parts = armed_parts(model)
    for part in parts:
        part.read(readings)
    return readings.absent
