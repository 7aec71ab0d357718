"""Pushes all runs of a store, once or for as long as it grows, and retries while the target is away."""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from ..store.errors import RunChanging, TelemetryError
from ..store.run_folder import RUN_JSON, has_journal, run_names, states_of_files
from .push_protocol import LineLost, PushRefused, Target, TargetAway
from .run_push import RunPush
from .targets import TIMEOUT_S, FolderTarget, HttpTarget, ObjectTarget

if TYPE_CHECKING:
    from .object_push import ObjectPush

_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")

#: Seconds between two looks at a store that does not change.
LOOK_EVERY_S: Final = 0.2

#: Seconds until the first and at most until the next try while the target is away.
FIRST_PAUSE_S: Final = 0.2
MOST_PAUSE_S: Final = 30.0

#: Least seconds that an answer is waited for.
LEAST_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class RunPushed:
    """The outcome of one run.

    Attributes:
        folder: The run's folder.
        events: Number of events sent.
        is_live: Whether a process still writes to it.
        uncompared: Why the logs could not be compared; empty where they are equal.
        refused: Why the target or this end refuses it; empty when it was pushed.
    """

    folder: Path
    events: int
    is_live: bool = False
    uncompared: str = ""
    refused: str = ""


@dataclass(slots=True)
class Backoff:
    """Pauses while the target is away: each twice as long as the one before, with a random part.

    Args:
        say: Called once when the target goes away, and once when it is back.
        wait_s: Seconds without success after which the last error is raised.
        sleep: Sleeps for so many seconds.
    """

    say: Callable[[str], None]
    wait_s: float
    sleep: Callable[[float], object] = time.sleep
    _pause_s: float = FIRST_PAUSE_S
    _since_s: float | None = None
    _said: str = ""

    def wait(self, error: TelemetryError, began_s: float) -> None:
        """Wait until the next try.

        Args:
            error: The error of the last one.
            began_s: When the last one began, by the monotonic clock.

        Raises:
            TelemetryError: The given error, if the target has been away for too long.
        """
        if isinstance(error, LineLost) and error.after_answers:
            self.end()
        now_s = time.monotonic()
        self._since_s = began_s if self._since_s is None else self._since_s
        left_s = self._since_s + self.wait_s - now_s
        if left_s <= 0:
            raise error
        if self._pause_s > 1.0 and self._said != error.what:
            self.say(f"{error}\nNothing is lost; the push tries again")
            self._said = error.what
        # A random part, so that pushers of many machines do not return at once.
        self.sleep(min(left_s, self._pause_s * random.uniform(0.5, 1.0)))
        self._pause_s = min(MOST_PAUSE_S, 2 * self._pause_s)

    def end(self) -> None:
        """Note a success."""
        if self._said:
            self.say("the target takes runs again")
        self._pause_s, self._since_s, self._said = FIRST_PAUSE_S, None, ""


@dataclass(slots=True)
class StorePush:
    """The push of a store, or of the single run in a folder.

    Args:
        source: A store, or a run's folder.
        target: Where runs go.
        report: Called with the outcome of each run.
        backoff: Waits while the target is away.
    """

    source: Path
    target: Target | ObjectTarget
    report: Callable[[RunPushed], None]
    backoff: Backoff
    _open: dict[Path, RunPush | ObjectPush] = field(default_factory=dict)
    _idle_s: dict[Path, float] = field(default_factory=dict)
    _sent: dict[Path, int] = field(default_factory=dict)
    _settled: dict[Path, list[tuple[str, int, int]]] = field(default_factory=dict)
    _refused: dict[Path, str] = field(default_factory=dict)

    def once(self) -> None:
        """Push everything that is there now.

        Raises:
            TargetAway: The target was away for too long, or does not seal a run.
        """
        for folder in self._folders():
            while not self._look(folder):
                time.sleep(LOOK_EVERY_S)
            self._close(folder)

    def follow(self) -> None:
        """Push for ever.

        Raises:
            TargetAway: The target was away for too long.
        """
        while True:
            began_s = time.monotonic()
            for folder in self._folders():
                self._look(folder, goes_on=True)
            time.sleep(max(0.0, began_s + LOOK_EVERY_S - time.monotonic()))

    def close(self) -> None:
        """Close the files of all runs."""
        for folder in list(self._open):
            self._close(folder)

    def _folders(self) -> Iterator[Path]:
        if (self.source / RUN_JSON).exists() or has_journal(self.source):
            yield self.source
            return
        for folder in (self.source / name for name in run_names(self.source)):
            if (folder / RUN_JSON).exists() or has_journal(folder):
                yield folder

    def _look(self, folder: Path, *, goes_on: bool = False) -> bool:
        """Look at one run; return whether there is no more to do for it now."""
        stamp = _stamp(folder)
        if self._settled.get(folder) == stamp:
            return True
        push, began_s = self._open.setdefault(folder, push_of(folder, self.target)), time.monotonic()
        try:
            progress = push.look()
        except PushRefused as error:
            return self._settle(RunPushed(folder, self._sent.get(folder, 0), refused=str(error)))
        except (TargetAway, RunChanging) as error:
            self.backoff.wait(error, began_s)
            return False
        except TelemetryError as error:
            return self._settle(RunPushed(folder, self._sent.get(folder, 0), refused=str(error)))
        self.backoff.end()
        self._sent[folder] = self._sent.get(folder, 0) + progress.events
        if progress.is_done:
            return self._settle(RunPushed(folder, self._sent[folder], uncompared=progress.uncompared))
        if progress.is_live and progress.is_whole and not progress.events and not goes_on:
            return self._settle(RunPushed(folder, self._sent[folder], is_live=True))
        if progress.events:
            self._idle_s.pop(folder, None)
        elif not goes_on and began_s - self._idle_s.setdefault(folder, began_s) > self.backoff.wait_s:
            raise TargetAway("the target has taken nothing new of the run, and has not sealed it", where=folder.name)
        return False

    def _settle(self, outcome: RunPushed) -> bool:
        # A refused run that grows is refused at each look.
        if not outcome.refused or self._refused.get(outcome.folder) != outcome.refused:
            self.report(outcome)
        self._refused[outcome.folder] = outcome.refused
        self._close(outcome.folder)
        self._settled[outcome.folder] = _stamp(outcome.folder)
        self._sent.pop(outcome.folder, None)
        return True

    def _close(self, folder: Path) -> None:
        push = self._open.pop(folder, None)
        if push is not None:
            push.close()


def push_of(folder: Path, target: Target | ObjectTarget, rank: int | None = None) -> RunPush | ObjectPush:
    """Return the push of a run, of all ranks or of one."""
    if isinstance(target, ObjectTarget):
        from .object_push import ObjectPush  # Needs pyarrow, which other pushers do without.

        return ObjectPush(folder, target.bucket, rank=rank)
    return RunPush(folder, target, rank=rank)


def push_once(
    source: Path, target: Target | ObjectTarget, report: Callable[[RunPushed], None], backoff: Backoff
) -> None:
    """Push everything that is in a store, or in one run's folder, now.

    Raises:
        TargetAway: The target was away for too long.
    """
    with closing(target), closing(StorePush(source, target, report, backoff)) as push:
        push.once()


def push_on(source: Path, target: Target | ObjectTarget, report: Callable[[RunPushed], None], backoff: Backoff) -> None:
    """Push a store, or one run's folder, while it grows. Ends only by an exception, such as Ctrl-C."""
    with closing(target), closing(StorePush(source, target, report, backoff)) as push:
        push.follow()


def _stamp(folder: Path) -> list[tuple[str, int, int]]:
    """Return the names, sizes and modification times of a folder's files."""
    try:
        return states_of_files(folder)
    except OSError:
        return []


def environments_token() -> str:
    """Return the token that the environment holds for a target; empty without one."""
    return os.environ.get("STEPTAPE_TOKEN", "").strip()


def target_of(address: str, token: str = "", *, wait_s: float = math.inf) -> Target | ObjectTarget:
    """Return the target of an address, whose answers are waited for at most ``wait_s`` seconds.

    Addresses are ``http(s)://HOST[:PORT]``, ``s3://BUCKET[/PREFIX]``, ``file://PATH`` and the paths of folders.

    Raises:
        TelemetryError: The address names no target.
    """
    match = _ADDRESS.match(address)
    scheme = match[1].lower() if match else "file"
    if scheme == "file":
        return FolderTarget(Path(unquote(urlsplit(address).path) if match else address).expanduser())
    if scheme in ("http", "https"):
        return HttpTarget(address, token, timeout_s=min(TIMEOUT_S, max(wait_s, LEAST_TIMEOUT_S)))
    if scheme == "s3":
        return ObjectTarget(address)
    fix = "Targets are http://, https://, s3://, file:// and folders"
    raise TelemetryError("no target has this kind of address", got=address, fix=fix)
