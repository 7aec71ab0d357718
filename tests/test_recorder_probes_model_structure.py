"""Probes find blocks, sentinel tensors and normalisation layers by the structure of a model, and by ``sites``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from probe_models import WIDTH, EagerBlock, NanoGPT
from torch import Tensor, nn

from steptape import TelemetryError
from steptape.recorder.probes.model_structure import SENTINEL_WEIGHTS, ModelStructure, structure_of
from steptape.recorder.probes.module_tree import tree_of


def names(structure: ModelStructure) -> list[str]:
    """Return the names of the blocks."""
    return [block.name for block in structure.blocks]


def test_a_nanogpt_has_its_blocks_main_weights_and_norms() -> None:
    """Blocks come in depth order, each with its four matrices, its attention and the norm before it."""
    model = NanoGPT(layers=5)

    found = structure_of(model)

    assert names(found) == [f"transformer.h.{index}" for index in range(5)]
    assert found.sentinels == (0, 2, 4)
    block, module = found.blocks[2], model.blocks[2]
    assert list(block.main_weights) == [
        f"transformer.h.2.{name}.weight" for name in ("attn.qkv", "attn.proj", "mlp.0", "mlp.2")
    ]
    assert block.module is module
    assert block.attention is module.attn
    assert list(found.norm_sites) == [f"block_{index}/attn_norm" for index in (0, 2, 4)] + ["final_norm"]
    assert found.norm_sites["block_2/attn_norm"] is module.ln_1
    assert found.norm_sites["final_norm"] is model.transformer["ln_f"]


def test_sentinel_tensors_are_embeddings_final_norm_and_main_weights_but_no_tied_head() -> None:
    """A tied output layer is the token embedding, which counts once."""
    found = structure_of(NanoGPT(layers=1))

    assert list(found.sentinel_parameters) == [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
        *found.blocks[0].main_weights,
    ]


def test_an_output_layer_of_its_own_is_a_sentinel() -> None:
    """The last layer after the blocks counts, if no embedding shares its weight."""
    model = NanoGPT(layers=1)
    model.lm_head = nn.Linear(WIDTH, 11)

    assert "lm_head.weight" in structure_of(model).sentinel_parameters


@pytest.mark.parametrize("layers", [1, 2, 3, 12])
def test_the_number_of_sentinels_depends_on_no_depth(layers: int) -> None:
    """There are three sentinel blocks at most, and a fixed number of tensors in each."""
    found = structure_of(NanoGPT(layers))

    assert found.sentinels == tuple(sorted({0, layers // 2, layers - 1}))
    assert len(found.sentinel_parameters) == 4 + 4 * len(found.sentinels)


def test_debug_watches_all_blocks_and_parameters() -> None:
    """Minimal watches none, standard the sentinels."""
    model = NanoGPT(layers=5)

    found = structure_of(model)

    assert [len(found.blocks_at(level)) for level in (0, 1, 2)] == [0, 3, 5]
    assert list(found.parameters_at(2)) == [name for name, _ in model.named_parameters()]
    assert found.parameters_at(0) == {}
    assert len(found.norm_sites_at(2)) == 6
    assert found.norm_sites_at(0) == {}


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda model: torch.compile(model, backend="eager")])
def test_names_are_those_of_the_innermost_model(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """A wrapper of the whole model adds nothing to a name."""
    found = structure_of(wrap(NanoGPT()))

    assert list(found.parameters) == [name for name, _ in NanoGPT().named_parameters()]
    assert names(found)[0] == "transformer.h.0"


def test_hooks_run_outside_of_what_is_compiled_in_a_wrapper_and_inside_of_a_module_that_compiles_itself() -> None:
    """Those of ``module.compile()`` are compiled with it."""
    model, wrapped = nn.Linear(2, 2), nn.Linear(2, 2)
    for each in (model, wrapped):
        each.compile(backend="eager")
    nodes = [tree_of(model), tree_of(nn.DataParallel(wrapped)), tree_of(nn.Linear(2, 2))]

    assert [node.is_compiled for node in nodes] == [True, False, False]
    assert [node.is_compiled_inside for node in nodes] == [True, True, False]


def test_blocks_that_are_compiled_one_by_one_keep_their_names() -> None:
    """The output of such a block is in reach, what is inside of it is not."""
    model = NanoGPT()
    blocks = model.blocks
    for index in range(4):
        blocks[index] = torch.compile(blocks[index], backend="eager")

    found = structure_of(model)

    assert names(found) == [f"transformer.h.{index}" for index in range(4)]
    assert {(block.is_compiled, block.is_compiled_inside) for block in found.blocks} == {(False, True)}
    assert list(found.norm_sites) == ["final_norm"]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")  # PyTorch's hint for inference.
def test_an_encoder_and_a_decoder_number_their_blocks_one_after_the_other() -> None:
    """The encoder's come first. Cross-attention is no attention of a block, its weights are main weights."""
    found = structure_of(nn.Transformer(WIDTH, 2, 2, 3, 16))

    assert names(found) == [*(f"encoder.layers.{i}" for i in range(2)), *(f"decoder.layers.{i}" for i in range(3))]
    assert len(found.blocks[0].main_weights) == 4
    assert len(found.blocks[-1].main_weights) == 6
    assert found.blocks[-1].attention is found.blocks[-1].module.self_attn


def test_a_post_norm_encoder_has_no_norm_before_its_attention() -> None:
    """PyTorch's encoder layer says so itself."""
    found = structure_of(nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2), 2, enable_nested_tensor=False))

    assert [block.attention_norm for block in found.blocks] == [None, None]


class ResidualBlock(nn.Module):
    """Two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)
        self.conv2, self.bn2 = nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2)


class Stages(nn.Module):
    """A stem, two stages of residual blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2, 3)
        self.layer1 = nn.Sequential(ResidualBlock(), ResidualBlock())
        self.layer2 = nn.Sequential(ResidualBlock(), ResidualBlock(), ResidualBlock())
        self.fc = nn.Linear(2, 10)


def test_a_residual_network_has_the_blocks_of_all_stages() -> None:
    """What repeats are the blocks, not the stages."""
    found = structure_of(Stages())

    assert names(found) == ["layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer2.2"]
    assert list(found.blocks[0].main_weights) == ["layer1.0.conv1.weight", "layer1.0.conv2.weight"]
    assert "fc.weight" in found.sentinel_parameters
    assert "no attention module" in found.absent["Attention/block_*"]


def test_the_layers_that_repeat_most_are_the_blocks_of_a_plain_network() -> None:
    """Convolutions side by side count, the one linear layer after them is the output layer."""
    model: Any = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 2)
    )

    found = structure_of(model)

    assert names(found) == ["0", "2", "4"]
    assert list(found.sentinel_parameters) == ["6.weight", "0.weight", "2.weight", "4.weight"]


def test_a_model_without_repetition_says_that_it_has_no_blocks() -> None:
    """Its only matrix is its output layer."""
    found = structure_of(nn.Linear(3, 2))

    assert found.blocks == ()
    assert "no repeated blocks" in found.absent["*/block_*"]
    assert list(found.sentinel_parameters) == ["weight"]


def test_lazy_parameters_are_main_weights_before_they_have_a_shape() -> None:
    """Only their biases are known to be none."""
    model: Any = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(4))

    found = structure_of(model)
    model(torch.zeros(2, 3))

    assert [list(block.main_weights) for block in found.blocks] == [["0.weight"], ["2.weight"]]
    assert found.blocks[0].main_weights["0.weight"].shape == (4, 3)


def test_a_block_that_runs_several_times_is_one_block() -> None:
    """A shared module counts once, under its first name."""
    block = EagerBlock()

    found = structure_of(nn.Sequential(nn.Embedding(11, WIDTH), block, block, block))

    assert names(found) == ["1"]


def test_a_weight_that_blocks_share_belongs_to_the_first() -> None:
    """The norms of blocks thus count it once."""
    model: Any = nn.Sequential(*(EagerBlock() for _ in range(2)))
    model[1].attn.qkv.weight = model[0].attn.qkv.weight

    found = structure_of(model)

    assert [len(block.main_weights) for block in found.blocks] == [4, 3]


class Experts(EagerBlock):
    """A block with many experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8)) for _ in range(16)])


def test_experts_are_no_blocks_and_add_no_series() -> None:
    """The sentinel tensors of a block are bounded, and the structure says what it left out."""
    found = structure_of(nn.Sequential(Experts(), Experts(), Experts()))

    assert names(found) == ["0", "1", "2"]
    assert len(found.blocks[0].main_weights) == 36
    assert len(found.sentinel_parameters) == 3 * SENTINEL_WEIGHTS
    assert found.absent["gradients/0.*"] == "of 36 main weights the first 12 are sentinels"


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))


def test_two_networks_of_a_gan_are_one_structure_or_two() -> None:
    """Watched together, the layers of both are blocks in the order of registration."""
    pair = Pair()

    assert names(structure_of(pair)) == ["generator.0", "generator.2", "discriminator.0", "discriminator.2"]
    assert names(structure_of(pair.discriminator)) == ["0", "2"]


class Opaque(nn.Module):
    """Layers that no list holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Bilinear(2, 2, 2)
        self.norm_a = nn.LayerNorm(2)

    def forward(self, x: Tensor) -> Tensor:
        """Run them."""
        return self.norm_a(self.second(self.first(x), x))  # type: ignore[no-any-return]


def test_sites_name_what_structure_does_not_show() -> None:
    """A list keeps the order of the model; norms carry the module's name."""
    found = structure_of(Opaque(), {"blocks": ["second", "first"], "norms": "norm_*"})

    assert names(found) == ["first", "second"]
    assert list(found.norm_sites) == ["norm_a"]


def test_sites_name_one_score_module_for_each_block() -> None:
    """``*`` stands for one component of a name."""
    found = structure_of(NanoGPT(), {"blocks": "transformer.h.*", "attention_scores": "transformer.h.*.attn.softmax"})

    assert all(block.scores is block.module.attn.softmax for block in found.blocks)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ({"blocks": "transformer.hh.*"}, "no module of the model has this name.*'transformer.h.*'"),
        ({"block": "transformer.h.*"}, "unknown key.*Did you mean 'blocks'"),
        ({"attention": "transformer.h.*.attn*.*"}, "16 modules for 4 blocks"),
    ],
)
def test_a_site_that_matches_nothing_is_an_error_with_near_names(sites: dict[str, str], message: str) -> None:
    """The message holds the place, the pattern and what the model has."""
    with pytest.raises(TelemetryError, match=message):
        structure_of(NanoGPT(), sites)


def test_a_structure_does_not_keep_its_model_alive() -> None:
    """It holds modules and parameters inside of the model only."""
    model = NanoGPT()
    found = structure_of(model)
    alive = weakref.ref(model)

    del model
    gc.collect()

    assert alive() is None
    assert found.blocks
