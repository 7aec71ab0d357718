"""Probes in models of transformers: what is found, that values are exact, and what is listed as not observable."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed; 'make frameworks' runs this")

import torch
import transformers
from torch import Tensor, nn

from steptape import Recorder, open_run
from steptape.recorder.probes.activations import Activations, AttentionScores
from steptape.recorder.probes.model_structure import structure_of
from steptape.recorder.probes.probe_values import Readings

LAYERS, WIDTH, HEADS = 4, 16, 2
TOKENS = torch.randint(3, 11, (2, 6), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SHAPE = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
EAGER: dict[str, Any] = {"attn_implementation": "eager"}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2(dropout: float = 0.0, **options: Any) -> Any:
    """Return a tiny GPT-2."""
    sizes = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "vocab_size": 11, "n_positions": 8}
    drops = {"attn_pdrop": dropout, "resid_pdrop": 0.1, "embd_pdrop": 0.1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **drops, **ENDS, **options))


def llama(dropout: float = 0.0, **options: Any) -> Any:
    """Return a tiny Llama with two query heads for each key."""
    config = transformers.LlamaConfig(
        **SHAPE, num_key_value_heads=1, vocab_size=11, attention_dropout=dropout, **ENDS, **options
    )
    return transformers.LlamaForCausalLM(config)


def bert(dropout: float = 0.0, **options: Any) -> Any:
    """Return a tiny BERT."""
    config = transformers.BertConfig(**SHAPE, vocab_size=11, attention_probs_dropout_prob=dropout, **options)
    return transformers.BertForMaskedLM(config)


def vit(dropout: float = 0.0, **options: Any) -> Any:
    """Return a tiny ViT."""
    config = transformers.ViTConfig(
        **SHAPE, image_size=8, patch_size=4, attention_probs_dropout_prob=dropout, num_labels=3, **options
    )
    return transformers.ViTForImageClassification(config)


def t5(dropout: float = 0.0, **options: Any) -> Any:
    """Return a tiny T5 with two blocks on each side."""
    sizes = {"num_layers": 2, "num_heads": HEADS, "d_model": WIDTH, "d_kv": 8, "d_ff": 32, "vocab_size": 11}
    config = transformers.T5Config(**sizes, dropout_rate=dropout, decoder_start_token_id=0, **options)
    return transformers.T5ForConditionalGeneration(config)


def resnet(**_: Any) -> Any:
    """Return a tiny ResNet of two stages."""
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 3], layer_type="basic", num_labels=3
    )
    return transformers.ResNetForImageClassification(config)


MODELS: Mapping[str, Callable[..., Any]] = {
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "resnet": resnet,
}


def run(model: Any, **options: Any) -> Any:
    """Run a model on the input of its kind."""
    if isinstance(model, (transformers.ViTForImageClassification, transformers.ResNetForImageClassification)):
        return model(pixel_values=PIXELS, **options)
    if isinstance(model, transformers.T5ForConditionalGeneration):
        return model(input_ids=TOKENS, labels=TOKENS, **options)
    return model(input_ids=TOKENS, **options)


def watched(model: Any, level: int = 1, **options: Any) -> tuple[dict[str, float], dict[str, str], Any]:
    """Run one update that emits; return values, what is absent and the model's output."""
    structure, readings = structure_of(model), Readings(level, is_check=False)
    parts = [Activations(structure), AttentionScores(structure)]
    model.train()
    for part in parts:
        part.arm(readings)
    output = run(model, **options)
    output.logits.sum().backward()
    for part in parts:
        part.read(readings)
    values = {name: value.item() for name, value in readings.scalars.items()}
    for part in parts:
        part.close()
    return values, readings.absent, output


def rms(values: Tensor) -> float:
    """Return the root mean square from NumPy."""
    return float(np.sqrt(np.mean(values.detach().double().numpy() ** 2)))


def entropy(weights: Tensor) -> float:
    """Return the mean entropy of rows from NumPy."""
    shares = weights.detach().double().numpy()
    return float(-np.sum(shares * np.log(np.where(shares > 0, shares, 1)), -1).mean())


STACKS = {
    "gpt2": [f"transformer.h.{index}" for index in range(LAYERS)],
    "llama": [f"model.layers.{index}" for index in range(LAYERS)],
    "bert": [f"bert.encoder.layer.{index}" for index in range(LAYERS)],
    "t5": [f"{side}.block.{index}" for side in ("encoder", "decoder") for index in range(2)],
    "resnet": [f"resnet.encoder.stages.{stage}.layers.{i}" for stage, n in ((0, 2), (1, 3)) for i in range(n)],
}
MAIN_WEIGHTS = {"gpt2": [4] * 4, "llama": [7] * 4, "bert": [6] * 4, "vit": [6] * 4, "t5": [6, 6, 10, 10]}
SENTINELS = {
    "gpt2": ["transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight", "transformer.ln_f.bias"],
    "llama": ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"],
    "bert": ["bert.embeddings.word_embeddings.weight", "bert.embeddings.position_embeddings.weight"],
    "vit": ["vit.embeddings.position_embeddings", "vit.layernorm.weight", "vit.layernorm.bias", "classifier.weight"],
    "t5": ["shared.weight", "decoder.final_layer_norm.weight"],
    "resnet": ["classifier.1.weight"],
}
FINAL = "Activations/final_norm/*"
NORM = "Activations/block_*/attn_norm/*"
LOGIT = "Attention/block_*/max_attn_logit"
TAU = "Attention/block_*/frac_logits_gt_tau"
#: What each model does not show although it is built with eager attention.
NOT_OBSERVABLE = {
    "gpt2": {LOGIT},
    "llama": {LOGIT},
    "bert": {LOGIT, FINAL, NORM},
    "vit": {LOGIT},
    "t5": {LOGIT},
    "resnet": {"Attention/block_*", FINAL, NORM},
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_structure_of_each_model_is_found(kind: str) -> None:
    """Blocks in depth order, an encoder's before the decoder's, with all their matrices; sentinels outside of them."""
    model = MODELS[kind]()

    found = structure_of(model)

    weights = {name for block in found.blocks for name in block.main_weights}
    if kind in STACKS:  # ViT's list has another name in transformers 4.
        assert [block.name for block in found.blocks] == STACKS[kind]
    if kind in MAIN_WEIGHTS:
        assert [len(block.main_weights) for block in found.blocks] == MAIN_WEIGHTS[kind]
    assert list(found.parameters) == [name for name, _ in model.named_parameters()]
    assert [name for name in found.sentinel_parameters if name not in weights] == SENTINELS[kind]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_what_is_not_observable_is_listed_and_all_else_is_recorded(kind: str, level: int) -> None:
    """Every metric of a watched block has a value or a reason, in standard and in debug."""
    model = MODELS[kind](**EAGER)

    values, absent, _ = watched(model, level, **({} if kind == "resnet" else {"output_attentions": True}))

    expected = NOT_OBSERVABLE[kind] | ({TAU} if level == 2 and kind != "resnet" else set())
    assert set(absent) == expected
    assert all(math.isfinite(value) for value in values.values())
    watched_blocks = structure_of(model).blocks_at(level)
    names = {f"Residual/block_{block.index}/{name}" for block in watched_blocks for name in ("rms", "outlier_rate_k10")}
    if kind != "resnet":
        names |= {
            f"Attention/block_{block.index}/{name}"
            for block in watched_blocks
            for name in ("attn_entropy", "attn_entropy_norm")
        }
    assert names <= set(values)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "vit"])
def test_residual_stream_and_entropy_are_those_of_the_models_own_outputs(kind: str) -> None:
    """The model returns its hidden states and attentions; the last hidden state is the final norm's output."""
    model = MODELS[kind](**EAGER)

    values, _, output = watched(model, output_hidden_states=True, output_attentions=True)

    for block in (0, 2):
        assert values[f"Residual/block_{block}/rms"] == pytest.approx(rms(output.hidden_states[block + 1]), rel=1e-6)
    for block in (0, 2, 3):
        known = entropy(output.attentions[block])
        assert values[f"Attention/block_{block}/attn_entropy"] == pytest.approx(known, rel=1e-6)
        keys = output.attentions[block].shape[-1]
        assert values[f"Attention/block_{block}/attn_entropy_norm"] == pytest.approx(known / math.log(keys), rel=1e-6)
    if kind in ("gpt2", "llama"):
        assert values["Activations/final_norm/rms"] == pytest.approx(rms(output.hidden_states[-1]), rel=1e-6)
        greatest = output.hidden_states[-1].abs().max().item()
        assert values["Activations/final_norm/max_abs"] == pytest.approx(greatest)


def test_the_blocks_of_t5_are_those_of_the_encoder_and_then_of_the_decoder() -> None:
    """Self-attention is read on both sides, not the position bias that is returned beside it."""
    model = t5(**EAGER)

    values, _, output = watched(model, level=2, output_hidden_states=True, output_attentions=True)

    attentions = [*output.encoder_attentions, *output.decoder_attentions]
    for block in range(4):
        assert values[f"Attention/block_{block}/attn_entropy"] == pytest.approx(entropy(attentions[block]), rel=1e-6)
    assert values["Residual/block_0/rms"] == pytest.approx(rms(output.encoder_hidden_states[1]), rel=1e-6)
    assert values["Residual/block_2/rms"] == pytest.approx(rms(output.decoder_hidden_states[1]), rel=1e-6)
    assert values["Activations/final_norm/rms"] == pytest.approx(rms(output.decoder_hidden_states[-1]), rel=1e-6)


def test_the_entropy_of_gpt2_is_that_of_scores_computed_by_hand() -> None:
    """Q K^T / sqrt(d) from the hidden states, in NumPy."""
    model = gpt2(**EAGER)

    values, _, output = watched(model, output_hidden_states=True, output_attentions=True)

    block = model.transformer.h[2]
    normed = block.ln_1(output.hidden_states[2])
    q, k, _ = block.attn.c_attn(normed).detach().double().numpy().reshape(2, 6, 3, HEADS, -1).transpose(2, 0, 3, 1, 4)
    scores = np.where(np.triu(np.ones((6, 6)), 1), -np.inf, q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS))
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert values["Attention/block_2/attn_entropy"] == pytest.approx(entropy(torch.from_numpy(shares)), rel=1e-6)
    assert values["Activations/block_2/attn_norm/rms"] == pytest.approx(rms(normed), rel=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "vit", "t5"])
def test_a_fused_kernel_shows_no_attention_and_keeps_its_place(kind: str) -> None:
    """The reason names what to do; the model's implementation is not changed."""
    model = MODELS[kind](attn_implementation="sdpa")
    before = model.config._attn_implementation

    values, absent, _ = watched(model)

    assert not any(name.startswith("Attention") for name in values)
    for name in ("max_attn_logit", "attn_entropy", "attn_entropy_norm"):
        assert "attn_implementation='eager'" in absent[f"Attention/block_*/{name}"]
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "vit", "t5"])
def test_weights_after_dropout_have_no_entropy(kind: str) -> None:
    """They are no probabilities; the reason says so."""
    model = MODELS[kind](dropout=0.2, **EAGER)

    values, absent, _ = watched(model, output_attentions=True)

    assert not any(name.startswith("Attention") for name in values)
    assert "after dropout" in absent["Attention/block_*/attn_entropy"]


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "vit"])
def test_gradient_checkpointing_changes_no_value(kind: str, use_reentrant: bool) -> None:
    """Blocks that are computed again in the backward pass are read as the others."""
    torch.manual_seed(0)
    model = MODELS[kind](hidden_dropout_prob=0.0) if kind in ("bert", "vit") else MODELS[kind]()
    for each in model.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
    plain, absences, _ = watched(model)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant and kind != "vit":
        model.enable_input_require_grads()

    values, absent, _ = watched(model)

    assert values == pytest.approx(plain, rel=1e-6)
    assert absent == absences


@pytest.mark.parametrize("kind", MODELS)
def test_an_armed_model_is_pickled_and_copied(kind: str) -> None:
    """The copies run, and change nothing of what the original's probes see."""
    model = MODELS[kind]()
    structure, readings = structure_of(model), Readings(2, is_check=False)
    parts = [Activations(structure), AttentionScores(structure)]
    for part in parts:
        part.arm(readings)

    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        run(twin)
    for part in parts:
        part.read(readings)

    assert readings.scalars == {}


@pytest.mark.parametrize("level", ["standard", "debug"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_training_of_each_kind_is_watched(kind: str, level: Any, tmp_path: Path) -> None:
    """``rec.watch`` fails nowhere, records the updates of all blocks, and says what it cannot observe."""
    torch.manual_seed(0)
    model = MODELS[kind]() if kind == "resnet" else MODELS[kind](**EAGER)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with Recorder(tmp_path, strict=True) as rec:
        watch = rec.watch(model, optimizer, level=level, every=2, budget=None, check_every=2)
        for _ in range(4):
            optimizer.zero_grad()
            output = run(model)
            loss = output.logits.square().mean() if output.loss is None else output.loss
            loss.backward()
            optimizer.step()
            rec.step(loss=loss)

    recorded = open_run(rec.folder)
    events = [event for event in recorded.events() if "Probes/every" in event.metrics]
    notes = [str(event.attrs["text"]) for event in recorded.events() if event.kind == "annotation"]
    count = len(structure_of(model).blocks)

    assert [event.step for event in events] == [1, 2, 4]
    assert not [note for note in notes if "failed" in note]
    for event in events:
        assert all(event.metrics[f"Updates/block_{block}/ratio"] > 0 for block in range(count))
        assert math.isfinite(event.metrics["Gradients/norm"])
    assert any(name.startswith("Attention/") for name in watch.absent)
