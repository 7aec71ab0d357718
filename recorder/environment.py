"""Describes the environment of an attempt: host, versions, command line, git commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from typing import Any, Final

from ..store.host import boot_id
from ..store.redaction import redacted_arguments

#: Packages whose version matters to a training run. Looked up only if the loop has imported them.
PACKAGES: Final = ("torch", "transformers", "lightning", "accelerate", "numpy")

_GIT_TIMEOUT_S: Final = 5.0


def describe_process() -> dict[str, Any]:
    """Return host, boot id and process id, which suffice to distinguish a live writer from a dead one."""
    return {"host": socket.gethostname(), "boot_id": boot_id(), "pid": os.getpid()}


def describe_environment() -> dict[str, Any]:
    """Return the process and environment facts that are kept with an attempt. None means not found."""
    loaded = {name: _version(name) for name in PACKAGES if name in sys.modules}
    return {
        **describe_process(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {"steptape": _version("steptape"), **loaded},
        "argv": redacted_arguments(sys.argv),
        "git": _git_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> dict[str, Any] | None:
    """Return the commit of the current folder, which may have been deleted; None without a commit."""
    status = _git_status()
    commit = status.partition("# branch.oid ")[2].partition("\n")[0]
    if not commit or commit == "(initial)":
        return None
    return {"commit": commit, "dirty": any(not line.startswith("# ") for line in status.splitlines())}


def _git_status() -> str:
    command = ("git", "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    try:
        result = subprocess.run(command, capture_output=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.decode(errors="replace")  # It may hold file names in any encoding.
