"""Measures what ``rec.agree()`` adds to a step of two processes, beside the loop's own all-reduce.

    .venv/bin/python benchmarks/agreement.py [--rounds N] [--ranks N]

One JSON line for each size of gradients, times in microseconds of a step on rank 0. A round is 50 steps without an
agreement, 50 with a bare broadcast of three integers, which is the floor, and 50 with an agreement, so that other load
on the machine affects all alike. A step reduces the gradients over gloo and records a loss that a rule reads.
``broadcast_added_us`` and ``added_us`` are the medians over the rounds of the differences, ``ratio`` that of the ratios
of a step with an agreement to one without. ``ordered_us`` is the median of an agreement in which rank 0 orders
something, and ``order_added_us`` what it takes more than one in which rank 0 does not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from forked_ranks import forked_ranks, join_group, serve_store

from steptape import Recorder

#: The gradients of a step, in floats.
SIZES = (1_000, 100_000, 1_000_000)

STEPS = 50

RULES = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 0.5, operations: [hfcontrols.should_log]}
"""


def measure(rank: int, ranks: int, port: int, rounds: int, folder: Path) -> None:
    """Measure on one rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    join_group(port, rank, ranks, 300.0)
    with Recorder(folder, rules=folder / "rules.yaml", quiet=True) as rec:
        rec.agree()
        head, group = torch.zeros(3, dtype=torch.int64), dist.new_group(backend="gloo")

        def step_us(gradients: torch.Tensor, agree: Callable[[], object]) -> float:
            dist.barrier()
            began = time.perf_counter_ns()
            for _ in range(STEPS):
                dist.all_reduce(gradients)
                rec.step(loss=0.0)
                agree()
            return (time.perf_counter_ns() - began) / 1e3 / STEPS

        def agreement_us(loss: float) -> float:
            rec.step(loss=loss)
            dist.barrier()
            began = time.perf_counter_ns()
            rec.agree()
            taken_us = (time.perf_counter_ns() - began) / 1e3
            if rec.control.should_log:
                rec.log()
            return taken_us

        for size in SIZES:
            gradients = torch.zeros(size)
            agreements = (lambda: None, lambda: dist.broadcast(head, src=0, group=group), rec.agree)
            rounds_us = [[step_us(gradients, agree) for agree in agreements] for _ in range(rounds)]
            if rank == 0:
                result = {
                    "floats": size,
                    "ranks": ranks,
                    "without_us": statistics.median(without for without, _, _ in rounds_us),
                    "broadcast_added_us": statistics.median(broadcast - without for without, broadcast, _ in rounds_us),
                    "added_us": statistics.median(agreed - without for without, _, agreed in rounds_us),
                    "ratio": statistics.median(agreed / without for without, _, agreed in rounds_us),
                }
                print(json.dumps({name: round(value, 2) for name, value in result.items()}), flush=True)
        orders = [(agreement_us(0.0), agreement_us(1.0)) for _ in range(STEPS * rounds // 10)]
        if rank == 0:
            plain_us, ordered_us = (statistics.median(each) for each in zip(*orders, strict=True))
            result = {"ranks": ranks, "ordered_us": ordered_us, "order_added_us": ordered_us - plain_us}
            print(json.dumps({name: round(value, 2) for name, value in result.items()}), flush=True)


def main() -> None:
    """Fork the ranks and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    import torch.distributed  # noqa: F401 - before the forks

    server, port = serve_store()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        (folder / "rules.yaml").write_text(RULES)
        for pid in forked_ranks(options.ranks, lambda rank: measure(rank, options.ranks, port, options.rounds, folder)):
            os.waitpid(pid, 0)
    os.kill(server, 9)


if __name__ == "__main__":
    main()
