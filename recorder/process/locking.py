"""Makes recorder locks that are free in a forked child, even if another thread held them at the fork."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def forkable_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child. The thread that held it does not exist there."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_inherited_locks() -> None:
    for lock in list(_locks):
        # threading resets its own locks with this method. The type stubs do not declare it.
        getattr(lock, "_at_fork_reinit")()  # noqa: B009


os.register_at_fork(after_in_child=_free_inherited_locks)
