"""Describes the environment of an attempt: host, versions, command line, git commit."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ..store.own_process import boot_id, host_name
from ..store.run_info import redacted_arguments

#: Packages whose version matters to a training run. Recorded only if the loop has imported them.
PACKAGES: Final = ("torch", "transformers", "lightning", "accelerate", "numpy")

_GIT_TIMEOUT_S: Final = 5.0

#: Seconds for which git's answer is kept. Asking takes 10 ms, as much as all else at the start of a short run.
_GIT_HOLDS_S: Final = 10.0


def describe_process() -> dict[str, Any]:
    """Return host, boot id and process id, which suffice to distinguish a live writer from a dead one."""
    return {"host": host_name(), "boot_id": boot_id(), "pid": os.getpid()}


def describe_environment() -> dict[str, Any]:
    """Return the process and environment facts that are kept with an attempt. None means not found."""
    loaded = {name: getattr(sys.modules[name], "__version__", None) for name in PACKAGES if name in sys.modules}
    return {
        **describe_process(),
        "platform": _platform(),
        "python": sys.version.partition(" ")[0],
        "versions": {"steptape": _own_version(), **loaded},
        "argv": redacted_arguments(sys.argv),
        "git": _git_commit(),
    }


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


def _git_commit() -> dict[str, Any] | None:
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
