"""Random policies over imported logs of real trainings: a backtest says what plain loops over the rows say.

The loops know the words of the documents only: neither engine, replay nor statistics. Each draw is a policy over
fifteen runs. At least 100 pairs of a policy and a run are drawn, 1,000 under the hypothesis profile ``explore``.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plain_backtest as plain
import plain_report
import pytest
from drawing import scaled, seed
from plain_policy import SAVE, STOP, Compared, Controller, Guard, Joined, NotFinite, Rule, Term
from real_logs import FOLDER

from steptape import backtest, open_run
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import import_sources
from steptape.importers.source import ReadOptions
from steptape.replay.backtests.judged_runs import Backtest
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.objective import Objective, declared_objective
from steptape.replay.runs.run_result import RunResult
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.run import Run
from steptape.store.run_info import RunInfo

RUNS_EACH = 15
SAVE_EVERY = 3
#: Names that mean a fact about a run, or more than one series.
FACTS = {"step", "epoch", "progress", "max_steps", "elapsed_s", "samples_seen", "world_size", "lr", "learning_rate"}
FAMILY_KEYS = (None, None, "run", "run", "name", "folder", "group")
REGRETS = ("relative_regret", "relative_deployable_regret")
MIDDLES = ("mean", "trimmed_mean", "median", "max")


class Case(NamedTuple):
    """One draw: a policy, runs and settings."""

    policy: Sequence[Controller]
    runs: Sequence[Run]
    logs: Sequence[plain.Log]
    renames: dict[str, str]
    objectives: Sequence[Objective]
    saves: str
    family: str | None


class Draw:
    """Draws policies that read what some runs recorded."""

    def __init__(self, luck: random.Random, logs: Sequence[plain.Log]) -> None:
        self.luck = luck
        self.values: dict[str, dict[str, list[float]]] = {"step_end": {}, "evaluate": {}}
        for log in logs:
            for row in log.rows:
                for name, value in row.values.items():
                    if row.kind in self.values and name not in FACTS and math.isfinite(value):
                        self.values[row.kind].setdefault(name, []).append(value)

    def name(self, kind: str, logs: Sequence[plain.Log]) -> str:
        """Draw a metric of events of a kind, the more often the more runs have it; seldom one that none has."""
        names = readable(self.luck.choice(logs), kind)
        losses = [name for name in names if "loss" in name]
        if self.luck.random() < 0.03 or not names:
            return self.luck.choice(["eval_loss", "loss", "nowhere"])
        return self.luck.choice(losses if losses and self.luck.random() < 0.8 else names)

    def term(self, series: str) -> Term:
        """Draw a function over a window of a series, of which the newest value alone is no part."""
        function = self.luck.choice(["mean", "mean", "median", "min", "max", "lag", "ema"])
        size = self.luck.choice([1, 2, 3]) if function == "lag" else self.luck.choice([2, 3, 5, 10, 30])
        return Term(series, function, size, 0 if function == "lag" else self.luck.choice([1, 1, 2]))

    def comparison(self, kind: str, series: str) -> Rule:
        """Draw a comparison that some values meet and others miss."""
        form, factor = self.luck.random(), self.luck.choice([0.5, 0.9, 0.98, 1.0, 1.02, 1.1, 1.5])
        op = self.luck.choice([">", ">=", "<", "<="])
        if form < 0.2:
            known = self.values[kind].get(series) or [1.0]
            return Compared(Term(series), op, round(self.luck.choice(known), 4))
        if form < 0.3:
            function = self.luck.choice(["slope", "delta"])
            return Compared(Term(series, function, self.luck.choice([2, 5])), op, self.luck.choice([-0.01, 0.0, 0.01]))
        if form < 0.4:
            return Compared(Term(series), "<=", 1.0, Term(series, "min", self.luck.choice([3, 10, 100])))
        return Compared(Term(series), op, factor, self.term(series))

    def rule(self, kind: str, logs: Sequence[plain.Log]) -> Rule:
        """Draw a rule: a comparison, alone or behind a guard, or two that are joined."""
        series = self.name(kind, logs)
        first = self.comparison(kind, series)
        form = self.luck.random()
        if form < 0.3:
            number = self.luck.choice([1, 3, 5, 20, 60])
            return Joined(Guard(self.luck.choice(["", series]), number), "and", first)
        if form < 0.4:
            return Joined(NotFinite(series), "or", first)
        if form < 0.45:
            return NotFinite(series)
        if form < 0.6:
            other_kind = self.luck.choice(["step_end", "evaluate"])
            other = self.name(other_kind, logs)
            if other != series:
                return Joined(first, self.luck.choice(["and", "or"]), self.comparison(other_kind, other))
        return first

    def controller(self, number: int, logs: Sequence[plain.Log]) -> Controller:
        """Draw a controller."""
        kind = self.luck.choice(["step_end", "evaluate", "evaluate"])
        chance = self.luck.random
        is_for = chance() < 0.15
        both = not is_for and chance() < 0.15
        first = self.luck.choice([None, 10, 500])
        return Controller(
            name=f"c{number}",
            triggers=("step_end", "evaluate") if both else (kind,),
            rule=self.rule(kind, logs),
            operations=self.luck.choice([(STOP,), (STOP,), (SAVE,), (SAVE, STOP), ()]),
            patience=self.luck.choice([1, 2, 3, 10]) if is_for or chance() < 0.5 else 0,
            is_reset=is_for or chance() < 0.7,
            is_for=is_for,
            cooldown=self.luck.choice([2, 50, 1000]) if chance() < 0.25 else 0,
            once=chance() < 0.15,
            between=(first, self.luck.choice([None, 5000])) if chance() < 0.2 else (None, None),
        )


def readable(log: plain.Log, kind: str) -> list[str]:
    """Return the metrics of events of a kind that a rule can read: it may not hold two underscores in a row."""
    names = {name for row in log.rows if row.kind == kind for name in row.values}
    return sorted(name for name in names - FACTS if "__" not in name)


def imported_runs(tmp_path: Path, store_record: Callable[..., Path], luck: random.Random) -> list[Run]:
    """Import all logs. Half of the runs get checkpoints, and some are there twice, under other names of metrics."""
    store = tmp_path / "imported"
    found = find_sources([FOLDER], all_readers())
    list(import_sources(store, found.sources, ReadOptions()))
    runs = [open_run(path.parent) for path in sorted(store.glob("*/run.json"))]
    for number, run in enumerate(list(runs)):
        if luck.random() < 0.5:
            runs[number] = rewritten(store_record, run, run.run_id, luck, {})
        if luck.random() < 0.1:
            names = {name for event in run.events() for name in event.metrics if "loss" in name}
            copy = rewritten(store_record, run, f"copy-{run.run_id}", luck, {name: f"other/{name}" for name in names})
            runs.append(copy)
    return runs


def rewritten(
    store_record: Callable[..., Path], run: Run, run_id: str, luck: random.Random, names: dict[str, str]
) -> Run:
    """Write a run's events again, with checkpoints and under other names of metrics."""
    info: RunInfo = run.info
    events: list[Event] = []
    evaluations = 0
    for event in run.events():
        metrics = {names.get(name, name): value for name, value in event.metrics.items()}
        events.append(event._replace(metrics=metrics))
        evaluations += event.kind == "evaluate"
        if event.kind == "evaluate" and evaluations % SAVE_EVERY == 0:
            size = {"size_bytes": luck.randrange(1, 10**6)}
            events.append(event._replace(kind="save", metrics={}, attrs=size))
    facts: dict[str, Any] = {"group": info.group, "source": info.source, "config": info.config, "tags": info.tags}
    ended = {"name": info.name, "status": info.last.status, "plan": info.last.plan}
    return open_run(store_record(events, run_id=run_id, sealed=luck.random() < 0.5, **facts, **ended))


def alike(luck: random.Random, pool: Sequence[tuple[Run, plain.Log]]) -> list[tuple[Run, plain.Log]]:
    """Draw runs most of which share a metric, so that a policy can fire in many."""
    kind = luck.choice(["step_end", "evaluate"])
    names = readable(luck.choice(pool)[1], kind) or ["loss"]
    shared = luck.choice([name for name in names if "loss" in name] or names)
    having = [pair for pair in pool if shared in readable(pair[1], kind)]
    most = luck.sample(having, min(len(having), RUNS_EACH - 2))
    ids = {run.run_id for run, _ in most}
    others = [pair for pair in pool if pair[0].run_id not in ids]
    return most + luck.sample(others, RUNS_EACH - len(most))


def drawn(luck: random.Random, pool: Sequence[tuple[Run, plain.Log]]) -> Case:
    """Draw a policy over some of the runs."""
    chosen = alike(luck, pool) if luck.random() < 0.7 else luck.sample(pool, RUNS_EACH)
    ids = {run.run_id for run, _ in chosen}
    copies = [pair for pair in pool if pair[0].run_id.removeprefix("copy-") in ids - {pair[0].run_id}]
    chosen = list({pair[0].run_id: pair for pair in [*copies[:1], *chosen]}.values())[:RUNS_EACH]
    runs, logs = [run for run, _ in chosen], [log for _, log in chosen]
    draw = Draw(luck, logs)
    renames = {draw.name("evaluate", logs): "eval_loss"} if luck.random() < 0.3 else {}
    recorded = {name for log in logs for row in log.rows for name in row.values}
    renames = {old: new for old, new in renames.items() if old in recorded and old != new}
    called = [log.renamed(renames) for log in logs]
    evaluated = {name for log in called for row in log.rows if row.kind == "evaluate" for name in row.values}
    draw = Draw(luck, called)
    aims = dict.fromkeys(draw.name("evaluate", called) for _ in range(luck.choice([0, 1, 3, 6])))
    objectives = [declared_objective(aim, luck.choice(["min", "min", "max"])) for aim in aims if aim in evaluated]
    policy = [draw.controller(number, called) for number in range(luck.choice([1, 1, 2, 3]))]
    key = luck.choice(FAMILY_KEYS)
    key = key if key != "group" or any(log.facts["group"] for log in logs) else None
    return Case(policy, runs, called, renames, objectives, luck.choice(["keep", "replace"]), key)


def report_of(case: Case) -> Backtest:
    """Backtest a draw."""
    policy = parse_policy(json.dumps({"controllers": [controller.entry() for controller in case.policy]}))
    options: dict[str, Any] = {"saves": case.saves, "family": case.family, "renames": case.renames}
    return backtest(policy, case.runs, objective=case.objectives, **options)


def about(value: float | None) -> Any:
    """Return what a number is compared with: equal but for the order of additions."""
    return None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True)


def check_run(result: RunResult, expected: plain.Judged) -> None:
    """Compare what is said of one run."""
    numbers, predicted = expected.numbers, result.predicted
    assert predicted is not None, result.notes
    rows = expected.log.rows
    fired = [(one.controller, rows[one.row].step, rows[one.row].kind) for one in expected.fired]
    assert [(one.outcome.controller, one.outcome.step, one.event) for one in result.decisions] == fired
    assert (result.stop is not None) == expected.is_stopped
    assert (not result.could_not_fire) == expected.could_fire
    assert bool(result.right_censored) == expected.log.may_go_on
    assert len(result.evaluations) == expected.evaluations
    assert result.step_unit == expected.log.unit
    assert (result.recorded.steps, predicted.steps) == (numbers.steps, numbers.steps_left)
    assert (result.recorded.evaluations, predicted.evaluations) == (numbers.evaluations, numbers.evaluations_left)
    assert (result.recorded.checkpoints, predicted.checkpoints) == (numbers.checkpoints, numbers.checkpoints_left)
    assert result.seconds_saved == about(numbers.seconds_saved)
    if numbers.checkpoints:
        assert result.bytes_saved == numbers.bytes_saved
    for name in ("regret", "deployable_regret", *REGRETS):
        assert getattr(result, name) == about(getattr(numbers, name)), name


def check_all(report: Backtest, expected: Sequence[plain.Judged], family: str | None) -> None:
    """Compare what is said of all runs together."""
    total = report_json(summarize(report))["aggregate"]
    able = [one for one in expected if one.could_fire]
    families = [one.log.family(family) for one in expected]
    assert total["runs"] == len(expected)
    assert total["could_fire"] == len(able)
    assert total["fired"] == sum(bool(one.fired) for one in expected)
    assert total["stopped"] == sum(one.is_stopped for one in expected)
    same = {(result.family, own) for result, own in zip(report.results, families, strict=True)}
    assert len(same) == len({result.family for result in report.results}) == len(set(families))
    assert total["families"]["count"] == len({one.log.family(family) for one in able})
    by_unit = {one["unit"]: (one["steps"], one["steps_saved"]) for one in total["steps_by_unit"]}
    assert by_unit == plain.steps_by_unit(able)
    check_spread(total["share_saved"], [one.share_saved for one in expected], families)
    for name in REGRETS:
        values = [one.regret(name) for one in expected]
        check_spread(total[name], values, families)
        assert total[name]["above"] == sum(value is not None and value > 0.01 for value in values)
    tested = [one.regret("relative_regret") if one.is_stopped and one.evaluations_after else None for one in expected]
    check_spread(total["relative_regret_of_stopped"], tested, families)
    assert {(part["key"], part["value"]): part["runs"] for part in total["by_family"]} == Counter(
        (result.family.key, result.family.value) for result in report.results if not result.could_not_fire
    )
    assert sum(part["relative_regret_of_stopped"]["runs"] for part in total["by_family"]) == len(
        [value for value in tested if value is not None]
    )
    assert set(total["absolute_regret"]) == {one.aim[0] for one in expected if one.aim}
    for metric, found in total["absolute_regret"].items():
        own = [one.regret("regret") if one.aim and one.aim[0] == metric else None for one in expected]
        check_spread(found, own, families)


def check_spread(found: dict[str, Any], values: Sequence[float | None], families: Sequence[Any]) -> None:
    """Compare a mean with all that is said beside it."""
    known = [value for value in values if value is not None]
    assert found["runs"] == len(known)
    if known:
        middles = dict(zip(MIDDLES, plain_report.spread(values)[2], strict=True))
        assert {name: found[name] for name in MIDDLES if name in found} == {
            name: about(value) for name, value in middles.items() if name in found
        }
    assert (found["low"], found["high"]) == tuple(map(about, plain.interval(values, families) or (None, None)))


def aims_of(case: Case, result: RunResult) -> list[plain.Aim]:
    """Return what may judge a run: what the draw declares, or else what is guessed, which is the report's own."""
    objectives = case.objectives or ([result.objective] if result.objective else [])
    return [(one.metric, 1.0 if one.mode == "min" else -1.0) for one in objectives]


def check(case: Case) -> int:
    """Compare a backtest with the plain loops, and return the number of pairs of a run and the policy."""
    report = report_of(case)
    logs = {log.run_id: log for log in case.logs}
    trainings = plain.same_trainings(case.logs)
    counted = {result.run_id for result in report.results}
    assert [len(counted & ids) for ids in trainings] == [1] * len(trainings)
    assert len(report.repeated) == len(case.logs) - len(trainings)
    expected = [
        plain.judged(logs[one.run_id], case.policy, aims_of(case, one), replaces=case.saves == "replace")
        for one in report.results
    ]
    for result, one in zip(report.results, expected, strict=True):
        check_run(result, one)
    check_all(report, expected, case.family)
    return len(expected)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real logs in {FOLDER}")
def test_a_random_policy_over_real_logs_does_what_plain_loops_do(
    tmp_path: Path, store_record: Callable[..., Path]
) -> None:
    """They agree in each run, and in what is said of all runs together."""
    base = seed()
    runs = imported_runs(tmp_path, store_record, random.Random(base))
    pool = [(run, log) for run, log in ((run, plain.log_of(run)) for run in runs) if log.rows]
    pairs = number = 0
    while pairs < scaled(100):
        case = drawn(random.Random(f"{base} {number}"), pool)
        try:
            pairs += check(case)
        except BaseException as error:
            error.add_note(f"draw {number} of seed {base}: {case.policy}, {case[3:]}")
            raise
        number += 1
