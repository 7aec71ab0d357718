"""Measures how often the promise of a certificate is broken, and what a recommendation saves, on public curves.

    python benchmarks/certify.py --algoperf PATH --tdmpc2 PATH [--draws N] [--recommendations N] [--processes N]

A PATH is a git directory of ``mlcommons/submissions_algorithms`` or ``nicklashansen/tdmpc2``, or a store that
``public_curves.py`` made of it. A family is a submission on a workload, or a task. The rule is early stopping, whose
patience varies from 1 to 60 evaluations.

A draw takes some families without replacement. ``certify`` chooses on these. The families that were never drawn say
what the choice saves and loses. Beside it, on the same draws:

* naive: the variant that saves most among those within the limit on the families drawn;
* one run: the method before, an exact binomial test of one run of each family, drawn at random;
* another order: the same history again, its runs listed in another order.

For AlgoPerf it also certifies on all workloads but one, and uses the choice on that one: a kind of run that no promise
is about.

``recommend`` tries its forms on the same families with one shared error, as often as ``--recommendations`` says. Beside
it each chain of variants is certified alone, with the whole error.

Prints a JSON line for each setting: shares of draws with a broken promise with their binomial interval (Clopper and
Pearson, 95 %), and mean savings. The exit status is 1 if a promise is broken in more than 10 % of the draws of a
setting, or if another order gave another answer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from public_curves import algoperf_store, tdmpc2_store

from steptape import open_store
from steptape.replay.choosing.certification_report import Choice, OrderOfTests
from steptape.replay.choosing.certifying import Candidates, candidates_of, certification_of, choose
from steptape.replay.choosing.family_tests import FamilyLosses, fewest_families, upper_bound
from steptape.replay.choosing.population import families_of
from steptape.replay.choosing.recommending import FORMS, WORTHWHILE, _held_out
from steptape.replay.runs.objective import Objective
from steptape.replay.runs.risk import Risk
from steptape.replay.sweeps.losses import savings
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.metric_words import Mode

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
CONFIDENCE: Final = 0.9


@dataclass(frozen=True)
class Corpus:
    """Public curves, and what is asked of them.

    Attributes:
        store: Imports them from a git directory.
        objective: The metric that judges them.
        renames: New names of metrics.
        family: The key of families.
        settings: Regret above which a run is broken, limit of the share of runs, families drawn.
        recommended: The setting that recommendations are measured at.
        kind: The configuration key that tells kinds of runs apart; empty for none.
    """

    store: Callable[[Path, Path], Mapping[str, Sequence[str]]]
    objective: Objective
    renames: Mapping[str, str]
    family: str
    settings: Sequence[tuple[float, float, int]]
    recommended: tuple[float, float, int]
    kind: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options of ``certify``."""
        return {"objective": [self.objective], "renames": self.renames, "family": self.family}


#: Curves of returns are noisier than those of losses, so a run of TD-MPC2 is broken above 5 % of regret.
CORPORA: Final = {
    "algoperf": Corpus(
        algoperf_store,
        Objective("merit", Mode.MIN),
        {"validation/loss": "merit", "validation/ctc_loss": "merit"},
        "group",
        [(0.01, 0.1, 60), (0.01, 0.1, 30)],
        (0.01, 0.1, 60),
        "workload",
    ),
    "tdmpc2": Corpus(
        tdmpc2_store,
        Objective("merit", Mode.MAX),
        {"eval/return": "merit"},
        "task",
        [(0.05, 0.1, 60), (0.05, 0.2, 60)],
        (0.05, 0.2, 60),
    ),
}


class Table:
    """The losses and savings of all variants on all families of a corpus.

    Attributes:
        candidates: The variants over the runs.
        risk: The risk that judges stops.
        losses, saved: Means over the runs of each family, the families in the order of the tests. Shape (families,
            variants).
        run_losses, run_saved: The same of each run, by family.
    """

    def __init__(self, candidates: Candidates, risk: Risk) -> None:
        self.candidates, self.risk = candidates, risk
        found = certification_of(candidates, risk, CONFIDENCE)
        of_runs, members = iter(found.of_runs), candidates.families.values()
        self.losses = found.of_families.values
        self.run_losses = [np.stack([next(of_runs).values for _ in own]) for own in members]
        self.run_saved = [np.stack([savings(one.swept.outcomes, one.swept.steps) for one in own]) for own in members]
        self.saved = np.stack([own.mean(axis=0) for own in self.run_saved])

    def chosen_on(self, drawn: Sequence[int], order: OrderOfTests, error: float) -> Choice:
        """Choose on some families, as ``certify`` does."""
        are_counts = all(len(self.run_saved[index]) == 1 for index in drawn)
        losses = FamilyLosses(self.losses[drawn], are_counts)
        return choose(losses, self.saved[drawn], order, self.risk, error)

    def naive_choice(self, drawn: Sequence[int]) -> int | None:
        """Return the variant that saves most among those within the limit on some families."""
        allowed = np.flatnonzero(self.losses[drawn].mean(axis=0) <= self.risk.limit)
        return None if not len(allowed) else int(allowed[np.argmax(self.saved[drawn].mean(axis=0)[allowed])])

    def choice_of_one_run(self, drawn: Sequence[int], order: OrderOfTests, random: np.random.Generator) -> int | None:
        """Choose by the method before: the exact binomial test of one run of each family."""
        rows = [random.integers(len(self.run_saved[index])) for index in drawn]
        losses = np.stack([self.run_losses[index][row] for index, row in zip(drawn, rows, strict=True)])
        saved = np.stack([self.run_saved[index][row] for index, row in zip(drawn, rows, strict=True)])
        return choose(FamilyLosses(losses, are_counts=True), saved, order, self.risk, 1 - CONFIDENCE).chosen

    def again(self, drawn: Sequence[int], random: np.random.Generator) -> Choice:
        """Certify on some families from their runs, which are listed in another order."""
        named = [*self.candidates.families]
        members = [member for index in drawn for member in self.candidates.families[named[index]]]
        shuffled = [members[index] for index in random.permutation(len(members))]
        families = families_of(shuffled, (), self.candidates.family_key)
        return certification_of(replace(self.candidates, families=families), self.risk, CONFIDENCE).choice


class Tally:
    """Savings and losses of one method's choices, on families that were never drawn."""

    def __init__(self) -> None:
        self.draws = self.broken = self.none = 0
        self.saved = list[float]()

    def add(self, table: Table, chosen: int | None, others: Sequence[int]) -> None:
        """Count the choice of a draw."""
        self.draws += 1
        self.none += chosen is None
        self.broken += chosen is not None and bool(table.losses[others, chosen].mean() > table.risk.limit)
        self.saved.append(0.0 if chosen is None else float(table.saved[others, chosen].mean()))

    @property
    def numbers(self) -> dict[str, Any]:
        """The shares over all draws."""
        interval = interval_of(self.broken, self.draws)
        share = round(self.broken / self.draws, 4)
        return {"broken": share, "interval": interval, "none": self.none, "saved": round(float(np.mean(self.saved)), 4)}


def interval_of(broken: int, draws: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Clopper and Pearson)."""
    low, high = (
        upper_bound(FamilyLosses(np.repeat([[1.0], [0.0]], [count, draws - count], axis=0), are_counts=True), 0.025)
        for count in (draws - broken, broken)
    )
    return round(1 - low, 4), round(high, 4)


def draws_of(table: Table, families: int, count: int) -> dict[str, Any]:
    """Return the numbers of a corpus at one setting."""
    random, order = np.random.default_rng(0), table.candidates.order
    tallies = {name: Tally() for name in ("certified", "naive", "one_run")}
    other_answers = 0
    for drawn, others in split_families(table, families, count, random):
        choice = table.chosen_on(drawn, order, 1 - CONFIDENCE)
        again = table.again(drawn, random)
        other_answers += again.chosen != choice.chosen or not np.array_equal(again.p_values, choice.p_values)
        tallies["certified"].add(table, choice.chosen, others)
        tallies["naive"].add(table, table.naive_choice(drawn), others)
        tallies["one_run"].add(table, table.choice_of_one_run(drawn, order, random), others)
    return {"other_answers": other_answers, **{name: tally.numbers for name, tally in tallies.items()}}


def left_out(table: Table, kind: str) -> dict[str, Any]:
    """Return how often a choice on all kinds of runs but one breaks the limit on that one, and the worst share lost."""
    members = table.candidates.families.values()
    kinds = np.array([str(own[0].facts.info.config[kind]) for own in members])
    tally, worst = Tally(), 0.0
    for one in sorted(set(kinds)):
        drawn, others = np.flatnonzero(kinds != one).tolist(), np.flatnonzero(kinds == one).tolist()
        chosen = table.chosen_on(drawn, table.candidates.order, 1 - CONFIDENCE).chosen
        tally.add(table, chosen, others)
        worst = max(worst, 0.0 if chosen is None else float(table.losses[others, chosen].mean()))
    return {"left_out": kind, "kinds": tally.draws, "worst": round(worst, 4), "certified_elsewhere": tally.numbers}


def split_families(
    table: Table, families: int, count: int, random: np.random.Generator
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the families that are drawn, and the others, in the order of the tests."""
    for _ in range(count):
        order = random.permutation(len(table.losses))
        yield sorted(order[:families].tolist()), sorted(order[families:].tolist())


def recommendations_of(tables: Sequence[Table], families: int, count: int) -> dict[str, Any]:
    """Return what the recommended rules save, beside each chain of variants that is certified alone.

    Args:
        tables: A table for each form.
        families: Number of families drawn.
        count: Number of draws.
    """
    random, error, tallies = np.random.default_rng(0), 1 - CONFIDENCE, defaultdict[str, Tally](Tally)
    first, named = tables[0], [*tables[0].candidates.families]
    share = FORMS[0].share * error / len(first.candidates.order.chains)
    fewest = fewest_families(first.risk.limit, share, are_counts=False)
    for drawn, others in split_families(first, families, count, random):
        held_out = _held_out({named[index]: None for index in drawn}, fewest)
        kept = [index for index in drawn if named[index] not in held_out]
        for name, chosen in (("recommended", kept), ("recommended_without_holding_out", drawn)):
            found = [
                (form, table, table.chosen_on(chosen, table.candidates.order, form.share * error))
                for form, table in zip(FORMS, tables, strict=False)
            ]
            _, table, best = max(found, key=lambda one: _saving(one[2]))
            tallies[name].add(table, best.chosen if _saving(best) >= WORTHWHILE else None, others)
        for form, table in zip(FORMS, tables, strict=False):
            for chain in table.candidates.order.chains:
                alone = table.chosen_on(drawn, replace(table.candidates.order, chains=(chain,)), error)
                settings = dict(table.candidates.sweep.variants[chain[0]].settings)
                gain = f", min_gain {settings['min_gain']}" if "min_gain" in settings else ""
                tallies[f"{form.name}{gain}"].add(table, alone.chosen, others)
    return {name: tally.numbers for name, tally in tallies.items()}


def _saving(choice: Choice) -> float:
    return 0.0 if choice.chosen is None else float(choice.saved[choice.chosen])


def _policy(objective: Objective) -> Policy:
    better = "merit < lag(trough(merit), 1)" if objective.mode is Mode.MIN else "merit > lag(peak(merit), 1)"
    return parse_policy(POLICY.format(better=better))


def measured(name: str, path: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the numbers of each setting of a corpus, then those of its recommendations."""
    corpus, runs = CORPORA[name], [*open_store(path)]
    given = {**corpus.options, "processes": options.processes}
    patience = candidates_of(_policy(corpus.objective), {"patience": PATIENCES}, runs, **given)
    about = {"corpus": name, "runs": sum(map(len, patience.families.values())), "families": len(patience.families)}
    for over, limit, families in corpus.settings:
        table = Table(patience, Risk(False, over, None, limit, True))
        asked = {"over": over, "at_most": limit, "drawn": families, "draws": options.draws}
        yield {**about, **asked, **draws_of(table, families, options.draws)}
    if corpus.kind:
        over, limit, _ = corpus.recommended
        table = Table(patience, Risk(False, over, None, limit, True))
        yield {**about, "over": over, "at_most": limit, **left_out(table, corpus.kind)}
    if options.recommendations:
        over, limit, families = corpus.recommended
        tables = [
            Table(
                candidates_of(form.policy(corpus.objective, ""), form.axes, runs, **given),
                Risk(False, over, None, limit, True),
            )
            for form in FORMS
            if "LOSS" not in form.rule  # No update of these runs is recorded.
        ]
        asked = {"over": over, "at_most": limit, "drawn": families, "draws": options.recommendations}
        yield {**about, **asked, **recommendations_of(tables, families, options.recommendations)}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in CORPORA:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--recommendations", type=int, default=50)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    is_kept = True
    with tempfile.TemporaryDirectory() as folder:
        for name, corpus in CORPORA.items():
            path = getattr(options, name)
            if path is None:
                continue
            if next(path.glob("*/run.json"), None) is None:
                path, source = Path(folder) / name, path
                corpus.store(source, path)
            for numbers in measured(name, path, options):
                print(json.dumps(numbers), flush=True)
                is_kept &= numbers.get("other_answers", 0) == 0
                is_kept &= all(numbers.get(key, {"broken": 0})["broken"] <= 0.1 for key in ("certified", "recommended"))
    print(json.dumps({"load": os.getloadavg()}))
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
