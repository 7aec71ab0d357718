"""Measures what recording costs the training thread against a bare ``os.write`` of a record of the same length.

    .venv/bin/python benchmarks/record.py [--steps N]     # a few minutes, most of them for the paced loops and sealing
    .venv/bin/python benchmarks/record.py --launches      # a loop whose values are on a simulated device
    .venv/bin/python benchmarks/record.py --peers         # other recorders, those that are installed: see peers.py

One JSON line a case, times in microseconds per call. Every case and its floor alternate within one run, some hundred
calls at a time, so that other load on the machine affects all alike. ``median_us`` and ``floor_median_us`` are medians
over the rounds, ``ratio`` is the median of their ratios, ``on_top_us`` the median of a round's excess over that of ten
floats, ``x_plain`` the median of its ratios to ten floats by name. The timer's own cost is included in all of them.
Percentiles and the longest are over all calls, including those in which a segment of the journal was closed and its
sealer notified. ``longest_unpreempted_us`` excludes calls in which the kernel gave the processor to another process; on
a busy machine these are the longest of recorder and floor alike.

``--launches`` times the training thread's processor time in a loop of small operations, as one that is bound by the
launches of a GPU: between two steps, all caches are filled anew. Loss and norm are tensors of a simulated device whose
copies take 2 ms. ``own_us`` is the time in ``rec.step``, ``of_15_ms`` the ratio that it makes of an update of 15 ms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from peers import print_peers
from seal import curves, measure, noise, write_journal
from torch import nn
from turns import Call, Case, Rounds, clock, in_us

from steptape import Recorder
from steptape.recorder.device_values import COPIES
from steptape.store.journal.format import crc32

NAMES: Final = ("loss", "accuracy", "lr", "grad_norm", "weight_norm", "entropy", "margin", "step_s", "memory", "tokens")
SAMPLES: Final = 64
MANY: Final = 5_000
WIDE: Final = 2_000
ROUNDS: Final = 20
PERIOD_S: Final = 0.002
CLOSES: Final = 10
SEALED_WITHIN_S: Final = 10.0
COPY_S: Final = 0.002
UPDATES: Final = 32

#: Ten rules of two conditions each over a window of ten values; none of them fires.
RULES: Final = "controllers:\n" + "".join(
    f"  - name: {name}_spike\n    triggers: [on_step_end]\n    operations: [hfcontrols.should_training_stop]\n"
    f"    rule: len({name}) > 9 and {name} > 2 * mean({name}, 10) + 1000\n"
    for name in NAMES
)


def ten_floats(rec: Recorder, values: Sequence[Any], samples: object = None, sample_ids: object = None) -> int:
    """Record a step as a loop writes it: by keywords."""
    a, b, c, d, e, f, g, h, i, j = values
    start = clock()
    rec.step(
        loss=a,
        accuracy=b,
        lr=c,
        grad_norm=d,
        weight_norm=e,
        entropy=f,
        margin=g,
        step_s=h,
        memory=i,
        tokens=j,
        samples=samples,
        sample_ids=sample_ids,
    )
    return clock() - start


def only_floats(rec: Recorder, values: Sequence[Any]) -> int:
    """Record the same step without sample arguments."""
    a, b, c, d, e, f, g, h, i, j = values
    start = clock()
    rec.step(loss=a, accuracy=b, lr=c, grad_norm=d, weight_norm=e, entropy=f, margin=g, step_s=h, memory=i, tokens=j)
    return clock() - start


def in_a_dict(rec: Recorder, values: dict[str, float]) -> int:
    """Record a step whose values are in a dictionary."""
    start = clock()
    rec.step(values)
    return clock() - start


def at_a_step(rec: Recorder, values: Sequence[Any]) -> int:
    """Record the same step with its number."""
    number, (a, b, c, d, e, f, g, h, i, j) = values
    start = clock()
    rec.step(
        loss=a,
        accuracy=b,
        lr=c,
        grad_norm=d,
        weight_norm=e,
        entropy=f,
        margin=g,
        step_s=h,
        memory=i,
        tokens=j,
        step=number,
    )
    return clock() - start


def at_an_epoch(rec: Recorder, values: Sequence[Any]) -> int:
    """Record the same step with a fractional epoch."""
    number, (a, b, c, d, e, f, g, h, i, j) = values
    epoch = number / 64
    start = clock()
    rec.step(
        loss=a,
        accuracy=b,
        lr=c,
        grad_norm=d,
        weight_norm=e,
        entropy=f,
        margin=g,
        step_s=h,
        memory=i,
        tokens=j,
        epoch=epoch,
    )
    return clock() - start


def with_samples(samples: object, sample_ids: object) -> Call:
    """Return a call that records ten floats and sample losses."""
    return lambda rec, values: ten_floats(rec, values, samples, sample_ids)


def only_ids(sample_ids: object) -> Call:
    """Return a call that records ten floats and the digest of sample ids."""

    def call(rec: Recorder, values: Sequence[Any]) -> int:
        a, b, c, d, e, f, g, h, i, j = values
        start = clock()
        rec.step(
            loss=a,
            accuracy=b,
            lr=c,
            grad_norm=d,
            weight_norm=e,
            entropy=f,
            margin=g,
            step_s=h,
            memory=i,
            tokens=j,
            sample_ids=sample_ids,
        )
        return clock() - start

    return call


def back_to_back(draw: random.Random) -> dict[str, Case]:
    """Return the cases that are called without a pause."""
    floats = [[draw.random() for _ in NAMES] for _ in range(64)]
    tensors = [[torch.tensor(row[0]), torch.tensor(row[1]), *row[2:]] for row in floats]
    losses, ids = [draw.random() for _ in range(SAMPLES)], [draw.randrange(2**40) for _ in range(SAMPLES)]
    array, id_array = np.array(losses, np.float32), np.array(ids)
    many = [{f"layer/{index}": draw.random() for index in range(MANY)} for _ in range(4)]
    wide = [{f"layer/{index}": draw.random() for index in range(WIDE)} for _ in range(4)]
    dicts = [dict(zip(NAMES, row, strict=True)) for row in floats]
    others = [{f"val/{name}": value for name, value in row.items()} for row in dicts]
    numbered = list(enumerate(floats))
    everyday = {
        "10 floats, step=": Case(at_a_step, numbered),
        "10 floats, epoch=": Case(at_an_epoch, numbered),
        "10 floats and a None": Case(in_a_dict, [{**row, "val_loss": None} for row in dicts]),
        "10 floats and a text": Case(in_a_dict, [{**row, "phase": "warmup"} for row in dicts]),
        "two sets of 10 floats in turn": Case(in_a_dict, list(itertools.chain(*zip(dicts, others, strict=True)))),
        f"{WIDE:,} floats in a dict": Case(in_a_dict, wide, share=0.02),
    }
    for scalar in (np.float32, np.float64, np.int64):
        rows = [{name: scalar(1_000 * value) for name, value in row.items()} for row in dicts]
        everyday[f"10 {scalar.__name__} in a dict"] = Case(in_a_dict, rows)
    return {
        "10 floats": Case(only_floats, floats),
        "10 floats in a dict": Case(in_a_dict, dicts),
        "8 floats, 2 tensors": Case(only_floats, tensors),
        f"10 floats, {SAMPLES} samples: numpy": Case(with_samples(array, id_array), floats),
        f"10 floats, {SAMPLES} samples: tensors": Case(
            with_samples(torch.from_numpy(array), torch.from_numpy(id_array)), floats
        ),
        f"10 floats, {SAMPLES} samples: lists": Case(with_samples(losses, ids), floats),
        f"10 floats, {SAMPLES} sample ids: numpy": Case(only_ids(id_array), floats),
        "10 floats, 10 rules": Case(only_floats, floats, rules=RULES),
        f"{MANY:,} floats in a dict": Case(in_a_dict, many, share=0.02),
        **everyday,
    }


def print_back_to_back(steps: int, draw: random.Random, place: Path) -> None:
    """Time calls without a pause and print their lines."""
    cases = back_to_back(draw)
    with ExitStack() as recorders:
        for case in cases.values():
            recorders.enter_context(case.opened(place))
        for _ in range(ROUNDS):
            for case in cases.values():
                case.take_turns(steps // ROUNDS)
    plain = cases["10 floats"]
    for name, case in cases.items():
        line = {"case": name, **case.figures(), "files": len(os.listdir(case.recorder.folder))}
        rounds = list(zip(case.rounds.medians_ns(), plain.rounds.medians_ns(), strict=True))
        line["x_plain"] = round(statistics.median(mine_ns / plain_ns for mine_ns, plain_ns in rounds), 2)
        if "sample" in name or "rules" in name:
            line["on_top_us"] = in_us(statistics.median(mine_ns - plain_ns for mine_ns, plain_ns in rounds))
        print(json.dumps(line), flush=True)


@contextmanager
def fewest_statements(place: Path) -> Iterator[Callable[[Sequence[float]], int]]:
    """Yield the fewest statements that Python needs: two clocks, ten floats packed as a record, its checksum, a write.

    They have no lock, type check, position or error handling. They are the yardstick for a recorder in Python when
    caches are cold and each line of it must be fetched anew.
    """
    record, frame = struct.Struct("<BIqqdqqiii10d"), struct.Struct("<II")
    fd = os.open(place / "fewest-statements", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # The recorder's checksum: another function would be evicted from caches that the recorder's calls keep warm.
    wall, monotonic, checksum, write = time.time_ns, time.monotonic_ns, crc32, os.write
    pack, pack_frame = record.pack, frame.pack

    def statements(
        *, loss: float, accuracy: float, lr: float, grad_norm: float, weight_norm: float,
        entropy: float, margin: float, step_s: float, memory: float, tokens: float,
    ) -> None:  # fmt: skip
        body = pack(
            1, 0, 7, 7, 0.5, wall(), monotonic(), 0, 0, 0,
            loss, accuracy, lr, grad_norm, weight_norm, entropy, margin, step_s, memory, tokens,
        )  # fmt: skip
        write(fd, pack_frame(len(body), checksum(body)) + body)

    def call(values: Sequence[float]) -> int:
        a, b, c, d, e, f, g, h, i, j = values
        start = clock()
        statements(
            loss=a, accuracy=b, lr=c, grad_norm=d, weight_norm=e, entropy=f, margin=g, step_s=h, memory=i, tokens=j
        )
        return clock() - start

    yield call
    os.close(fd)


def print_paced(steps: int, draw: random.Random, place: Path) -> None:
    """Time one call every ``PERIOD_S``, by turns, which shows the cost with cold caches."""
    cases = back_to_back(draw)
    fewest = Rounds()
    cases = {name: cases[name] for name in ("10 floats", f"10 floats, {SAMPLES} samples: numpy", "10 floats, 10 rules")}
    with ExitStack() as recorders:
        for case in cases.values():
            recorders.enter_context(case.opened(place))
        statements = recorders.enter_context(fewest_statements(place))
        due = time.monotonic()
        for _ in range(ROUNDS):
            for rounds in (fewest, *(own for case in cases.values() for own in (case.rounds, case.floor_rounds))):
                rounds.taken_ns.append([])
            for _ in range(steps // ROUNDS):
                due = wait_until(due)
                fewest.extend(statements, cases["10 floats"].values[:1])
                for case in cases.values():
                    due = wait_until(due)
                    case.floor_rounds.extend(case.floor, [None])
                    due = wait_until(due)
                    case.rounds.extend(case.step, case.values[:1])
    for name, case in cases.items():
        print(json.dumps({"case": f"{name}, every {PERIOD_S * 1e3:g} ms", **case.figures()}), flush=True)
    print(json.dumps({"case": f"fewest statements, every {PERIOD_S * 1e3:g} ms", **fewest.figures()}), flush=True)


def wait_until(due: float) -> float:
    """Sleep until a moment of the monotonic clock, and return the next: a period later, or now if that is past."""
    time.sleep(max(due - time.monotonic(), 0))
    return max(due, time.monotonic() - PERIOD_S) + PERIOD_S


def print_while_sealing(steps: int, draw: random.Random, place: Path) -> None:
    """Time calls without a pause, while another process seals without a pause."""
    template = place / "template"
    template.mkdir()
    write_journal(template, 40_000, curves, 0)
    cases = {name: case for name, case in back_to_back(draw).items() if name in ("10 floats", "10 floats, 10 rules")}
    with ExitStack() as recorders:
        for case in cases.values():
            recorders.enter_context(case.opened(place))
        for number in range(ROUNDS // 4):
            folder = place / f"dead-{number}"
            shutil.copytree(template, folder)
            with subprocess.Popen([sys.executable, "-m", "steptape.store.parquet.sealing", str(folder)]) as sealer:
                while sealer.poll() is None:
                    for case in cases.values():
                        case.take_turns(steps // ROUNDS)
    for name, case in cases.items():
        print(json.dumps({"case": f"{name}, while another process is sealing", **case.figures()}), flush=True)


def print_closes(draw: random.Random, place: Path) -> None:
    """Time the calls that close a segment of the journal, begin the next one, and notify the sealing process."""
    losses, ids = np.array([draw.random() for _ in range(2_000)], np.float32), np.arange(2_000)
    case = Case(with_samples(losses, ids), [[draw.random() for _ in NAMES]] * 2)
    closes = Rounds()
    with case.opened(place):
        folder = case.recorder.folder
        for _ in range(CLOSES):
            newest, latest = max(folder.glob("journal-*")), Rounds([[]])
            while max(folder.glob("journal-*")) == newest:
                latest = Rounds([[]])
                latest.extend(case.step, case.values[:1])
            closes.taken_ns += latest.taken_ns
            closes.longest_unpreempted_ns = max(closes.longest_unpreempted_ns, latest.longest_unpreempted_ns)
            wait_until_sealed(folder)
    print(json.dumps({"case": "closing a segment", **closes.figures()}), flush=True)


def wait_until_sealed(folder: Path) -> None:
    """Wait for the sealer of a run to end, as far as visible: while it works, no other one is started."""
    patience_ends = time.monotonic() + SEALED_WITHIN_S
    while len(list(folder.glob("journal-*"))) > 1 and time.monotonic() < patience_ends:
        time.sleep(0.05)
    time.sleep(0.2)


def print_at_rest(steps: int) -> None:
    """Print bytes per value and the cost of sealing, by the code of ``seal.py``."""
    for values, samples in itertools.product((curves, noise), (0, SAMPLES)):
        name = f"at rest, 10 floats, {samples} samples: {values.__name__}"
        print(json.dumps(measure(name, steps // (8 if samples else 1), values, samples)), flush=True)


class OnDevice(torch.Tensor):
    """A tensor of the simulated device. Operations on it return tensors of the host, whose copies take as long."""

    is_cpu = False
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class SlowCopy:
    """A copy that takes ``COPY_S``."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._host = [tensor.detach().as_subclass(torch.Tensor).clone() for tensor in tensors]
        self._done_at = time.monotonic() + COPY_S

    def wait(self) -> Sequence[torch.Tensor]:
        """Wait for the copy."""
        time.sleep(max(self._done_at - time.monotonic(), 0))
        return self._host


def print_launch_bound(turns: int, place: Path) -> None:
    """Train a small model with and without recorders by turns, and print what steps cost the training thread."""
    COPIES["cpu"] = SlowCopy
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0) for _ in range(3)))
    optimizer = torch.optim.AdamW(layers.parameters(), 1e-4, foreach=False)
    batch = torch.randn(8, 16, 64)
    with ExitStack() as recorders:

        def opened(rules: str | None) -> Recorder:
            return recorders.enter_context(Recorder(place / "runs", rules=rules, quiet=True))

        cases = {"plain": None, "two tensors": opened(None)}
        cases |= {f"two tensors, {rules}": opened(rules) for rules in ("loss_spike", "surogate_mended")}
        cases |= {"two floats": opened(None)}
        whole_ns: dict[str, list[float]] = {case: [] for case in cases}
        own_ns: dict[str, list[float]] = {case: [] for case in cases}
        for turn, (case, rec) in itertools.product(range(turns + 1), cases.items()):
            begun, own = time.thread_time_ns(), 0
            for _ in range(UPDATES):
                optimizer.zero_grad()
                loss = layers(batch).square().mean()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
                optimizer.step()
                if rec is not None:
                    given = [each.as_subclass(OnDevice) for each in (loss, norm)]
                    values = [loss.item(), norm.item()] if case == "two floats" else given
                    before = time.thread_time_ns()
                    rec.step(loss=values[0], grad_norm=values[1])
                    own += time.thread_time_ns() - before
            if turn:  # The first turn warms up.
                whole_ns[case].append((time.thread_time_ns() - begun) / UPDATES)
                own_ns[case].append(own / UPDATES)
    for case in cases:
        own_us = statistics.median(own_ns[case]) / 1e3
        x_plain = statistics.median(map(operator.truediv, whole_ns[case], whole_ns["plain"]))
        line = {"case": case, "update_ms": round(statistics.median(whole_ns[case]) / 1e6, 2)}
        line |= {"own_us": round(own_us, 1), "x_plain": round(x_plain, 3), "of_15_ms": round(1 + own_us / 15_000, 4)}
        print(json.dumps(line), flush=True)


def main() -> None:
    """Run every case, or the peers, and print the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--peers", action="store_true", help="time and kill other recorders instead")
    parser.add_argument("--launches", action="store_true", help="train with values on a simulated device instead")
    arguments = parser.parse_args()
    if arguments.launches:
        with tempfile.TemporaryDirectory() as place:
            print_launch_bound(arguments.steps // 1_000, Path(place))
        return
    if arguments.peers:
        print_peers()
        return
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        print_back_to_back(arguments.steps, draw, Path(place))
        print_paced(arguments.steps // 20, draw, Path(place))
        print_while_sealing(arguments.steps, draw, Path(place))
        print_closes(draw, Path(place))
    # Enough to fill a segment, so that the fixed cost of a file is spread over them.
    print_at_rest(5 * arguments.steps)


if __name__ == "__main__":
    main()
