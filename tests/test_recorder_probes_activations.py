"""Probes read the residual stream and normalisation layers in forward hooks of one update."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from probe_models import WIDTH, NanoGPT, armed_parts, one_update, tokens_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from steptape.recorder.probes.activations import root_mean_square, share_above

INPUT = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(0))


def hooks_of(model: nn.Module) -> int:
    """Return the number of hooks in a model."""
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


def expected(model: NanoGPT, tokens: Tensor) -> dict[str, float]:
    """Return residual and activation metrics of all blocks from NumPy, by a pass through the blocks by hand."""
    values = {}

    def put(name: str, output: Tensor) -> None:
        array = output.detach().double().numpy()
        values[f"{name}/rms"] = float((array**2).mean() ** 0.5)
        if name.startswith("Residual"):
            values[f"{name}/outlier_rate_k10"] = float((abs(array) > 10 * values[f"{name}/rms"]).mean())
        else:
            values[f"{name}/max_abs"] = float(abs(array).max())

    x = model.transformer["wte"](tokens) + model.transformer["wpe"](torch.arange(tokens.shape[1]))
    for index, block in enumerate(model.blocks):
        put(f"Activations/block_{index}/attn_norm", block.ln_1(x))
        x = block(x)
        put(f"Residual/block_{index}", x)
    put("Activations/final_norm", model.transformer["ln_f"](x))
    return values


@pytest.mark.parametrize("level", [1, 2])
def test_values_are_those_of_numpy(level: int) -> None:
    """Standard reads the sentinel blocks, debug all."""
    model = NanoGPT(layers=5)

    values, absent = one_update(model, lambda: model(tokens_of()), level)

    found = {name: value for name, value in values.items() if not name.startswith("Attention")}
    known = expected(model, tokens_of())
    blocks = range(5) if level == 2 else (0, 2, 4)
    assert set(found) == {name for name in known if "final" in name or any(f"_{block}/" in name for block in blocks)}
    assert found == pytest.approx({name: known[name] for name in found}, rel=1e-6)
    assert absent == {}


def test_a_check_adds_the_histograms_of_the_normalised_activations() -> None:
    """Those of the sites whose root mean square is recorded; other updates have none."""
    model, seen = NanoGPT(layers=3), list[Tensor]()
    model.get_submodule("transformer.h.0.ln_1").register_forward_hook(lambda *given: seen.append(given[2].detach()))

    for is_check in (False, True):
        readings, parts = armed_parts(model, is_check=is_check)
        model(tokens_of())
        for part in parts:
            part.read(readings)
            part.close()

        sites = {name.removeprefix("Activations/").removesuffix("/rms") for name in readings.scalars if "/rms" in name}
        named = {f"activations_hist/{site}" for site in sites if "Residual" not in site} if is_check else set()
        assert set(readings.vectors) == named
    found = readings.vectors["activations_hist/block_0/attn_norm"].tolist()
    assert found[:2] == pytest.approx([seen[-1].min().item(), seen[-1].max().item()])
    assert sum(found[2:]) == seen[-1].numel()


def test_minimal_attaches_nothing() -> None:
    """No hook runs, and nothing is said to be absent."""
    model = NanoGPT()

    readings, _ = armed_parts(model, level=0)

    assert hooks_of(model) == 0
    assert readings.absent == {}


def test_hooks_are_there_for_one_update_only() -> None:
    """``disarm`` and ``close`` leave nothing in the model, a thousand times."""
    model = NanoGPT(layers=1)

    for _ in range(1000):
        _, parts = armed_parts(model)
        assert hooks_of(model) > 0
        for part in parts:
            part.disarm()
            part.close()
            part.close()

    assert hooks_of(model) == 0


def test_the_last_pass_of_an_update_counts() -> None:
    """With several micro-batches the last one is read, and passes in evaluation mode or without gradients are not."""
    model = NanoGPT()

    def micro_batches() -> None:
        model(tokens_of(2))
        model(tokens_of(3))
        model.eval()
        model(tokens_of(4))
        model.train()
        with torch.no_grad():
            model(tokens_of(5))

    values, _ = one_update(model, micro_batches)

    assert values["Residual/block_3/rms"] == pytest.approx(expected(model, tokens_of(3))["Residual/block_3/rms"])


def test_an_update_without_a_pass_that_counts_has_no_values() -> None:
    """One line for all blocks says so."""
    model = NanoGPT()

    values, absent = one_update(model, lambda: model.eval()(tokens_of()))

    assert values == {}
    assert "no forward pass in training mode" in absent["Residual/block_*/rms"]
    assert not any("block_0" in name for name in absent)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_changes_no_value(use_reentrant: bool) -> None:
    """The recomputation in the backward pass sees the same outputs."""
    model = NanoGPT(run=lambda block, x: checkpoint(block, x, use_reentrant=use_reentrant))

    values, absent = one_update(model, lambda: model(tokens_of()).sum().backward())

    known = expected(model, tokens_of())
    assert absent == {}
    assert {name: values[name] for name in known if name in values} == pytest.approx(
        {name: known[name] for name in known if name in values}, rel=1e-6
    )


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the name of each operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        self.names.add(func.name().removeprefix("aten::").partition(".")[0])
        return func(*args, **(kwargs or {}))


def test_no_hook_waits_for_a_device() -> None:
    """No value is read by the host, and no number of the host is copied to a device as a tensor."""
    model, operations = NanoGPT(), Operations()
    readings, parts = armed_parts(model, level=2)

    with operations:
        model(tokens_of()).sum().backward()
        for part in parts:
            part.read(readings)

    waits = {"_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "is_nonzero", "equal", "item"}
    assert len(readings.scalars) == 34
    assert "aminmax" in operations.names
    assert operations.names & waits == set()


def test_gradients_are_bit_equal_with_and_without_probes() -> None:
    """Hooks read, and change nothing."""
    model = NanoGPT()
    model(tokens_of()).sum().backward()
    before = [value.grad.clone() for value in model.parameters() if value.grad is not None]
    model.zero_grad()

    one_update(model, lambda: model(tokens_of()).sum().backward(), level=2)

    assert all(torch.equal(a, b.grad) for a, b in zip(before, model.parameters(), strict=True) if b.grad is not None)


def test_a_function_that_torch_compiles_around_an_armed_model_is_unharmed() -> None:
    """Hooks inside of the region are passed over, without a break of the graph; what they would see is absent."""
    model = NanoGPT()
    compiled = torch.compile(lambda tokens: model(tokens).sum(), fullgraph=True, backend="eager")

    values, absent = one_update(model, lambda: compiled(tokens_of()))

    assert values == {}
    assert "torch.compile" in absent["Residual/block_*/rms"]
    torch.testing.assert_close(compiled(tokens_of()), model(tokens_of()).sum())


def test_a_compiled_model_has_no_hooks_and_says_so() -> None:
    """Its blocks and norms lie in the region."""
    model = NanoGPT()
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")

    values, absent = one_update(compiled, lambda: compiled(tokens_of()))

    assert values == {}
    assert {"Residual/block_*/*", "Attention/block_*/*", "Activations/final_norm/*"} <= set(absent)
    assert hooks_of(model) == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's own, in tracing a block's input.
def test_the_output_of_a_block_that_is_compiled_alone_is_read() -> None:
    """The hook is attached to the wrapper, outside of the region."""
    model = NanoGPT()
    known = expected(model, tokens_of())
    blocks = model.blocks
    for index in range(4):
        blocks[index] = torch.compile(blocks[index], fullgraph=True, backend="eager")

    values, absent = one_update(model, lambda: model(tokens_of()))

    assert values["Residual/block_3/rms"] == pytest.approx(known["Residual/block_3/rms"], rel=1e-6)
    assert "torch.compile" in absent["Attention/block_*/*"]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    """Run a process group of one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_model_in_ddp_has_the_same_values() -> None:
    """Hooks are attached to the modules inside."""
    model = NanoGPT()
    parallel = nn.parallel.DistributedDataParallel(model)

    values, absent = one_update(parallel, lambda: parallel(tokens_of()).sum().backward())

    assert absent == {}
    assert values["Residual/block_3/rms"] == pytest.approx(expected(model, tokens_of())["Residual/block_3/rms"])


class PostNorm(nn.Module):
    """A block whose norms come after what they normalise."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), nn.MultiheadAttention(WIDTH, 2), nn.LayerNorm(WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the sums."""
        x = self.norm1(x + self.attn(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.mlp(x))  # type: ignore[no-any-return]


def test_a_norm_that_runs_after_the_attention_has_no_metrics_of_one_before_it() -> None:
    """The order at run time decides, also with several passes in an update."""
    model: Any = nn.Sequential(PostNorm(), PostNorm())

    def passes() -> None:
        model(INPUT)
        model(INPUT)

    values, absent = one_update(model, passes)

    assert absent["Activations/block_*/attn_norm/rms"] == "the normalisation layer runs after the attention module"
    assert not any("attn_norm" in name for name in values)


class EarlyNorm(nn.Module):
    """A norm that is registered after the blocks, and runs before them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise first."""
        return self.layers[1](self.layers[0](self.norm(x)))  # type: ignore[no-any-return]


def test_a_norm_that_runs_before_the_blocks_is_no_final_norm() -> None:
    """Its values would carry a wrong name."""
    model = EarlyNorm()

    _, absent = one_update(model, lambda: model(INPUT))

    assert absent["Activations/final_norm/rms"] == "the normalisation layer runs before the last block"


class Returns(nn.Module):
    """A block that returns what a function makes of its output."""

    def __init__(self, form: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(WIDTH, WIDTH), form

    def forward(self, _: object) -> object:
        """Return the form."""
        return self.form(self.linear(INPUT))


@pytest.mark.parametrize(
    "form",
    [lambda y: (y, None), lambda y: [None, y], lambda y: {"hidden": y, "cache": y * 9}, lambda y: y],
    ids=["tuple", "list", "mapping", "tensor"],
)
def test_the_first_tensor_of_an_output_is_the_blocks(form: Callable[[Tensor], object]) -> None:
    """Tuples, lists and mappings are looked into."""
    model: Any = nn.Sequential(Returns(form), Returns(form))

    values, _ = one_update(model, lambda: model(INPUT))

    known = model[1].linear(INPUT).pow(2).mean().sqrt().item()
    assert values["Residual/block_1/rms"] == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (lambda _: None, "its output holds no tensor"),
        (lambda _: 7, "its output holds no tensor"),
        (lambda y: y.long(), "its output is of type int64"),
        (lambda y: y.to_sparse(), "its output is no dense tensor"),
        (lambda y: y[:0], "its output is empty"),
    ],
    ids=["none", "number", "integers", "sparse", "empty"],
)
def test_an_output_without_statistics_is_absent_with_the_reason(form: Callable[[Tensor], object], reason: str) -> None:
    """The training goes on."""
    model: Any = nn.Sequential(Returns(form), Returns(form))

    values, absent = one_update(model, lambda: model(INPUT))

    assert values == {}
    assert absent["Residual/block_*/rms"] == reason


def test_a_hook_that_fails_ends_no_training_and_is_named() -> None:
    """What the hook reads here refuses every operation."""

    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: object, *_: object, **__: object) -> object:
            raise RuntimeError("refused")

    model: Any = nn.Sequential(Returns(lambda y: y.as_subclass(Refusing)), Returns(lambda y: y))

    values, absent = one_update(model, lambda: model(INPUT))

    assert "Residual/block_1/rms" in values
    assert absent["Residual/block_0/rms"] == "its probe failed: RuntimeError: refused"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_other_types_are_reduced_in_a_precise_one(dtype: torch.dtype) -> None:
    """The values are those of the rounded elements."""
    model: Any = nn.Sequential(Returns(lambda y: y.to(dtype)), Returns(lambda y: y.to(dtype)))

    values, _ = one_update(model, lambda: model(INPUT))

    sizes = model[1].linear(INPUT).to(dtype).abs().double()
    assert values["Residual/block_1/rms"] == pytest.approx(sizes.pow(2).mean().sqrt().item(), rel=1e-6)


def test_autocast_reads_what_the_loop_computes() -> None:
    """The outputs of the blocks are bfloat16, their statistics are not rounded."""
    model: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    seen: list[Tensor] = []
    model[1].register_forward_hook(lambda _module, _args, output: seen.append(output))

    def forward() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(INPUT)

    values, _ = one_update(model, forward)

    assert seen[0].dtype == torch.bfloat16
    assert values["Residual/block_1/rms"] == pytest.approx(seen[0].double().pow(2).mean().sqrt().item(), rel=1e-6)


def test_a_root_mean_square_is_precise_over_millions_of_elements() -> None:
    """One sum over all elements would be wrong by 7e-5."""
    values = torch.randn(8, 512, 768, generator=torch.Generator().manual_seed(0))

    assert root_mean_square(values).item() == pytest.approx(values.double().pow(2).mean().sqrt().item(), rel=1e-6)


def test_outliers_of_a_rounded_type_are_compared_with_the_exact_threshold() -> None:
    """256.5 is rounded to 256 in bfloat16, and would count elements of 256 or not depending on it."""
    values = torch.tensor([256.0, 258.0, 1.0, -1.0], dtype=torch.bfloat16)

    assert share_above(values, torch.tensor(256.5)).item() == 0.25
    assert share_above(values, torch.tensor(255.5)).item() == 0.5


def test_an_armed_model_is_pickled_copied_and_deleted() -> None:
    """A pickle and a copy hold hooks that do nothing; the original is freed although its probes live."""
    model = NanoGPT()
    readings, parts = armed_parts(model)

    twin, copied = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
    twin(tokens_of())
    copied(tokens_of())
    for part in parts:
        part.read(readings)
    alive = weakref.ref(model)
    del model
    gc.collect()

    assert readings.scalars == {}
    assert alive() is None


def test_closing_frees_what_a_part_held() -> None:
    """Blocks are freed with the model."""
    model = NanoGPT()
    _, parts = armed_parts(model)
    alive = weakref.ref(model.blocks[0])

    for part in parts:
        part.close()
    del model
    gc.collect()

    assert alive() is None


def test_two_networks_of_a_gan_are_watched_each_for_itself() -> None:
    """The discriminator runs twice in an update; its last pass counts."""
    generator = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    discriminator = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    first, parts = armed_parts(generator)
    second, more = armed_parts(discriminator)

    discriminator(INPUT).sum().backward()
    discriminator(generator(INPUT)).sum().backward()
    for part in parts:
        part.read(first)
    for part in more:
        part.read(second)

    known = discriminator(generator(INPUT)).pow(2).mean().sqrt().item()
    assert second.scalars["Residual/block_1/rms"].item() == pytest.approx(known, rel=1e-6)
    assert set(first.scalars) == {f"Residual/block_{i}/{name}" for i in (0, 1) for name in ("rms", "outlier_rate_k10")}
