"""Measures how often ``steptape compare`` keeps a candidate that is drawn like the baseline, and finds a better one.

    .venv/bin/python benchmarks/compare.py [--comparisons N] [--loops N] [--only CASE] [--dopamine GIT_DIR]

Prints one JSON line a case:

* ``null``: comparisons of two equal groups, looked at after each of 100 runs a group. ``naive`` keeps at the first look
  at which an exact test of one look (the sign test for pairs, else Wilcoxon's in its normal approximation) is below
  5 %. Values are normal, Cauchy (no mean), or of two points (many ties); ranks are the same for the first two.
* ``spread``: comparisons of groups of which a run of B beats one of A with a probability of at most one half, but which
  need not spread alike, looked at after each run, up to 25 runs of B. ``kept`` is the share that the command keeps;
  ``by ranks`` and ``one to one`` are the shares that either bet alone would keep.
* ``found``: the same for a candidate that is better by some standard deviations, with the median of its runs when it is
  kept, up to 15 runs of B.
* ``search``: loops of 100 candidates that are drawn like the baseline, with ten runs each, looked at after each run,
  against one baseline of ten runs.
* ``power``: pairs of agents of one game in Dopamine's baselines, with up to five seeds each, at the last iteration.
  ``proven`` is the share in which either agent is proven better.

Intervals are exact binomial ones (Clopper and Pearson) at 95 %. Nulls are evaluated by arrays; ``error`` is the largest
relative difference to the package's own e-value, in one comparison of 500 at each look.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import public_curves

from steptape.replay.comparing.comparing import (
    ALIKE,
    ODDS,
    one_to_one_e_value,
    paired_e_value,
    rank_e_value,
    runs_to_know,
    spreads_of,
)
from steptape.replay.comparing.group_comparison import FEWEST_BASELINE, UnpairedEvidence

Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

ALPHA: Final = 0.05
NEEDED: Final = 1 / ALPHA
LOOKS: Final = 100
CHUNK: Final = 500
NORMAL_QUANTILE: Final = 1.6448536269514722

TRIES: Final = 100
BASELINE_RUNS: Final = 10
CANDIDATE_RUNS: Final = 10

Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

DRAWS: Final[dict[str, Draw]] = {
    "normal": lambda source, shape: source.standard_normal(shape),
    "cauchy": lambda source, shape: source.standard_cauchy(shape),
    "two points": lambda source, shape: source.integers(0, 2, shape).astype(float),
}


#: Candidates that are no better than a baseline of standard normal values: their factor of the spread and their shift.
SPREADS: Final = {
    "equal": (1.0, 0.0),
    "twice as wide": (2.0, 0.0),
    "three times as wide": (3.0, 0.0),
    "three times as wide, worse by half a deviation": (3.0, -0.5),
    "a third as wide": (1 / 3, 0.0),
}
HEAVY: Final = "equal, lognormal with heavy tail"

#: Runs of the baseline; None where both groups grow.
BASELINES: Final = (None, 5, 10, 25, 100)
MOST_RUNS: Final = 25

EFFECTS: Final = (0.5, 1.0, 1.5, 2.0, 3.0)
EFFECT_RUNS: Final = 15


def binomial_interval(count: int, total: int) -> list[float]:
    """Return the exact 95 % interval of a share, by bisection on binomial tails."""

    def tail(share: float, upto: int) -> float:
        logs = [
            math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
            + k * math.log(share) + (total - k) * math.log1p(-share)
            for k in range(upto + 1)
        ]  # fmt: skip
        return math.fsum(map(math.exp, logs))

    def share_at(upto: int, wanted: float) -> float:
        low, high = 1e-12, 1 - 1e-12
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, upto) > wanted else (low, middle)
        return low

    low = 0.0 if count == 0 else share_at(count - 1, 0.975)
    high = 1.0 if count == total else share_at(count, 0.025)
    return [round(low, 5), round(high, 5)]


def candidate_places(baseline: Floats, candidate: Floats) -> Truths:
    """Return for each row and place, the worst first, whether the candidate has it. Shapes (rows, m) and (rows, n)."""
    values = np.concatenate([candidate, baseline], axis=1)
    own: Truths = np.argsort(values, axis=1, kind="stable") < candidate.shape[1]
    return own


def rank_e_values(own: Truths) -> Floats:
    """Return the package's e-value of ranks for each row of places."""
    number, runs = own.shape[1], int(own[0].sum())
    places = np.arange(1, number + 1)
    found = np.zeros(len(own))
    for order, sign in ((own, 1), (own[:, ::-1], -1)):
        theirs = np.cumsum(order, axis=1)
        for odds in ODDS:
            weight = odds**sign
            drawn = np.log(places - theirs + weight * theirs).sum(axis=1)
            found += np.exp(math.lgamma(number + 1) + runs * math.log(weight) - drawn)
    return found / (2 * len(ODDS))


@cache
def paired_of(wins: int, losses: int) -> float:
    """Return the package's e-value of pairs with these outcomes."""
    return paired_e_value(np.array([1.0] * wins + [-1.0] * losses))


@cache
def sign_test(wins: int, losses: int) -> float:
    """Return the one-sided probability of at least as many wins."""
    pairs = wins + losses
    return float(sum(math.comb(pairs, k) for k in range(wins, pairs + 1)) / 2**pairs)


def null_by_pairs(ours: Floats, theirs: Floats) -> tuple[Truths, Truths, float]:
    """Return which rows are kept at some look, by the e-value and by the naive test, and the largest error."""
    wins, losses = np.cumsum(theirs > ours, axis=1), np.cumsum(theirs < ours, axis=1)
    tables = [
        np.array(
            [[function(w, lost) if w + lost <= LOOKS else 0.0 for lost in range(LOOKS + 1)] for w in range(LOOKS + 1)]
        )
        for function in (paired_of, sign_test)
    ]
    kept: Truths = np.any(tables[0][wins, losses] >= NEEDED, axis=1)
    naive: Truths = np.any(tables[1][wins, losses] <= ALPHA, axis=1)
    return kept, naive, 0.0


def null_by_ranks(ours: Floats, theirs: Floats) -> tuple[Truths, Truths, float]:
    """Return the same for groups that are not paired."""
    kept, naive, error = np.zeros(len(ours), bool), np.zeros(len(ours), bool), 0.0
    for look in range(1, LOOKS + 1):
        old, new = ours[:, :look], theirs[:, :look]
        places = candidate_places(old, new)
        e_values = rank_e_values(places)
        kept |= e_values >= NEEDED
        if look > 1:
            naive |= wilcoxon(places) >= NORMAL_QUANTILE
        row = look % len(ours)
        own = rank_e_value(old[row], new[row])
        error = max(error, abs(own - float(e_values[row])) / own)
    return kept, naive, error


@dataclasses.dataclass(frozen=True)
class Look:
    """The bets and the ratio of the spreads, after one look at many comparisons."""

    baseline_runs: int
    candidate_runs: int
    by_ranks: Floats
    one_to_one: Floats
    ratio: Floats

    def kept(self, *needed: float) -> Truths:
        """Return which rows the command keeps, with one e-value for all or one for each."""
        fewest = np.array([runs_needed(one) for one in needed])
        enough = (self.candidate_runs >= fewest) & (self.baseline_runs >= FEWEST_BASELINE)
        alike = (self.ratio >= ALIKE[0]) & (self.ratio <= ALIKE[1]) & enough
        kept: Truths = np.where(alike, self.by_ranks, np.minimum(self.by_ranks, self.one_to_one)) >= needed
        return kept


@cache
def runs_needed(needed: float) -> int:
    """Return the package's fewest runs of a candidate whose spread is known."""
    return runs_to_know(needed)


def look_at(ours: Floats, theirs: Floats, spreads: Floats | None = None) -> Look:
    """Look at rows of groups. Shapes (rows, m) and (rows, n), n at least 2; the baseline's spreads if known."""
    number = min(ours.shape[1], theirs.shape[1])
    wins = (theirs[:, :number] > ours[:, :number]).sum(axis=1)
    table = np.array([paired_of(won, number - won) for won in range(number + 1)])
    ratio = row_spreads(theirs) / (row_spreads(ours) if spreads is None else spreads)
    ranks = rank_e_values(candidate_places(ours, theirs))
    return Look(ours.shape[1], theirs.shape[1], ranks, table[wins], ratio)


def row_spreads(values: Floats) -> Floats:
    """Return the package's spread of each row."""
    one, other = np.triu_indices(values.shape[1], 1)
    found: Floats = np.median(np.abs(values[:, one] - values[:, other]), axis=1)
    return found


def evidence_of(ours: Floats, theirs: Floats, needed: float) -> float:
    """Return the package's e-value of two groups that are not paired."""
    bets = rank_e_value(ours, theirs), one_to_one_e_value(ours, theirs)
    return UnpairedEvidence(*bets, spreads_of(ours, theirs, needed), runs_to_know(needed)).e_value


def first_kept(comparisons: int, runs: int, baseline: int | None, draw: Draw, factor: float, shift: float) -> Any:
    """Return for each rule and e-value the runs of B at which each comparison keeps it, 0 for never, and the error."""
    source, error = np.random.default_rng(24), 0.0
    rules = [(rule, needed) for rule in ("kept", "by ranks", "one to one") for needed in (NEEDED, 2 * NEEDED)]
    first = {rule: np.zeros(comparisons, int) for rule in rules}
    for begin in range(0, comparisons, CHUNK):
        rows = slice(begin, min(begin + CHUNK, comparisons))
        number = rows.stop - begin
        ours = draw(source, (number, baseline or runs))
        theirs = factor * draw(source, (number, runs)) + shift
        spreads = None if baseline is None else row_spreads(ours)
        for look in range(2, runs + 1):
            for others in (look, min(look + 1, runs)) if baseline is None else (baseline,):
                old, new = ours[:, :others], theirs[:, :look]
                seen = look_at(old, new, spreads)
                for rule, needed in rules:
                    bets = {"by ranks": seen.by_ranks, "one to one": seen.one_to_one}
                    kept = seen.kept(needed) if rule == "kept" else bets[rule] >= needed
                    mine = first[rule, needed][rows]
                    mine[(mine == 0) & kept] = look
                row = look % number
                own = evidence_of(old[row], new[row], 2 * NEEDED) >= 2 * NEEDED
                error = max(error, float(own != seen.kept(2 * NEEDED)[row]))
    return first, error


def unlike_spreads(comparisons: int) -> Iterator[dict[str, Any]]:
    """Yield how often a candidate that is no better is kept, whatever the spreads."""
    cases = [(name, DRAWS["normal"], *numbers) for name, numbers in SPREADS.items()]
    cases.insert(1, (HEAVY, lambda source, shape: source.lognormal(0, 1.5, shape), 1.0, 0.0))
    for baseline, (name, draw, factor, shift) in itertools.product(BASELINES, cases):
        started = time.perf_counter()
        first, error = first_kept(comparisons, MOST_RUNS, baseline, draw, factor, shift)
        for needed in (NEEDED, 2 * NEEDED):
            count = int((first["kept", needed] > 0).sum())
            yield {
                "case": "spread", "values": name, "baseline": baseline or "grows", "comparisons": comparisons,
                "e": needed, "promised": 1 / needed, "kept": count / comparisons,
                "interval": binomial_interval(count, comparisons),
                **{rule: float((first[rule, needed] > 0).mean()) for rule in ("by ranks", "one to one")},
                "differs": error, "s": round(time.perf_counter() - started, 1),
            }  # fmt: skip


def effects(comparisons: int) -> Iterator[dict[str, Any]]:
    """Yield how often a better candidate of the same spread is kept, and after how many runs."""
    for baseline, effect in itertools.product((None, 5, 10, 25), EFFECTS):
        first, _ = first_kept(comparisons, EFFECT_RUNS, baseline, DRAWS["normal"], 1.0, effect)
        for needed in (NEEDED, 2 * NEEDED):
            shares = {}
            for rule in ("kept", "by ranks", "one to one"):
                runs = first[rule, needed]
                shares[rule] = [float((runs > 0).mean()), float(np.median(runs[runs > 0])) if runs.any() else None]
            yield {
                "case": "found", "effect": effect, "baseline": baseline or "grows", "comparisons": comparisons,
                "e": needed, **shares,
            }  # fmt: skip


def wilcoxon(own: Truths) -> Floats:
    """Return the normal deviate of the rank sum of each row of places."""
    number, runs = own.shape[1], int(own[0].sum())
    ranks = (own * np.arange(1, number + 1)).sum(axis=1)
    mean = runs * (number + 1) / 2
    deviate: Floats = (ranks - mean) / math.sqrt(runs * (number - runs) * (number + 1) / 12)
    return deviate


def nulls(comparisons: int) -> Iterator[dict[str, Any]]:
    """Yield how often equal groups are kept within a hundred looks."""
    for kind, judge in (("pairs", null_by_pairs), ("ranks", null_by_ranks)):
        for name, draw in DRAWS.items():
            if kind == "ranks" and name == "normal":
                continue
            source, started = np.random.default_rng(22), time.perf_counter()
            kept = naive = 0
            error = 0.0
            for begin in range(0, comparisons, CHUNK):
                shape = (min(CHUNK, comparisons - begin), LOOKS)
                own, plain, off = judge(draw(source, shape), draw(source, shape))
                kept, naive, error = kept + int(own.sum()), naive + int(plain.sum()), max(error, off)
            yield {
                "case": "null", "by": kind, "values": name, "comparisons": comparisons, "looks": LOOKS,
                "kept": kept / comparisons, "interval": binomial_interval(kept, comparisons),
                "naive": naive / comparisons, "error": error, "s": round(time.perf_counter() - started, 1),
            }  # fmt: skip


def searches(loops: int) -> Iterator[dict[str, Any]]:
    """Yield how often a loop of a hundred candidates that are drawn like the baseline keeps any."""
    tries = np.arange(1, TRIES + 1)
    bars = {
        "e >= j (j + 1) / alpha": tries * (tries + 1) / ALPHA,
        "e >= 100 / alpha, declared": np.full(TRIES, TRIES / ALPHA),
        "e >= 1 / alpha, no count of tries": np.full(TRIES, NEEDED),
    }
    source = np.random.default_rng(23)
    counts = dict.fromkeys([*bars, "first run better than the baseline's best"], 0)
    for _ in range(loops):
        baseline = np.repeat(source.standard_normal((1, BASELINE_RUNS)), TRIES, axis=0)
        candidates = source.standard_normal((TRIES, CANDIDATE_RUNS))
        looks = [look_at(baseline, candidates[:, :n]) for n in range(2, CANDIDATE_RUNS + 1)]
        for rule, bar in bars.items():
            counts[rule] += any(look.kept(*bar.tolist()).any() for look in looks)
        counts["first run better than the baseline's best"] += bool((candidates[:, 0] > baseline[0].max()).any())
    for rule, count in counts.items():
        yield {
            "case": "search", "rule": rule, "loops": loops, "tries": TRIES, "kept": count / loops,
            "interval": binomial_interval(count, loops),
        }  # fmt: skip


def powers(git_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield how often one of two agents of a game is proven better by all seeds."""
    last: dict[tuple[str, str], list[float]] = defaultdict(list)
    paths = [path for path in public_curves._paths(git_dir) if public_curves._CURVES.search(path)]
    for path, text in public_curves._texts(git_dir, paths).items():
        for agent, values in public_curves._curves(json.loads(text)):
            last[path, agent].append(values[-1])
    pairs = [
        (np.array(last[one]), np.array(last[other]))
        for one, other in itertools.combinations(sorted(last), 2)
        if one[0] == other[0]
    ]
    for seeds in (3, 5):
        enough = [(one[:seeds], other[:seeds]) for one, other in pairs if min(len(one), len(other)) >= seeds]
        separated = sum(one.min() > other.max() or other.min() > one.max() for one, other in enough)
        for tries in (1, 10):
            needed = tries * NEEDED
            ranks = sum(max(evidence_of(*p, needed), evidence_of(*p[::-1], needed)) >= needed for p in enough)
            signs = sum(
                max(paired_e_value(one - other), paired_e_value(other - one)) >= needed for one, other in enough
            )
            yield {
                "case": "power", "seeds": seeds, "declared tries": tries, "agent pairs": len(enough),
                "proven unpaired": round(ranks / len(enough), 3), "proven by pairs": round(signs / len(enough), 3),
                "without overlap": round(separated / len(enough), 3),
            }  # fmt: skip


def main() -> None:
    """Run all cases, and print the load of the machine at the beginning and at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=10_000)
    parser.add_argument("--loops", type=int, default=1_000)
    parser.add_argument("--only", choices=["spread", "found", "search", "null"])
    parser.add_argument("--dopamine", type=Path, help="git directory of google/dopamine")
    arguments = parser.parse_args()
    print(json.dumps({"load": os.getloadavg()}), flush=True)
    cases = {
        "power": powers(arguments.dopamine) if arguments.dopamine else iter(()),
        "spread": unlike_spreads(arguments.comparisons),
        "found": effects(arguments.comparisons),
        "search": searches(arguments.loops),
        "null": nulls(arguments.comparisons),
    }
    chosen = [cases[arguments.only]] if arguments.only else cases.values()
    for case in itertools.chain.from_iterable(chosen):
        print(json.dumps(case), flush=True)
    print(json.dumps({"load": os.getloadavg()}))


if __name__ == "__main__":
    main()
