"""Which machine this is, and whether a journal was written on it."""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any


@functools.cache
def boot_id() -> str | None:
    """What Linux calls this boot; None elsewhere."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def is_of_this_machine(writer: Mapping[str, Any]) -> bool:
    """Whether the locks of this machine tell that writer's life from its death.

    They do when it ran in this boot (whatever its container calls itself), or on this host in an earlier one. A writer
    that did not say where it ran is taken for one of ours.

    Args:
        writer: What a segment's header says of it: ``host``, ``boot_id``.
    """
    host, boot = writer.get("host"), writer.get("boot_id")
    if host is None and boot is None:
        return True
    return host == socket.gethostname() or (boot is not None and boot == boot_id())
