"""Measures how often the promise of a certificate is broken, on public training curves.

    python benchmarks/certify.py --algoperf PATH --dopamine PATH [--draws N] [--processes N] [--groups N]

A PATH is a git directory of ``mlcommons/submissions_algorithms`` or ``google/dopamine``, or a store that
``public_curves.py`` made of it. A group is a workload with its framework, or a game. Its rule is early stopping, whose
patience varies from 1 to 60 evaluations.

A draw takes as many families of a group as it has, with replacement, and one run of each: the group is then the
population, and the true risk of each variant is known. ``certify`` chooses on the draw, and so does the naive way: the
variant that saves most among those whose share of broken runs in the draw is within the limit. A promise is broken if
the true risk of the choice exceeds the limit. Where 10 % cannot be certified with so few families, the limit is the
least multiple of 5 % that can.

Prints a JSON line for each group and family key, and one for each corpus and family key: shares of draws with a broken
promise with their binomial interval (Clopper and Pearson, 95 %), and mean true savings. The exit status is 1 if the
promise of certificates is broken in more than 10 % of all draws of a corpus and key.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from public_curves import algoperf_store, dopamine_store

from steptape import open_run
from steptape.replay.choosing.certification_report import OrderOfTests
from steptape.replay.choosing.certifying import choose, order_of
from steptape.replay.choosing.risks import Risk, fewest_runs, losses_on, savings, upper_bound_of_count
from steptape.replay.runs.objective import declared_objective
from steptape.replay.sweeps.sweeping import sweep
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.run import Run
from steptape.store.run_info import read_run_info

Floats = npt.NDArray[np.float64]

POLICY: Final = """
params: {{patience: 5}}
controllers:
  - name: no_better
    triggers: [on_evaluate]
    rule: not ({better})
    patience: {{patience_threshold: patience}}
    operations: [hfcontrols.should_training_stop]
"""
PATIENCES: Final = [*range(1, 61)]
LIMIT, ERROR = 0.1, 0.1

#: Groups of fewer runs are left out.
FEWEST_RUNS: Final = 50

#: The keys of families of each corpus: parts of the configuration; none for each run by itself.
KEYS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "algoperf": {"submission": ("submission",), "submission and trial": ("submission", "trial"), "run": ()},
    "dopamine": {"agent and network": ("agent", "network"), "run": ()},
}
MAKERS: Final[Mapping[str, Callable[[Path, Path], Mapping[str, Sequence[str]]]]] = {
    "algoperf": algoperf_store,
    "dopamine": dopamine_store,
}

#: A run is broken above this regret, relative to its best: curves of returns are noisier than those of losses.
OVER: Final = {"algoperf": 0.01, "dopamine": 0.05}


class Group:
    """The losses and savings of all variants on the runs of a workload or a game.

    Attributes:
        losses, saved: Shape (runs, variants).
        configs: The configuration of each run.
    """

    def __init__(self, losses: Floats, saved: Floats, configs: Sequence[Mapping[str, Any]]) -> None:
        self.losses, self.saved, self.configs = losses, saved, configs

    def families(self, parts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Return the indices of the runs of each family."""
        found: dict[object, list[int]] = defaultdict(list)
        for index, config in enumerate(self.configs):
            found[tuple(config[part] for part in parts) or index].append(index)
        return [np.array(runs) for runs in found.values()]


def folders_of(corpus: str, path: Path, folder: Path) -> dict[str, list[Path]]:
    """Return the folders of the runs of each group, from a store or from a git directory that is imported."""
    store = path
    if next(path.glob("*/run.json"), None) is None:
        store = folder / corpus
        MAKERS[corpus](path, store)
    found: dict[str, list[Path]] = defaultdict(list)
    for run_folder in sorted(path.parent for path in store.glob("*/run.json")):
        config = read_run_info(run_folder).config
        found[config["game"] if corpus == "dopamine" else f"{config['workload']}_{config['framework']}"].append(
            run_folder
        )
    return {name: folders for name, folders in sorted(found.items()) if len(folders) >= FEWEST_RUNS}


def group_of(runs: Sequence[Run], risk: Risk, processes: int) -> tuple[Group, OrderOfTests]:
    """Sweep the runs of a group."""
    named = (runs[0].info.source or {})["objective"]
    policy, axes = _policy(named["mode"]), {"patience": PATIENCES}
    swept = sweep(
        policy,
        axes,
        runs,
        objective=declared_objective("merit", named["mode"]),
        renames={named["metric"]: "merit"},
        processes=processes,
    )
    configs = {run.run_id: run.info.config for run in runs}
    counted = [run for run in swept.runs if run.objective is not None and not run.outcomes.has_few_evaluations.all()]
    losses = np.stack([losses_on(risk, run).values for run in counted])
    saved = np.stack([savings(run.outcomes, run.steps) for run in counted])
    return Group(losses, saved, [configs[run.run_id] for run in counted]), order_of(policy, axes)


def _policy(mode: str) -> Policy:
    better = "merit < -lag(peak(-merit), 1)" if mode == "min" else "merit > lag(peak(merit), 1)"
    return parse_policy(POLICY.format(better=better))


def naive_choice(losses: Floats, saved: Floats, limit: float) -> int | None:
    """Return the variant that saves most among those whose loss in the draw is within the limit."""
    allowed = np.flatnonzero(losses.mean(axis=0) <= limit)
    return None if not len(allowed) else int(allowed[np.argmax(saved[:, allowed].mean(axis=0))])


def draws_of(
    group: Group, order: OrderOfTests, parts: Sequence[str], over: float, count: int, seed: int
) -> dict[str, Any]:
    """Return the numbers of a group and family key."""
    families = group.families(parts)
    limit = LIMIT
    while fewest_runs(limit, ERROR) > len(families) and limit < 0.95:
        limit = round(limit + 0.05, 2)
    risk = Risk(False, over, None, limit, True)
    true_losses = np.mean([group.losses[runs].mean(axis=0) for runs in families], axis=0)
    true_saved = np.mean([group.saved[runs].mean(axis=0) for runs in families], axis=0)
    random = np.random.default_rng(seed)
    broken = naive_broken = none = 0
    gains, naive_gains = [], []
    for _ in range(count):
        drawn = [random.choice(families[index]) for index in random.integers(len(families), size=len(families))]
        losses, saved = group.losses[drawn], group.saved[drawn]
        chosen, naive = choose(losses, saved, order, risk, ERROR).chosen, naive_choice(losses, saved, limit)
        none += chosen is None
        broken += chosen is not None and bool(true_losses[chosen] > limit)
        naive_broken += naive is not None and bool(true_losses[naive] > limit)
        gains.append(0.0 if chosen is None else float(true_saved[chosen]))
        naive_gains.append(0.0 if naive is None else float(true_saved[naive]))
    return {
        "runs": len(group.losses),
        "families": len(families),
        "at_most": limit,
        "draws": count,
        "broken": broken,
        "naive_broken": naive_broken,
        "none": none,
        "saved": float(np.mean(gains)),
        "naive_saved": float(np.mean(naive_gains)),
    }


def interval_of(broken: int, draws: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Clopper and Pearson)."""
    return 1 - upper_bound_of_count(draws - broken, draws, 0.025), upper_bound_of_count(broken, draws, 0.025)


def summary_of(corpus: str, key: str, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a corpus and family key over all groups."""
    draws, broken = sum(one["draws"] for one in found), sum(one["broken"] for one in found)
    naive_broken = sum(one["naive_broken"] for one in found)
    saved, naive_saved = (float(np.mean([one[name] for one in found])) for name in ("saved", "naive_saved"))
    families = [one["families"] for one in found]
    return {
        "corpus": corpus,
        "family_key": key,
        "regret_over": OVER[corpus],
        "groups": len(found),
        "families": [min(families), float(np.median(families)), max(families)],
        "groups_at_10_percent": sum(one["at_most"] == LIMIT for one in found),
        "draws": draws,
        "broken_share": broken / draws,
        "broken_interval": interval_of(broken, draws),
        "worst_group_share": max(one["broken"] / one["draws"] for one in found),
        "none_share": sum(one["none"] for one in found) / draws,
        "naive_broken_share": naive_broken / draws,
        "naive_broken_interval": interval_of(naive_broken, draws),
        "saved": saved,
        "naive_saved": naive_saved,
        "ratio_to_naive_saving": saved / naive_saved if naive_saved else math.nan,
    }


def measured(corpus: str, path: Path, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Print the numbers of each group of a corpus; yield those of each family key."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    risk = Risk(False, OVER[corpus], None, LIMIT, True)
    groups = [*folders_of(corpus, path, folder).items()][: options.groups]
    for seed, (name, folders) in enumerate(groups):
        group, order = group_of([open_run(one) for one in folders], risk, options.processes)
        if len(group.losses) < FEWEST_RUNS:
            continue
        for key, parts in KEYS[corpus].items():
            numbers = draws_of(group, order, parts, OVER[corpus], options.draws, seed)
            found[key].append(numbers)
            print(json.dumps({"corpus": corpus, "group": name, "family_key": key, **numbers}), flush=True)
    for key, numbers_of_groups in found.items():
        yield summary_of(corpus, key, numbers_of_groups)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for corpus in KEYS:
        parser.add_argument(f"--{corpus}", type=Path)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--groups", type=int, help="at most so many groups of each corpus")
    options = parser.parse_args()
    is_kept = True
    with tempfile.TemporaryDirectory() as folder:
        for corpus in KEYS:
            if (path := getattr(options, corpus)) is not None:
                for summary in measured(corpus, path, Path(folder), options):
                    print(json.dumps(summary), flush=True)
                    is_kept &= summary["broken_share"] <= ERROR
    print(json.dumps({"load": os.getloadavg()}))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
