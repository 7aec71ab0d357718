"""Identifies this machine and boot, and decides whether a journal was written on it."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def host_name() -> str:
    """This machine's name; the module ``socket`` has it too, but takes 10 ms to import."""
    return os.uname().nodename


@functools.cache
def boot_id() -> str | None:
    """Linux's id of the current boot; None on other systems."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def is_of_this_machine(writer: Mapping[str, Any]) -> bool:
    """Whether the writer ran on this machine, so that file locks show if it is alive.

    True for a writer of this boot (whatever its container's host name), or of this host in an earlier boot. A writer
    that recorded neither host nor boot counts as local.

    Args:
        writer: The ``writer`` object of a segment's header: ``host``, ``boot_id``.
    """
    host, boot = writer.get("host"), writer.get("boot_id")
    if host is None and boot is None:
        return True
    return host == host_name() or (boot is not None and boot == boot_id())
