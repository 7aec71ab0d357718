"""Compares a policy with baselines: a row for each, all over the same runs, and what the rows mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from ..backtests.backtesting import Backtest
from ..backtests.baselines import ASHA, ORACLE, RANDOM, BaselineOutcome, BaselineScore, standing_of
from ..intervals import paired_interval
from .aggregation import counted_regret, typical

#: The fields of a score by which policies are compared.
_COMPARED: Final = ("share_saved", "relative_regret", "relative_deployable_regret")
_SCORED: Final = ("stopped", *_COMPARED)

#: What the baselines are, for readers who see their first report.
_NOTES: Final = MappingProxyType(
    {
        ORACLE: "The oracle stops each run at its best evaluation, which no rule can know in time.",
        RANDOM: "Random stops come at random steps, at the policy's rate of stops per step.",
        ASHA: "ASHA stops a run whose 1st, 4th, 16th, ... evaluation is worse than that of the best quarter before it.",
    }
)

#: The name of the policy's own row.
_POLICY: Final = "policy"


def comparison(backtest: Backtest) -> list[dict[str, Any]]:
    """Return a row for the policy, and one per baseline with the run-by-run difference from the policy.

    All rows are over the same runs in which the policy could fire: those that each row scores, and in each column those
    for which each row knows the number. A baseline that scores fewer than half of them has no numbers, and one whose
    regret is known in fewer than half has no regret: its few runs would be those of every row. Differences are the
    policy's value less the baseline's. ``stops_judged`` counts the stops in runs whose regret is known: without any,
    the regret says nothing of the stops.
    """
    able = sum(not result.could_not_fire for result in backtest.results)
    scores: dict[str, Sequence[BaselineScore | None]] = {
        outcome.baseline.name: outcome.standings
        for outcome in backtest.baselines
        if outcome.standings and 2 * _scored(outcome, backtest) >= able
    }
    scores[_POLICY] = [standing_of(result) for result in backtest.results]
    table = {name: _common({row: _values(own, name, backtest) for row, own in scores.items()}) for name in _SCORED}
    title = backtest.policy.name or "this policy"
    rows = [{"name": _POLICY, "title": title, "digest": backtest.policy.digest, **_summary(_POLICY, table, backtest)}]
    rows.extend(_baseline_row(outcome, table, backtest) for outcome in backtest.baselines)
    return rows


def scored_on(outcome: BaselineOutcome, backtest: Backtest) -> str:
    """Return in how many runs a baseline is scored, and why not in the others; empty if in all or none."""
    able, scored = sum(not result.could_not_fire for result in backtest.results), _scored(outcome, backtest)
    if outcome.baseline.pruner is None or not 0 < scored < able:
        return ""
    return f"scored on {scored} of {able} runs; the others have no clock times, or no metric judges them"


def baseline_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield explanations of the baselines in the rows of a comparison."""
    shown = {row["name"] for row in rows if "reason" not in row and row["runs"]}
    yield from (note for one, note in _NOTES.items() if one.name in shown)


def same_runs_sentence(rows: Sequence[Mapping[str, Any]], runs: int) -> str:
    """Return over which runs the rows of a comparison are, and which have no regret; empty if all are over all."""
    own, regret = rows[0]["runs"], rows[0]["relative_regret"]["runs"]
    scored = [row for row in rows if "reason" not in row]
    lacking = ", ".join(row["title"] for row in scored if row["relative_regret"]["runs"] < regret)
    said = []
    if not own == regret == runs:
        said = [
            f"All rows are over the same runs: those that every row scores, {own:,} of {runs:,}; for regret {regret:,}."
        ]
    if lacking:
        why = "it is known in fewer than half of these runs. A stop before the first evaluation has none."
        said.append(f"No regret for {lacking}: {why}")
    return " ".join(said)


#: The values of one column of the comparison: one for each run, by the row's name. All rows know the same runs.
_Column = Mapping[str, Sequence[float | None]]


def is_cost_known(row: Mapping[str, Any]) -> bool:
    """Whether the regret of a row says what its stops cost: it stops no run, or one that can be judged."""
    return not row["stopped"] or row["stops_judged"] > 0


def _baseline_row(outcome: BaselineOutcome, table: Mapping[str, _Column], backtest: Backtest) -> dict[str, Any]:
    name = outcome.baseline.name
    about = {"name": name, "title": outcome.baseline.title, "digest": outcome.digest}
    if name not in table["stopped"]:
        return {**about, "reason": outcome.reason or scored_on(outcome, backtest) or "no run was judged"}
    families = [result.family for result in backtest.results]
    less = {key: asdict(paired_interval(table[key][_POLICY], table[key][name], families)) for key in _COMPARED}
    return {**about, **_summary(name, table, backtest), "policy_less_this": less}


def _scored(outcome: BaselineOutcome, backtest: Backtest) -> int:
    """Return the number of runs that a baseline scores, of those in which the policy could fire."""
    pairs = zip(outcome.standings, backtest.results, strict=bool(outcome.standings))
    return sum(standing is not None and not result.could_not_fire for standing, result in pairs)


def _summary(name: str, table: Mapping[str, _Column], backtest: Backtest) -> dict[str, Any]:
    stops = table["stopped"][name]
    stopped = [value for value in stops if value is not None]
    costs = zip(stops, table["relative_regret"][name], backtest.results, strict=True)
    known = [(value or 0, result) for value, cost, result in costs if cost is not None]
    judged = [value for value, result in known if name != _POLICY or result.evaluations_after]
    return {
        "runs": len(stopped),
        "stopped": sum(sorted(stopped)),
        "stops_judged": sum(sorted(judged)),
        **{key: typical(table[key][name], backtest) for key in _COMPARED},
    }


def _common(rows: _Column) -> _Column:
    """Return the rows of a column with only the runs that all of them know.

    A row that knows fewer than half of the policy's runs has none: it would take them from every row.
    """
    wanted = [index for index, value in enumerate(rows[_POLICY]) if value is not None]
    sharing = {name: row for name, row in rows.items() if 2 * sum(row[at] is not None for at in wanted) >= len(wanted)}
    known = [None not in values for values in zip(*sharing.values(), strict=True)]
    return {
        name: [value if is_known and name in sharing else None for value, is_known in zip(row, known, strict=True)]
        for name, row in rows.items()
    }


def _values(standings: Sequence[BaselineScore | None], name: str, backtest: Backtest) -> list[float | None]:
    """Return one field of each run's score; regrets only for runs that count for regret."""
    values = [
        None if standing is None or result.could_not_fire else getattr(standing, name)
        for standing, result in zip(standings, backtest.results, strict=True)
    ]
    if "regret" not in name:
        return values
    return [counted_regret(*pair) for pair in zip(backtest.results, values, strict=True)]
