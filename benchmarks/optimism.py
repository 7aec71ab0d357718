"""Checks the stated optimism of sweeps on AlgoPerf's public logs against the true gap.

    .venv/bin/python benchmarks/optimism.py SUBMISSIONS_ALGORITHMS [--store FOLDER] [--draws N] [--families N]

SUBMISSIONS_ALGORITHMS is a git directory of ``mlcommons/submissions_algorithms``. ``--store`` keeps the imported runs,
or reads them if they are there. A family is a submission with one set of hyper-parameters: its seeds and studies.

For each workload with at least 100 runs, one sweep of 320 variants (patience, relative min-delta). Each draw takes
families with replacement, so the workload is the population, and chooses the variant that saves most with a mean regret
within the limit. The true gap is its mean regret on the workload minus that in the draw; the stated optimism comes from
the draw alone, by ``replay.choosing``. Prints a JSON line per workload, with both averaged over the draws, and the
number of workloads in which they differ by at most a quarter of the gap or 0.2 points. Exits with status 1 below 15 of
19.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import public_curves

from steptape import open_store, sweep
from steptape.replay.choosing.out_of_sample import (
    RunTable,
    chosen_variant,
    family_splits,
    judge_choices,
    means_of,
    run_table,
)
from steptape.rules.policy_file.policy import parse_policy
from steptape.rules.readings.vectors import Floats, Ints
from steptape.store.run import Run

POLICY: Final = """
params: {tolerated: 3, min_delta: 0.0}
controllers:
  - name: no_better
    triggers: [on_evaluate]
    rule: trough(eval_loss, skip=1) - eval_loss <= min_delta * abs(trough(eval_loss, skip=1))
    patience: {patience_threshold: tolerated}
    operations: [hfcontrols.should_training_stop]
"""
AXES: Final[dict[str, list[float]]] = {
    "tolerated": [*range(10), 12, 14, 16, 20, 24, 28, 32, 40, 48, 60],
    "min_delta": [0.0, *(10 ** (-5 + part / 4) for part in range(15))],
}
#: The names of the validation losses, as the policy calls them.
RENAMES: Final = {"validation/loss": "eval_loss", "validation/ctc_loss": "eval_loss"}

#: Fewest runs of a workload, and how close the stated optimism has to be: a share of the true gap, or points of regret.
FEWEST_RUNS: Final = 100
CLOSE_SHARE: Final = 0.25
CLOSE: Final = 0.002
#: The share of the workloads that have to be close.
NEEDED: Final = 15 / 19


def family_of(run: Run) -> str:
    """Return the submission and its hyper-parameters; a trial without hyper-parameters is a family of its own."""
    config = run.info.config
    own = json.dumps(config["hparams"], sort_keys=True) if config["hparams"] else f"{config['study']} {config['trial']}"
    return f"{config['submission']} {own}"


def swept(runs: Sequence[Run]) -> tuple[RunTable, list[str]]:
    """Sweep the runs of a workload; return what each variant saves and loses on them, and the family of each run."""
    metrics = {name for run in runs[:1] for name in run.read(lambda snapshot: snapshot.columns.by_metric)}
    renames = {old: new for old, new in RENAMES.items() if old in metrics}
    found = sweep(parse_policy(POLICY), AXES, runs, renames=renames)
    families = {run.folder.name: family_of(run) for run in runs}
    table = run_table(found.runs, np.arange(len(found.variants)))
    return table, [families[run.run_id] for run in found.runs]


def rows_of(table: RunTable, rows: Ints) -> RunTable:
    """Return the table of some runs; a run drawn twice is there twice."""
    return RunTable(table.regret[rows], table.saved[rows], table.spent[rows])


def gaps(table: RunTable, families: Sequence[str], drawn: int, draws: int, limit: float) -> Floats:
    """Return for each draw: regret in the draw, true gap, stated optimism, and the same of the share of steps saved.

    Shape (draws, 6).
    """
    members = [np.flatnonzero(np.array(families) == family) for family in sorted(set(families))]
    whole = means_of(table, np.ones((1, len(families))))
    random = np.random.default_rng(0)
    found = []
    for draw in range(draws):
        chosen = random.integers(0, len(members), drawn)
        rows = np.concatenate([members[family] for family in chosen])
        # A family that is drawn twice is two draws from the population, and thus two families.
        own = [f"{place}" for place, family in enumerate(chosen) for _ in members[family]]
        sample = rows_of(table, rows)
        inside = means_of(sample, np.ones((1, len(rows))))
        variant = chosen_variant(inside.regret[0], inside.score[0], limit)
        if variant < 0:
            continue
        splits = family_splits(own, seed=draw)
        judged = judge_choices(sample.variants, table.regret.shape[1], len(rows), splits, [limit])[0]
        regret, saved = inside.regret[0, variant], inside.saved_share[0, variant]
        gap = whole.regret[0, variant] - regret, saved - whole.saved_share[0, variant]
        found.append((regret, gap[0], judged.regret - regret, saved, gap[1], saved - judged.saved_share))
    return np.array(found)


def main() -> None:
    """Import, sweep, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("--store", type=Path, help="where the runs are, or are to be; a temporary folder if not")
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--families", type=int, default=20, help="families in a draw")
    parser.add_argument("--limit", type=float, default=0.01, help="limit of mean relative regret")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = given.store or Path(folder) / "runs"
        if not store.exists():
            public_curves.algoperf_store(given.source, store)
        measure(store, given.families, given.draws, given.limit)


def measure(store: Path, drawn: int, draws: int, limit: float) -> None:
    """Print the optimism of each workload, and in how many it is close to the true gap."""
    workloads: dict[str, list[Run]] = {}
    for entry in open_store(store).entries()[0]:
        config = entry.snapshot.info.config
        workloads.setdefault(f"{config['workload']}_{config['framework']}", []).append(Run(entry.snapshot.folder))
    close = []
    for workload, runs in sorted(workloads.items()):
        if len(runs) < FEWEST_RUNS:
            continue
        began = time.perf_counter()
        table, families = swept(runs)
        swept_s = time.perf_counter() - began
        found = gaps(table, families, drawn, draws, limit)
        regret, gap, stated, saved, saved_gap, saved_stated = found.mean(axis=0).tolist()
        close.append(abs(stated - gap) <= max(CLOSE_SHARE * abs(gap), CLOSE))
        line = {
            "workload": workload,
            "runs": len(families),
            "families": len(set(families)),
            "draws": len(found),
            "regret_in_sample": round(regret, 5),
            "true_gap": round(gap, 5),
            "true_gap_se": round(float(found[:, 1].std() / len(found) ** 0.5), 5),
            "stated_optimism": round(stated, 5),
            "is_close": close[-1],
            "saved_in_sample": round(saved, 4),
            "saved_true_gap": round(saved_gap, 4),
            "saved_stated_optimism": round(saved_stated, 4),
            "sweep_s": round(swept_s, 1),
            "draws_s": round(time.perf_counter() - began - swept_s, 1),
        }
        print(json.dumps(line), flush=True)
    print(json.dumps({"case": "close", "workloads": sum(close), "of": len(close), "load": os.getloadavg()[0]}))
    sys.exit(sum(close) < NEEDED * len(close))


if __name__ == "__main__":
    main()
