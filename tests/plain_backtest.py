"""Computes what a backtest says of runs and of all of them together by plain loops, from the words of its documents.

Takes runs as rows and facts of ``run.json``, and a policy as data. Knows neither engine nor replay.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import plain_report
import real_logs
from plain_policy import SAVE, STOP, Controller, Firing, Row, could_fire, firings

from steptape.replay.runs.run_families import family_of
from steptape.store.metric_words import mode_of
from steptape.store.run import Run

#: A metric and the sign that makes lower values better.
Aim = tuple[str, float]

FEWEST_EVALUATIONS, FEWEST_FAMILIES, FEWEST_ALIKE, FEWEST_DISTINCT = 5, 8, 20, 10


@dataclass(frozen=True)
class Log:
    """A run as it lies in the store: what its events hold, and what ``run.json`` says of it."""

    run_id: str
    name: str
    rows: Sequence[Row]
    status: str
    planned: int | None
    ending: str
    facts: Mapping[str, str]
    unit: str
    filtered: frozenset[str]

    def renamed(self, renames: Mapping[str, str]) -> Log:
        """Return the run under new names of metrics: it keeps a metric of its own that has a new name already."""
        own = {name for row in self.rows for name in row.values}
        called = {old: new for old, new in renames.items() if new not in own}
        rows = [row._replace(values={called.get(k, k): v for k, v in row.values.items()}) for row in self.rows]
        return replace(self, rows=rows, filtered=frozenset(called.get(name, name) for name in self.filtered))

    def family(self, key: str | None) -> Hashable:
        """Return its family: the first of the key that a user names, its configuration, group and source folder."""
        named = self.facts.get(key or "")
        if named:
            return key, named
        if self.facts["configuration"]:
            return "configuration", self.facts["configuration"]
        return ("group", self.facts["group"]) if self.facts["group"] else ("source folder", self.facts["folder"])

    @property
    def may_go_on(self) -> bool:
        """Whether it might have continued: it ended before its plan or by its own rules, or did not end by itself."""
        if self.status in ("running", "stopped"):
            return True
        if self.planned is not None:
            # A log that says nothing of its end is complete unless it lacks more steps than it skips elsewhere.
            if (self.status, self.ending) == ("completed", "unknown"):
                return False
            return max(row.step for row in self.rows) < self.planned
        return self.status in ("failed", "crashed", "interrupted")


@dataclass(frozen=True)
class Judged:
    """The numbers of a run under a policy."""

    log: Log
    aim: Aim | None
    fired: Sequence[Firing]
    is_stopped: bool
    could_fire: bool
    numbers: plain_report.Plain
    evaluations: int
    evaluations_after: int

    @property
    def share_saved(self) -> float | None:
        """The share of its steps that would have been saved; None where the rules could not fire, or of no step."""
        of = self.numbers
        return 1 - of.steps_left / of.steps if self.could_fire and of.steps else None

    def regret(self, name: str) -> float | None:
        """Return a regret that counts: none of a run that might have gone on, or with few evaluations."""
        counts = self.could_fire and not self.log.may_go_on and self.evaluations >= FEWEST_EVALUATIONS
        return getattr(self.numbers, name) if counts else None


def log_of(run: Run) -> Log:
    """Read a run."""
    document = json.loads((run.folder / "run.json").read_text())
    source = document["source"]
    rows = [
        Row(event.kind, event.step, dict(event.metrics), event.elapsed_ns / 1e9, event.attrs.get("size_bytes"))
        for event in run.events()
        if event.rank == 0
    ]
    path = PurePath(source["path"]).relative_to(real_logs.FOLDER)
    facts = {"group": document["group"] or "", "folder": path.parts[0], "run": run.run_id, "name": document["name"]}
    # What of a configuration tells families is tested by itself.
    told = family_of(run.info)
    facts["configuration"] = told.value if told.key == "configuration" else ""
    plan = document["attempts"][-1]["plan"]
    each = (plan.get("total_epochs"), plan.get("steps_per_epoch"))
    planned = plan.get("total_steps")
    return Log(
        run_id=document["run_id"],
        name=document["name"],
        rows=rows,
        status=document["attempts"][-1]["status"],
        planned=each[0] * each[1] if planned is None and each[0] and each[1] else planned,
        ending=source["ending"],
        facts=facts,
        unit=source.get("step_unit") or f"{source['kind']} steps",
        filtered=frozenset(source.get("nan_filtered", ())),
    )


def judged(log: Log, policy: Sequence[Controller], aims: Sequence[Aim], *, replaces: bool) -> Judged:
    """Judge a run by a policy, and by the first aim that it evaluated.

    Args:
        log: The run.
        policy: The controllers.
        aims: The objectives, the preferred one first.
        replaces: Whether checkpoints that the policy orders replace the run's own.
    """
    evaluated = {name for row in log.rows if row.kind == "evaluate" for name in row.values}
    aim = next((one for one in aims if one[0] in evaluated), None)
    rows = list(_report_rows(log, aim))
    fired = firings(policy, log.rows)
    stop = next((one.row for one in fired if STOP in one.operations), None)
    end = plain_report.last_row(rows, stop)
    fired = [one for one in fired if one.row <= end]
    asked = {log.rows[one.row].step: one.row for one in fired if SAVE in one.operations}
    saves = {index: row.size_bytes or 0 for index, row in enumerate(log.rows) if row.kind == "save"}
    orders = any(SAVE in one.operations for one in policy)
    numbers = plain_report.report_of(rows, stop, saves, [*asked.values()], drops_own=replaces and orders)
    return Judged(
        log=log,
        aim=aim,
        fired=fired,
        is_stopped=stop is not None,
        could_fire=could_fire(policy, log.rows, log.filtered),
        numbers=numbers,
        evaluations=_evaluations(log.rows, aim),
        evaluations_after=_evaluations(log.rows[end + 1 :], aim),
    )


def _evaluations(rows: Sequence[Row], aim: Aim | None) -> int:
    return sum(row.kind == "evaluate" and aim is not None and aim[0] in row.values for row in rows)


def _report_rows(log: Log, aim: Aim | None) -> Iterator[real_logs.Row]:
    """Yield the rows as a report counts them; NaN for an evaluation without a value of the objective."""
    has_clock = any(row.seconds for row in log.rows)
    for row in log.rows:
        value = None
        if row.kind == "evaluate":
            value = aim[1] * row.values[aim[0]] if aim is not None and aim[0] in row.values else math.nan
        yield real_logs.Row(
            row.step, 0.0 if row.kind == "step_end" else None, value, row.seconds if has_clock else None
        )


def same_trainings(logs: Sequence[Log]) -> list[set[str]]:
    """Return the ids of the runs of each training: runs of one have a series of a loss or a score in common."""
    trainings: list[tuple[set[str], set[Hashable]]] = []
    for log in logs:
        ids, series = {log.run_id}, set(_series(log))
        for other in [one for one in trainings if one[1] & series]:
            trainings.remove(other)
            ids, series = ids | other[0], series | other[1]
        trainings.append((ids, series))
    return [ids for ids, _ in trainings]


def _series(log: Log) -> Iterator[Hashable]:
    """Yield the steps and the values at 32 bits of each series by which another log of the same training is found."""
    found: dict[tuple[str, bool], list[tuple[int, float]]] = {}
    for row in log.rows:
        for name, value in row.values.items():
            if mode_of(name) is not None and not math.isnan(value):
                found.setdefault((name, row.kind == "evaluate"), []).append((row.step, _single(value)))
    for (_, is_evaluation), values in found.items():
        if len(values) >= FEWEST_ALIKE and len({value for _, value in values}) >= FEWEST_DISTINCT:
            yield is_evaluation, tuple(values)


def _single(value: float) -> float:
    """Return the value at 32 bits."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def interval(values: Sequence[float | None], families: Sequence[Hashable]) -> tuple[float, float] | None:
    """Return the ends of the interval that holds 95 % of 2,000 resampled means; None below eight families.

    Each resample draws as many families as there are, with replacement, and takes the mean of all their runs.
    """
    members: dict[Hashable, list[float]] = {}
    for value, family in zip(values, families, strict=True):
        if value is not None:
            members.setdefault(family, []).append(value)
    clusters = sorted(sorted(cluster) for cluster in members.values())
    if len(clusters) < FEWEST_FAMILIES:
        return None
    numbers, means = splitmix64(1), []
    for _ in range(2000):
        drawn = [value for _ in clusters for value in clusters[next(numbers) % len(clusters)]]
        means.append(math.fsum(drawn) / len(drawn))
    means.sort()
    return means[50], means[1949]


def splitmix64(state: int) -> Iterator[int]:
    """Yield the numbers of SplitMix64 (Steele, Lea and Flood, 2014)."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        yield mixed ^ mixed >> 31


def steps_by_unit(runs: Sequence[Judged]) -> dict[str, tuple[int, int]]:
    """Return the steps recorded and saved, by what they count."""
    recorded: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for one in runs:
        recorded[one.log.unit] += one.numbers.steps
        left[one.log.unit] += one.numbers.steps_left
    return {unit: (steps, steps - left[unit]) for unit, steps in recorded.items()}
