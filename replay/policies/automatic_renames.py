"""Finds the renames with which the rules of policies read runs that call their metrics otherwise.

Takes policies and runs; reads the names of the runs' metrics and, where none is near, which of them are evaluations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ...rules.policy_file.policy import Policy
from ...store.errors import TelemetryError
from ...store.metric_words import mode_of
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ..runs.event_stream import read_metrics, renamed_columns
from ..runs.judging import background_of, lacked_metrics, names_read
from ..runs.metric_names import NearNames, Renames, commonest_first, near_metrics, split_of
from ..runs.mute_rules import judge_of
from ..runs.objective import Objective
from ..runs.run_result import BacktestSettings


def near_names(policies: Iterable[Policy], runs: Sequence[Run], renames: Renames = ()) -> Iterator[NearNames]:
    """Yield for each metric that rules read and runs lack the names that may mean it, in the order of the metrics.

    Where a run has no near name, it is the metric that judges the run, unless that means another metric already. A run
    that cannot be read has no names.

    Args:
        policies: The policies.
        runs: The runs.
        renames: Metrics that are renamed already.
    """
    near: dict[str, Counter[str]] = {}
    judges: dict[str, Counter[str]] = {}
    torn: set[str] = set()
    read = names_read(policies)
    for run in runs:
        try:
            found = run.read(lambda snapshot: _names_in(snapshot, read, renames))
        except TelemetryError:
            continue
        for name, (own, judge) in found.items():
            near.setdefault(name, Counter()).update(own)
            judges.setdefault(name, Counter()).update(filter(None, [judge]))
            torn.update([name] if len(own) > 1 else ())
    taken = {name for counts in near.values() for name in counts}
    for name in sorted(near):
        judging = {judge for judge in judges[name] if judge not in taken}
        counts = near[name] + Counter({judge: judges[name][judge] for judge in judging})
        if counts:
            yield NearNames(name, commonest_first(counts), name not in torn, frozenset(judging))


def _names_in(snapshot: Snapshot, read: Iterable[str], renames: Renames) -> dict[str, tuple[list[str], str]]:
    """Return for each metric that rules read and a run lacks its near names, and the metric that judges the run."""
    lacked = lacked_metrics(read, snapshot, renames)
    if not lacked:
        return {}
    recorded = renamed_columns(snapshot, renames)
    near = {name: near_metrics(name, recorded) for name in lacked}
    nearest = {name: [one for one in own if split_of(one) == split_of(own[0])] for name, own in near.items()}
    objective = None if all(nearest.values()) else _judge(snapshot, renames)
    return {name: (own, "" if own else judge_of(name, objective)) for name, own in nearest.items()}


def _judge(snapshot: Snapshot, renames: Renames) -> Objective | None:
    """Return the metric that judges a run where the user declares none."""
    background = background_of(snapshot, BacktestSettings(renames=renames))
    study = background.of_study
    told = {name for name in renamed_columns(snapshot, renames) if mode_of(name) is not None}
    told |= set() if study is None else {study.metric}
    stream = read_metrics(snapshot, told, renames)
    evaluated = frozenset(name for name in told if len(stream.values_at("evaluate", name).rows))
    return background.objective_among(evaluated, ())
