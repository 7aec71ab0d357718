"""Measures what ``rec.watch`` costs a training, beside the step that it watches and beside other tools' probes.

    .venv/bin/python benchmarks/probes.py                      # a GPT-2 small of random weights and a toy, on the CPU
    .venv/bin/python benchmarks/probes.py --device cuda        # also checks that no step synchronises

One JSON line a model and case. All cases of a model train the same weights by turns, one step each, so that other load
on the machine affects all alike. ``own_us`` is the time within the probes on the training thread, the median over the
steps; ``of_step`` is that as a share of the plain step's median. ``first`` is the first emission of a watch, which also
finds the structure and is one of the slower checks. ``longer`` is how much longer the whole step was than the plain one
of the same turn, the median over the turns: it includes what hooks cost in other ways, and all noise. At every tenth
update the standard level costs a tenth of ``of_step`` of its emitting step, given as ``at_every_10``.

Other tools are measured where they are installed: ``wandb.watch`` (gradients, every step), Lightning's ``grad_norm``,
and the norms of Composer's ``OptimizerMonitor``, which this script makes as that callback does: a norm of each
gradient, weight and moment, one after the other, then a number of each on the host.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import torch
from torch import Tensor, nn

from steptape import Recorder
from steptape.recorder.probes.hooks import Hook

Level: TypeAlias = Literal["minimal", "standard", "debug"]

LEVELS: Final[tuple[Level, ...]] = ("minimal", "standard", "debug")

#: A cadence at which no measured step emits.
NEVER: Final = 10**9


class Attention(nn.Module):
    """Causal self-attention by torch's fused kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend. Shape (n, tokens, width)."""
        n, tokens, width = x.shape
        q, k, v = (
            part.view(n, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.as_tensor(self.out(mixed.transpose(1, 2).reshape(n, tokens, width)))


class TransformerBlock(nn.Module):
    """A block with normalisation in front."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add to the residual stream."""
        x = x + self.attn(self.ln_1(x))
        return torch.as_tensor(x + self.mlp(self.ln_2(x)))


class Transformer(nn.Module):
    """A decoder with tied embeddings, of GPT-2's shape."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, context: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList([TransformerBlock(width, heads) for _ in range(depth)])
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of the next tokens."""
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


@dataclass
class Training:
    """A model that trains one step at a time.

    Attributes:
        model, optimizer, batch: What it trains, and on what.
        rec: Records each step, if there is a recorder.
    """

    model: Transformer
    optimizer: torch.optim.Optimizer
    batch: Tensor
    after_backward: Callable[[], object] = lambda: None

    def step(self, rec: Recorder | None) -> int:
        """Train one step, and return what it took in nanoseconds."""
        begun = time.perf_counter_ns()
        loss = self.update()
        if rec is not None:
            rec.step(loss=loss)
        if self.batch.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter_ns() - begun

    def update(self) -> Tensor:
        """Update the weights once, and return the loss."""
        self.optimizer.zero_grad()
        loss: Tensor = self.model(input_ids=self.batch, labels=self.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.after_backward()
        self.optimizer.step()
        return loss


@dataclass
class Times:
    """Times of one case, in nanoseconds: those of the whole steps, and those within the probes."""

    whole: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)


@contextlib.contextmanager
def watched(training: Training, rec: Recorder, level: Level, every: int) -> Iterator[Callable[[], int]]:
    """Watch, and yield a function that trains a step and returns the nanoseconds within the probes."""
    with rec.watch(
        training.model, training.optimizer, level=level, every=every, budget=None, check_every=NEVER
    ) as watch:
        taking = watch.values_of_update

        def timed(step: int) -> Any:
            begun = time.perf_counter_ns()
            emission = taking(step)
            Hook.spent_ns += time.perf_counter_ns() - begun
            return emission

        watch.values_of_update = timed  # type: ignore[method-assign]
        yield lambda: Hook.spent_ns


def composer_like(training: Training) -> None:
    """Measure each tensor by itself, as Composer's OptimizerMonitor does, and read each number."""
    numbers: dict[str, float] = {}
    for name, each in training.model.named_parameters():
        if each.grad is None:
            continue
        numbers[f"l2_norm/grad/{name}"] = float(torch.linalg.vector_norm(each.grad))
        numbers[f"l2_norm/param/{name}"] = float(torch.linalg.vector_norm(each.data))
        for moment in ("exp_avg", "exp_avg_sq"):
            if (state := training.optimizer.state.get(each, {}).get(moment)) is not None:
                numbers[f"l2_norm/{moment}/{name}"] = float(torch.linalg.vector_norm(state))


def measure(training: Training, turns: int, folder: str) -> dict[str, Times]:
    """Train all cases by turns."""
    times: dict[str, Times] = {}
    rec = Recorder(folder, quiet=True)

    def turn(name: str, own: Callable[[], int] = lambda: 0) -> None:
        own_before = own()
        taken = training.step(rec)
        times.setdefault(name, Times()).whole.append(taken)
        times[name].own.append(own() - own_before)

    for _ in range(turns + 1):
        turn("plain")
        for level in LEVELS:
            with watched(training, rec, level, 1) as own:  # The first update also finds the structure, and is a check.
                turn(f"first, {level}", own)
                turn(f"emitting, {level}", own)
        with watched(training, rec, "standard", NEVER) as own:
            training.step(rec)
            turn("silent", own)
        peers(training, turn)
    for each in times.values():  # The first turn warms up.
        del each.whole[0], each.own[0]
    rec.close()
    return times


def peers(training: Training, turn: Callable[..., None]) -> None:
    """Train a step with each other tool's probes."""
    spent = 0

    def counted(call: Callable[[], object]) -> None:
        nonlocal spent
        begun = time.perf_counter_ns()
        call()
        spent += time.perf_counter_ns() - begun

    training.after_backward = lambda: counted(lambda: composer_like(training))
    turn("as Composer's OptimizerMonitor", lambda: spent)
    if importlib.util.find_spec("lightning"):
        from lightning.pytorch.utilities import grad_norm

        training.after_backward = lambda: counted(lambda: grad_norm(training.model, 2))
        turn("Lightning's grad_norm", lambda: spent)
    training.after_backward = lambda: None
    if importlib.util.find_spec("wandb"):
        import wandb

        os.environ["WANDB_SILENT"] = "true"
        with tempfile.TemporaryDirectory() as folder, wandb.init(mode="offline", dir=folder) as run:
            run.watch(training.model, log="gradients", log_freq=1)
            training.step(None)
            turn("wandb.watch, gradients")
            run.unwatch(training.model)


def check_waits(training: Training, folder: str, every: int) -> dict[str, Any]:
    """Train 50 steps with torch's synchronisation as an error. Only a GPU shows one."""
    with (
        Recorder(folder, quiet=True) as rec,
        rec.watch(training.model, training.optimizer, every=every, budget=None, check_every=NEVER),
    ):
        for _ in range(5):
            training.step(rec)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(50):
                rec.step(loss=training.update())
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {"steps without a synchronisation": 50, "emitting": 50 // every}


def unwaited(training: Training, turns: int, folder: str, steps: int = 50) -> dict[str, list[float]]:
    """Train blocks of steps that wait for the GPU at their end alone, by turns. Returns seconds a block, by case."""
    times: dict[str, list[float]] = {}

    def block(case: str, after_step: Callable[[Tensor], object]) -> None:
        after_step(training.update())  # The first update of a watch also finds the structure.
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(steps):
            after_step(training.update())
        torch.cuda.synchronize()
        times.setdefault(case, []).append(time.perf_counter() - begun)

    with Recorder(folder, quiet=True) as rec:
        for _ in range(turns + 1):
            block("plain", lambda _: None)
            block("loss.item()", lambda loss: loss.item())
            block("rec.step(loss=loss)", lambda loss: rec.step(loss=loss))
            for level in LEVELS:
                with rec.watch(training.model, training.optimizer, level=level, every=10, budget=None):
                    block(f"watch every 10, {level}", lambda loss: rec.step(loss=loss))
    return {case: seconds[1:] for case, seconds in times.items()}  # The first turn warms up.


def main() -> None:
    """Print one line a model and case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, help="rows; 4 for the toy and 1 for GPT-2 unless given")
    parser.add_argument("--only", help="the name of one model")
    given = parser.parse_args()
    shapes = {"toy of 12 blocks": (256, 64, 4, 12, 10), "GPT-2 small": (50257, 768, 12, 12, 1)}
    for name, (vocabulary, width, heads, depth, more) in shapes.items():
        if given.only not in (None, name):
            continue
        torch.manual_seed(0)
        model = Transformer(vocabulary, width, heads, depth, given.tokens).to(given.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        batch = torch.randint(vocabulary, (given.batch or (4 if more > 1 else 1), given.tokens), device=given.device)
        training = Training(model, optimizer, batch)
        with tempfile.TemporaryDirectory() as folder:
            times = measure(training, given.turns * more, folder)
            plain = times["plain"]
            step = statistics.median(plain.whole)
            print(json.dumps({"model": name, "case": "plain", "step_ms": round(step / 1e6, 3)}), flush=True)
            for case, each in times.items():
                if case == "plain":
                    continue
                own = statistics.median(each.own)
                longer = statistics.median(a / b - 1 for a, b in zip(each.whole, plain.whole, strict=True))
                line: dict[str, Any] = {"model": name, "case": case}
                if own:
                    line |= {"own_us": round(own / 1e3, 1), "of_step": round(own / step, 5)}
                if case.startswith("emitting"):
                    line["at_every_10"] = round(own / step / 10, 5)
                print(json.dumps({**line, "longer": round(longer, 4)}), flush=True)
            if given.device.startswith("cuda"):
                for every in (100, 1):
                    print(json.dumps({"model": name, **check_waits(training, folder, every)}), flush=True)
                blocks = unwaited(training, given.turns, folder)
                for case, seconds in blocks.items():
                    ratio = statistics.median(a / b for a, b in zip(seconds, blocks["plain"], strict=True))
                    print(json.dumps({"model": name, "unwaited": case, "of_plain": round(ratio, 4)}), flush=True)
    print(json.dumps({"load": os.getloadavg()[0], "threads": torch.get_num_threads(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
