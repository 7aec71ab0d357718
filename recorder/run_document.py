"""Describes the run that a recorder writes, and keeps ``run.json``: its environment, its plan and how it ended."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..store.errors import NotARun, TelemetryError
from ..store.own_process import WriterIdentity, boot_id, host_name
from ..store.plan import Plan
from ..store.redaction import redacted, redacted_arguments, redacted_text
from ..store.run_folder import RUN_JSON, read_file
from ..store.run_info import Attempt, RunInfo, run_info_of, write_run_info
from .loop_values import as_config, as_text
from .process.termination import signals_held
from .ranks.rank import Rank

if TYPE_CHECKING:
    from ..rules.policy_file.policy import Policy

#: Packages whose version matters to a training run. Recorded only if the loop has imported them.
PACKAGES: Final = ("torch", "transformers", "lightning", "accelerate", "keras", "stable_baselines3", "numpy")

_GIT_TIMEOUT_S: Final = 5.0

#: Seconds for which git's answer is kept. Asking takes 10 ms, as much as all else at the start of a short run.
_GIT_HOLDS_S: Final = 10.0


class RunDocument:
    """``run.json`` of one run, which only the rank that decides writes.

    Args:
        folder: The run's folder.
        info: The run, with this attempt as the last.
        recording: Identity of the attempt; empty if it is unknown.
        is_written: Whether this rank writes it.
        warn: Logs that it could not be written.

    Attributes:
        folder: The run's folder; it changes when the folder is moved.
        info: What the file holds, or would hold.
        recording: Identity of the attempt; empty if it is unknown.
    """

    def __init__(
        self, folder: Path, info: RunInfo, recording: str, *, is_written: bool, warn: Callable[[str], None]
    ) -> None:
        self.folder, self.info, self.recording = folder, info, recording
        self._is_written, self._warn = is_written, warn

    def write(self) -> None:
        """Write the file.

        Raises:
            OSError: It cannot be written, or another recording has the folder.
        """
        if self._is_written:
            self.require_own_folder()
            with signals_held():
                write_run_info(self.folder, self.info)

    def require_own_folder(self) -> None:
        """Check that no other recording has taken the folder, as after it was deleted.

        Raises:
            OSError: One has: an attempt of this number is another one, or a later one has begun.
        """
        try:
            there = run_info_of(read_file(self.folder, RUN_JSON), self.folder)
        except (FileNotFoundError, NotARun):
            return
        own = self.info.last.attempt
        taken = [each for each in there.attempts if each.attempt >= own and there.recording_of(each) != self.recording]
        if self.recording and taken:
            what = f"another recording with this run id has taken {self.folder}: {there.recording_of(taken[0])!r}"
            raise FileExistsError(errno.EEXIST, f"{what}. Give one of the two another run id", str(self.folder))

    def declare(self, plan: Plan, config: Mapping[str, Any]) -> None:
        """Add a later plan and further hyper-parameters, and write the file again."""
        self._change(declared=plan)
        self.info = dataclasses.replace(self.info, config={**self.info.config, **config})
        self.write_again()

    def write_again(self) -> None:
        """Write the file while the run is recorded. A failure is warned of."""
        try:
            self.write()
        except OSError as error:
            self._warn(f"run.json could not be written to {self.folder}: {error}")

    def end(
        self, status: str, steps: int, failure: dict[str, str] | None, reason: str | None, decision_digest: str | None
    ) -> None:
        """Add the end of the attempt, and write the file."""
        self._change(
            status=status,
            ended_ns=time.time_ns(),
            steps=steps,
            failure=failure,
            reason=None if reason is None else redacted_text(reason),
            decision_digest=decision_digest,
        )
        self.write()

    def _change(self, **fields: Any) -> None:
        last = dataclasses.replace(self.info.last, **fields)
        self.info = dataclasses.replace(self.info, attempts=(*self.info.attempts[:-1], last))


def described_run(name: str | None, group: str | None, tags: Sequence[str], config: Any, attempt: Attempt) -> RunInfo:
    """Describe a run and its attempt, as the loop declares them. The run id is still empty.

    Args:
        name: The script's name when None.
        group, tags: Labels for sorting runs; a single tag may be text.
        config: Hyper-parameters, whose secrets are redacted.
        attempt: The new attempt.

    Raises:
        TelemetryError: The tags are no texts, or the config cannot be written as JSON.
    """
    return RunInfo(
        run_id="",
        name=as_text(name or Path(sys.argv[0] or "run").stem),
        attempts=(attempt,),
        group=None if group is None else as_text(group),
        tags=_declared_tags(tags),
        config=dict(declared_config(config)),
    )


def _declared_tags(tags: Any) -> tuple[str, ...]:
    """Return the labels of a run; a single one may be text.

    Raises:
        TelemetryError: They are no texts.
    """
    if isinstance(tags, str):
        return (as_text(tags),)
    try:
        return tuple(as_text(tag) for tag in tags)
    except TypeError:
        raise TelemetryError("tags must be texts", got=tags, fix="Write tags=['one', 'two']") from None


def declared_config(config: Any) -> Mapping[str, Any]:
    """Return hyper-parameters as a JSON object, their secrets redacted.

    Raises:
        TelemetryError: They cannot be written as JSON.
    """
    try:
        recorded: Mapping[str, Any] = redacted(as_config(config))
        return recorded
    except RecursionError:
        what = "config cannot be recorded: it holds itself, or is nested too deeply"
        raise TelemetryError(what, fix="Give a mapping of values") from None


def described_attempt(plan: Plan, policy: Policy | None, sync_every_s: float | None, rank: Rank) -> Attempt:
    """Describe an attempt that begins now. Its number is assigned later."""
    record = None if policy is None else policy.to_record()
    environment = _describe_environment()
    if rank.world_size > 1:
        environment["world_size"] = rank.world_size
    return Attempt(
        0, "running", time.time_ns(), plan=plan, policy=record, environment=environment, sync_every_s=sync_every_s
    )


def _describe_environment() -> dict[str, object]:
    """Return the process and environment facts that are kept with an attempt. None means not found."""
    versions: dict[str, object] = {"steptape": _own_version()}
    versions |= {name: getattr(sys.modules[name], "__version__", None) for name in PACKAGES if name in sys.modules}
    return {
        **describe_process(),
        "platform": _platform(),
        "python": sys.version.partition(" ")[0],
        "versions": versions,
        "argv": redacted_arguments(sys.argv),
        "git": _git_commit(),
    }


def describe_process() -> WriterIdentity:
    """Return host, boot id and process id, which suffice to distinguish a live writer from a dead one."""
    return {"host": host_name(), "boot_id": boot_id(), "pid": os.getpid()}


@functools.cache
def _platform() -> str:
    """Return system, release and machine, and the C library if it is glibc. ``platform.platform`` starts a process."""
    parts = [os.uname().sysname, os.uname().release, os.uname().machine]
    with suppress(OSError, ValueError):
        if libc := os.confstr("CS_GNU_LIBC_VERSION"):
            parts.append(f"with-{libc.replace(' ', '')}")
    return "-".join(parts)


@functools.cache
def _own_version() -> str | None:
    """Return steptape's version, from the name of its metadata: importing importlib.metadata takes 20 ms."""
    for folder in sys.path:
        with suppress(OSError, TypeError):
            for name in os.listdir(folder or "."):
                if name.startswith("steptape-") and name.endswith(".dist-info"):
                    return name.removeprefix("steptape-").removesuffix(".dist-info")
    return None


def _git_commit() -> dict[str, object] | None:
    """Return the commit of the current folder, which may have been deleted; None without a commit."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        return None
    if "GIT_DIR" not in os.environ and not _in_repository(folder):
        return None
    status = _git_status(folder, int(time.monotonic() / _GIT_HOLDS_S))
    commit = status.partition("# branch.oid ")[2].partition("\n")[0]
    if not commit or commit == "(initial)":
        return None
    return {"commit": commit, "dirty": any(not line.startswith("# ") for line in status.splitlines())}


def _in_repository(folder: str) -> bool:
    """Return whether git would look for a commit here; asking git starts a process."""
    return any(os.path.lexists(os.path.join(place, ".git")) for place in (folder, *map(str, Path(folder).parents)))


@functools.lru_cache(maxsize=1)
def _git_status(folder: str, period: int) -> str:  # noqa: ARG001 - the period ends the entry
    # Without optional locks, git writes nothing: a refreshed index would collide with a command of the user.
    command = ("git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.decode(errors="replace")  # It may hold file names in any encoding.
