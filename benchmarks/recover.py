"""Trains small GPTs that are disturbed, without rules and under several, and prints how good each becomes.

    .venv/bin/python benchmarks/recover.py [--seeds N] [--healthy N] [--steps N] [--json FILE]

Each training learns the bytes of Python's own library. It is disturbed in the middle, in one of five ways, or its data
change for good, which is no fault. A training counts as healed if its loss on held-out bytes is at most 2 % above that
of the same seed without any disturbance. Needs torch; uses CUDA if there is one. Each run takes a few seconds of one
processor.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from steptape import Recorder, open_run

ARMS: Final = ("nothing", "surogate_mended", "skip_step", "recover")
FAULTS: Final = ("rate", "garbage", "huge loss", "NaN in a weight", "flipped bits")
SHIFT: Final = "other data"

#: A training is healed if its loss is at most this share above the undisturbed one.
TOLERANCE: Final = 0.02
#: How many updates a fault lasts, and its rate as a multiple of the schedule's.
LASTS: Final = 12
BURST: Final = 60.0
LENGTH, WIDTH, HEADS, DEPTH, BATCH = 32, 32, 4, 2, 16
RATE: Final = 2e-3

DEVICE: Final = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """One layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after the layer. Shape (batch, length, width)."""
        batch, length, _ = hidden.shape
        parts = self.mixed(self.before(hidden)).view(batch, length, 3, HEADS, -1).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        grown: torch.Tensor = hidden + self.mlp(self.between(hidden))
        return grown


class Gpt(nn.Module):
    """A GPT over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of each byte but the first. Text: shape (batch, length + 1)."""
        hidden = self.bytes(text[:, :-1]) + self.places.weight
        logits = self.head(self.norm(self.blocks(hidden)))
        return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


class Bytes:
    """Batches of Python's library. The last tenth is held out."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self._text = torch.frombuffer(bytearray(b"".join(map(Path.read_bytes, files))), dtype=torch.uint8).long()

    def batch(self, dice: torch.Generator, kind: str, *, is_held_out: bool = False, rows: int = BATCH) -> torch.Tensor:
        """Return rows of text. Shape (rows, length + 1).

        Args:
            dice: Draws them.
            kind: ``garbage`` for random bytes, ``SHIFT`` for text in another alphabet.
            is_held_out: Whether to draw from the held-out part.
            rows: How many.
        """
        whole = len(self._text) - LENGTH - 1
        first, last = (int(0.9 * whole), whole) if is_held_out else (0, int(0.9 * whole) - LENGTH)
        starts = torch.randint(first, last, (rows, 1), generator=dice)
        text = self._text[starts + torch.arange(LENGTH + 1)]
        if kind == "garbage":
            text = torch.randint(256, text.shape, generator=dice)
        if kind == SHIFT:
            text = (text * 5 + 7) % 256
        return text.to(DEVICE)


@dataclass(frozen=True, slots=True)
class Result:
    """One training.

    Attributes:
        arm: The rules.
        fault: The disturbance; empty without one.
        seed: Its seed.
        loss: On held-out bytes, at the end; NaN if the weights are lost.
        actions: Operations that the loop carried out for rules.
        undos: Those of them that returned to a restore point.
        stopped: The step at which rules stopped it; 0 if they did not.
        seconds: Of the processor.
    """

    arm: str
    fault: str
    seed: int
    loss: float
    actions: int
    undos: int
    stopped: int
    seconds: float


def train(store: Path, data: Bytes, arm: str, fault: str, seed: int, steps: int) -> Result:
    """Train once, and judge it on held-out bytes."""
    began = time.process_time()
    torch.manual_seed(seed)
    model = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: min(1.0, (update + 1) / 40) * 0.5 * (1 + math.cos(math.pi * min(1.0, update / steps)))
    )
    dice = torch.Generator().manual_seed(7 + seed)
    faulty = range(steps // 2, steps // 2 + LASTS)
    rules = None if arm == "nothing" else arm
    stopped = 0
    with Recorder(store, name=f"{arm}, {fault}, {seed}", rules=rules, quiet=True) as rec:
        rec.learning_rate(optimizer, schedule)
        rec.handle("batch.skip")
        rec.restore_points(model, optimizer, every=25)
        for step in range(1, steps + 1):
            is_bad = step in faulty and fault != SHIFT
            kind = fault if is_bad or (fault == SHIFT and step >= faulty[0]) else ""
            loss = model(data.batch(dice, kind))
            optimizer.zero_grad()
            is_huge = fault == "huge loss" and step == faulty[0]
            (loss * 1e4 if is_huge else loss).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf if is_huge else 1.0)
            seen = {"loss": loss.item() * (1e4 if is_huge else 1.0), "grad_norm": norm.item()}
            rec.event("pre_optimizer_step", seen)
            is_left_out = rec.control.should_skip
            if not is_left_out:
                with Burst(optimizer, BURST if is_bad and fault == "rate" else 1.0):
                    optimizer.step()
            if step == faulty[0] and fault in ("NaN in a weight", "flipped bits"):
                hit(model, optimizer, fault)
            schedule.step()
            control = rec.step(seen, applied=not is_left_out)
            if control.should_stop:
                stopped = step
                break
    receipts = [event for event in open_run(rec.folder).events() if event.kind == "operation_applied"]
    undos = sum("point_step" in event.attrs for event in receipts)
    lost = evaluated(model, data, SHIFT if fault == SHIFT else "")
    return Result(arm, fault, seed, lost, len(receipts), undos, stopped, round(time.process_time() - began, 2))


class Burst:
    """Trains with a multiple of the scheduled rate."""

    def __init__(self, optimizer: Any, times: float) -> None:
        self._groups, self._times = optimizer.param_groups, times

    def __enter__(self) -> None:
        for group in self._groups:
            group["lr"] *= self._times

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            group["lr"] /= self._times


def hit(model: Gpt, optimizer: Any, fault: str) -> None:
    """Damage a weight, or the moments of the optimizer, as a faulty memory does."""
    with torch.no_grad():
        if fault == "NaN in a weight":
            model.head.weight[0, 0] = math.nan
            return
        for state in optimizer.state.values():
            moment = state["exp_avg"].view(-1)
            # The highest bit of the exponent.
            moment[:2].view(torch.int32).bitwise_xor_(1 << 30)


def evaluated(model: nn.Module, data: Bytes, kind: str) -> float:
    """Return the loss on held-out bytes."""
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        losses = [float(model(data.batch(dice, kind, is_held_out=True, rows=64))) for _ in range(6)]
    return sum(losses) / len(losses)


def interval(ratios: list[float]) -> str:
    """Return the mean of the ratios with its 90 % bootstrap interval; how many are not finite."""
    known = [ratio for ratio in ratios if math.isfinite(ratio)]
    lost = f", {len(ratios) - len(known)} lost" if len(known) < len(ratios) else ""
    if not known:
        return f"all {len(ratios)} lost"
    dice = random.Random(0)
    means = sorted(sum(dice.choices(known, k=len(known))) / len(known) for _ in range(1000))
    return f"{sum(known) / len(known):.3f} [{means[50]:.3f}, {means[949]:.3f}]{lost}"


def table(results: list[Result], faults: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines of the table: for each fault and each arm, how many are healed, and the loss as a ratio."""
    undisturbed = {each.seed: each.loss for each in results if (each.arm, each.fault) == ("nothing", "")}
    yield "| disturbance | " + " | ".join(ARMS) + " |"
    yield "| --- |" + " --- |" * len(ARMS)
    for fault in faults:
        cells = []
        for arm in ARMS:
            own = [each for each in results if (each.arm, each.fault) == (arm, fault)]
            ratios = [each.loss / undisturbed[each.seed] for each in own]
            healed = sum(ratio <= 1 + TOLERANCE for ratio in ratios)
            cells.append(f"{healed} of {len(own)}, {interval(ratios)}")
        yield f"| {fault} | " + " | ".join(cells) + " |"


def main() -> None:
    """Train all, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=20, help="undisturbed runs under recover")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="one disturbance")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("steptape").setLevel(logging.CRITICAL)
    faults = (options.only,) if options.only else (*FAULTS, SHIFT)
    cases = [("nothing", "", seed) for seed in range(options.seeds)]
    cases += [(arm, fault, seed) for fault in faults for arm in ARMS for seed in range(options.seeds)]
    cases += [("recover", "", seed) for seed in range(options.healthy)]
    data, results = Bytes(), list[Result]()
    with tempfile.TemporaryDirectory() as store:
        for arm, fault, seed in cases:
            results.append(train(Path(store), data, arm, fault, seed, options.steps))
            print(json.dumps(asdict(results[-1])), file=sys.stderr, flush=True)
    print(*table(results, tuple(fault for fault in faults if fault != SHIFT)), sep="\n")
    if SHIFT in faults:
        plain = {each.seed: each.loss for each in results if (each.arm, each.fault) == ("nothing", SHIFT)}
        for arm in ARMS[1:]:
            own = [each for each in results if (each.arm, each.fault) == (arm, SHIFT)]
            print(f"{SHIFT}, {arm} over nothing: {interval([each.loss / plain[each.seed] for each in own])}")
    healthy = [each for each in results if (each.arm, each.fault) == ("recover", "")]
    print(f"undisturbed under recover: {sum(each.actions for each in healthy)} actions in {len(healthy)} runs")
    plain = {each.seed: each.loss for each in results if (each.arm, each.fault) == ("nothing", "")}
    recovering = [each for each in results if each.arm == "recover" and each.fault in FAULTS]
    healed = sum(each.loss <= (1 + TOLERANCE) * plain[each.seed] for each in recovering)
    print(f"healed by recover: {healed} of {len(recovering)}")
    print(f"the longest run took {max(each.seconds for each in results)} s of a processor")
    if options.json:
        options.json.write_text("\n".join(json.dumps(asdict(each)) for each in results) + "\n")


if __name__ == "__main__":
    main()
