"""Applies the rules of a keep file: which checkpoints of a run, and which runs of a store, each rule keeps.

Takes runs as they were read; returns reasons. What has no reason is to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from .keep_file import KeepRule
from .saved_run import SavedFile, SavedRun

#: Nanoseconds in a second.
_NS: Final = 1_000_000_000


def checkpoints_kept(run: SavedRun, rules: Sequence[KeepRule], now_ns: int) -> Iterator[tuple[SavedFile, str]]:
    """Yield the checkpoints of a run that rules keep, each with the reason. A checkpoint may come several times."""
    for file in run.points_to_resume_from():
        yield file, "a point to resume from"
    effective = [file for file in run.sound if file.is_effective]
    steps = sorted({file.step for file in effective})
    for rule in rules:
        if rule.name in ("pinned", "younger_than"):
            yield from ((file, rule.text) for file in run.sound if _keeps(rule, run, file, now_ns))
        elif rule.name == "best" and run.best_of(steps) is None:
            yield from ((file, f"{rule.text} (no checkpoint has an evaluation)") for file in run.sound)
        elif steps:
            chosen = _steps_kept(rule, run, steps)
            yield from ((file, rule.text) for file in effective if file.step in chosen)


def _keeps(rule: KeepRule, run: SavedRun, file: SavedFile, now_ns: int) -> bool:
    """Whether ``pinned`` or ``younger_than`` keeps a checkpoint."""
    if rule.name == "pinned":
        names = {file.recorded, str(file.place.path), run.info.run_id, run.info.name}
        return run.is_pinned or any(first <= file.step <= last for first, last in run.pins) or bool(names & rule.listed)
    newest_ns = max(file.saved_ns, file.place.extent.newest_ns if file.place.extent else 0)
    return now_ns - newest_ns < rule.age.total_seconds() * _NS


def _steps_kept(rule: KeepRule, run: SavedRun, steps: Sequence[int]) -> set[int]:
    """Return the steps whose checkpoints a rule keeps.

    Args:
        rule: ``best``, ``last``, ``before_spike`` or ``powers_of``.
        run: The run.
        steps: The steps that have a checkpoint, in order; at least one.
    """
    match rule.name:
        case "last":
            return set(steps[-rule.count :])
        case "before_spike":
            earlier = ([step for step in steps if step < spike] for spike in run.spikes[rule.spike])
            return {before[-1] for before in earlier if before}
        case "powers_of":
            return {min(steps, key=lambda step: abs(step - power)) for power in _powers(rule.count, steps[-1])}
    left, kept = set(steps), set[int]()
    while len(kept) < rule.count and (judged := run.best_of(left)) is not None:
        kept.add(judged.step)
        left.discard(judged.step)
    return kept


def _powers(base: int, limit: int) -> Iterator[int]:
    power = 1
    while power <= max(limit, 1):
        yield power
        power *= base


def runs_kept(runs: Sequence[SavedRun], rules: Iterable[KeepRule], now_ns: int) -> dict[str, str]:
    """Return the runs that rules keep, by run id, with the first reason.

    Args:
        runs: All runs of a store, oldest first.
        rules: The rules.
        now_ns: The time, nanoseconds since 1970.
    """
    kept: dict[str, str] = {}
    for rule in rules:
        for run in _runs_of(rule, runs, now_ns):
            kept.setdefault(run.info.run_id, rule.text)
    return kept


def _runs_of(rule: KeepRule, runs: Sequence[SavedRun], now_ns: int) -> Iterable[SavedRun]:
    match rule.name:
        case "last":
            return runs[-rule.count :]
        case "pinned":
            return [run for run in runs if run.is_pinned or rule.listed & {run.info.run_id, run.info.name}]
        case "younger_than":
            return [run for run in runs if now_ns - _heard_of_ns(run) < rule.age.total_seconds() * _NS]
    return [run for group in _by_objective(runs).values() for run in group[: rule.count]]


def _by_objective(runs: Sequence[SavedRun]) -> Mapping[object, list[SavedRun]]:
    """Return the runs by objective, the best first. Runs that nothing judges are groups of their own."""
    groups: dict[object, list[tuple[float, SavedRun]]] = {}
    for run in runs:
        value, objective = run.best_at_all(), run.objective
        if objective is None or value is None:
            groups[run.info.run_id] = [(0.0, run)]
        else:
            key = objective.metric, objective.mode
            groups.setdefault(key, []).append((objective.loss_of(value, 0.0), run))
    return {key: [run for _, run in sorted(group, key=lambda pair: pair[0])] for key, group in groups.items()}


def _heard_of_ns(run: SavedRun) -> float:
    """Return when a run was last heard of; infinite if nobody knows, so that it has no age."""
    started_ns = run.info.attempts[0].started_ns
    return started_ns + run.entry.summary.duration_s * _NS if started_ns else float("inf")
