"""Plans a retention: what of a store goes, what stays and why, and what is lost.

Takes a store and a keep file; returns a plan with a digest. Reads only.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..replay.runs.regret import regret_of
from ..store.cache.mirrored import require_writable
from ..store.errors import TelemetryError
from ..store.store import Store
from .disk import Grounds, extent_of
from .keep_file import KeepFile, KeepRule
from .keeping import checkpoints_kept, runs_kept
from .receipt import Interrupted
from .saved_run import SavedFile, SavedRun, read_saved_run


@dataclass(frozen=True, slots=True)
class Doomed:
    """A thing that is to go.

    Attributes:
        what: ``checkpoint``, ``run``, or ``leftover`` of an interrupted deletion.
        path: Where it is, without links.
        size_bytes: Its size, without things in it that go on their own.
        newest_ns: The newest modification time in it.
        rule: The rule that lets it go.
        digests: The digest of the log of each run that names it, by run id.
    """

    what: str
    path: Path
    size_bytes: int
    newest_ns: int
    rule: str
    digests: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as plans and receipts have it."""
        return asdict(self) | {"path": str(self.path)}


@dataclass(frozen=True, slots=True)
class CheckpointVerdict:
    """The verdict on one checkpoint: whether it stays, and why.

    Attributes:
        step: Its step.
        path: Its path, as the run gave it.
        size_bytes: Its size; None if it is neither judged nor deleted.
        kept: Why it stays; empty if it goes.
    """

    step: int
    path: str
    size_bytes: int | None
    kept: str


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The verdict on one run, and those on its checkpoints.

    Attributes:
        run_id, name: The run.
        kept: Why its log stays; empty if it goes.
        checkpoints: Its checkpoints by step, without missing ones.
        missing: How many of its checkpoints are not on disk any more.
        best, best_kept: The best value of its objective with a checkpoint, now and afterwards; None without one.
        regret: How much worse ``best_kept`` is; None where either is missing.
    """

    run_id: str
    name: str
    kept: str
    checkpoints: tuple[CheckpointVerdict, ...]
    missing: int
    best: float | None
    best_kept: float | None
    regret: float | None


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The plan of a retention: the checkpoints and runs that it would delete.

    Attributes:
        grounds: The folders in which it may.
        doomed: What goes, in the order of deletion: checkpoints before the runs that they may lie in.
        runs: What happens to each run, oldest first.
        sources: The runs as they were read, by id.
        problems: The errors of runs that cannot be read.
    """

    grounds: Grounds
    doomed: tuple[Doomed, ...]
    runs: tuple[RunVerdict, ...]
    sources: Mapping[str, SavedRun]
    problems: tuple[TelemetryError, ...]

    @property
    def size_bytes(self) -> int:
        """The size of everything that goes."""
        return sum(doomed.size_bytes for doomed in self.doomed)

    @property
    def digest(self) -> str:
        """Identity of what goes: 16 hex digits that differ if one file, size or time does."""
        text = json.dumps([doomed.to_json() for doomed in self.doomed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_retention(
    store: Store, keep: KeepFile, *, root: Path | None = None, interrupted: Iterable[Interrupted] = ()
) -> RetentionPlan:
    """Plan what a keep file lets go.

    Args:
        store: The store.
        keep: The rules.
        root: The folder that relative paths are relative to, and in which checkpoints may be deleted. Without it, only
            those in the store may.
        interrupted: Deletions that a receipt says were begun and not ended.

    Raises:
        ReadOnlyStore: The store is in object storage.
        TelemetryError: ``root`` is not a folder.
    """
    require_writable(store.path)
    if root is not None and not root.is_dir():
        raise TelemetryError("the root is not a folder", where=str(root))
    above = store.path.resolve()
    grounds = Grounds((root or Path.cwd()).resolve(), (above, root.resolve()) if root else (above,))
    entries, problems = store.entries()
    runs: list[SavedRun] = []
    for entry in entries:
        try:
            runs.append(read_saved_run(entry, grounds, keep))
        except TelemetryError as error:
            problems.append(error)
    choice = _Choice(runs, keep, time.time_ns())
    left = (one.leftover for one in interrupted if one.leftover is not None and grounds.ground_of(one.leftover))
    files = [*_leftovers(left), *choice.doomed_checkpoints()]
    doomed = (*files, *choice.doomed_runs(frozenset(one.path for one in files)))
    return RetentionPlan(
        grounds,
        doomed,
        tuple(map(choice.verdict, runs)),
        {run.info.run_id: run for run in runs},
        tuple(problems),
    )


class _Choice:
    """Decides what stays. A run stays, too, if something in its folder does.

    Args:
        runs: All runs of the store, oldest first.
        keep: The rules.
        now_ns: The time, nanoseconds since 1970.
    """

    def __init__(self, runs: Sequence[SavedRun], keep: KeepFile, now_ns: int) -> None:
        self._keep = keep
        self._now_ns = now_ns
        self._runs = runs
        self.logs = self._logs_kept()
        while True:
            self.paths = self._paths_kept()
            above = {parent for path in self.paths for parent in path.parents}
            held = {run.info.run_id: "holds what stays" for run in runs if run.folder.resolve() in above}
            if held.keys() <= self.logs.keys():
                break
            self.logs = held | self.logs

    def _logs_kept(self) -> dict[str, str]:
        """Return why runs stay, by run id."""
        rules = self._keep.runs
        kept = {} if rules is None else runs_kept(self._runs, rules, self._now_ns)
        for run in self._runs:
            if run.is_live:
                kept[run.info.run_id] = "a process is writing to it"
            elif rules is None:
                kept[run.info.run_id] = "no rules for runs"
            elif reason := _tie(run, rules):
                kept.setdefault(run.info.run_id, reason)
        return kept

    def _paths_kept(self) -> dict[Path, str]:
        """Return why checkpoints stay, by path."""
        kept: dict[Path, str] = {}
        for run in self._runs:
            for path, reason in self._reasons(run):
                kept.setdefault(path, reason)
        above = {parent for path in kept for parent in path.parents}
        for path in sorted({file.place.path for run in self._runs for file in run.sound} - kept.keys()):
            if path in above or any(parent in kept for parent in path.parents):
                kept[path] = "holds, or is a part of, what stays"
                above.update(path.parents)
        return kept

    def _reasons(self, run: SavedRun) -> Iterable[tuple[Path, str]]:
        """Yield the paths of a run that stay, each with the reason."""
        for file in run.files:
            if file.place.is_there and file.place.fault:
                yield file.place.path, file.place.fault
            elif run.is_live:
                yield file.place.path, "a process is writing to its run"
        yield from ((path, "a running run has loaded it") for path in run.loaded)
        rules = self._keep.checkpoints
        if run.info.run_id not in self.logs:
            pins = [rule for rule in rules or () if rule.name == "pinned"]
            yield from ((file.place.path, reason) for file, reason in checkpoints_kept(run, pins, self._now_ns))
        if rules is None:
            inside = () if run.info.run_id in self.logs else (run.folder.resolve(),)
            outer = (file.place.path for file in run.sound if not set(inside) & set(file.place.path.parents))
            yield from ((path, "no rules for checkpoints") for path in outer)
        elif run.info.run_id in self.logs:
            kept = checkpoints_kept(run, rules, self._now_ns)
            yield from ((file.place.path, reason) for file, reason in kept)

    def doomed_checkpoints(self) -> list[Doomed]:
        """Return the checkpoints that go, by path."""
        named: dict[Path, list[tuple[SavedRun, SavedFile]]] = {}
        for run in self._runs:
            for file in run.sound:
                if file.place.path not in self.paths:
                    named.setdefault(file.place.path, []).append((run, file))
        found: dict[Path, Doomed] = {}
        for path, users in sorted(named.items()):  # A folder comes before what is in it.
            digests = {run.info.run_id: run.log_digest for run, _ in users}
            holder = next((parent for parent in path.parents if parent in found), None)
            if holder is not None:
                found[holder] = replace(found[holder], digests=found[holder].digests | digests)
            elif (extent := users[0][1].place.extent) is not None:
                stays = any(run.info.run_id in self.logs for run, _ in users)
                rule = _refusal("checkpoints", self._keep.checkpoints) if stays else _refusal("runs", self._keep.runs)
                found[path] = Doomed("checkpoint", path, extent.size_bytes, extent.newest_ns, rule, digests)
        return list(found.values())

    def doomed_runs(self, without: frozenset[Path]) -> list[Doomed]:
        """Return the runs whose folders go, oldest first; ``without`` are the things that go on their own."""
        rule = _refusal("runs", self._keep.runs)
        found = []
        for run in self._runs:
            if run.info.run_id not in self.logs:
                extent = extent_of(run.folder, without=without)
                digests = {run.info.run_id: run.log_digest}
                folder = run.folder.parent.resolve() / run.folder.name
                found.append(Doomed("run", folder, extent.size_bytes, 0, rule, digests))
        return found

    def verdict(self, run: SavedRun) -> RunVerdict:
        """Return what happens to a run."""
        there = sorted((file for file in run.files if file.place.is_there), key=lambda file: file.step)
        kept_steps = [file.step for file in run.sound if file.place.path in self.paths]
        best, best_kept = run.best_of(file.step for file in run.sound), run.best_of(kept_steps)
        values = [None if one is None else one.value for one in (best, best_kept)]
        return RunVerdict(
            run.info.run_id,
            run.info.name,
            self.logs.get(run.info.run_id, ""),
            tuple(
                CheckpointVerdict(
                    file.step,
                    file.recorded,
                    file.place.extent.size_bytes if file.place.extent else None,
                    self.paths.get(file.place.path, ""),
                )
                for file in there
            ),
            len(run.files) - len(there),
            values[0],
            values[1],
            None if run.objective is None else regret_of(run.objective, values[1], values[0]),
        )


def _tie(run: SavedRun, rules: Sequence[KeepRule]) -> str:
    """Return why a run stays that no rule keeps; empty if it goes."""
    if run.folder.is_symlink():
        return "its folder is a link"
    if run.points_to_resume_from():
        return "has a point to resume from"
    if run.info.last.status != "completed" and any(file.place.is_there for file in run.files):
        return "may have a point to resume from"
    if run.pins and any(rule.name == "pinned" for rule in rules):
        return "has a pinned checkpoint"
    return ""


def _refusal(what: str, rules: Sequence[KeepRule] | None) -> str:
    return f"{what}: kept by none of {'; '.join(rule.text for rule in rules or ())}"


def _leftovers(paths: Iterable[Path]) -> Iterable[Doomed]:
    for path in sorted(set(paths)):
        extent = extent_of(path)
        yield Doomed("leftover", path, extent.size_bytes, extent.newest_ns, "an interrupted deletion", {})
