"""The command that runs one of our modules in a process of its own: a module's name flows in, arguments flow out.

Such a process finds the modules that this one finds. Python alone would have it look first in the folder that it is
started in, where a training may well have a ``queue.py`` or a ``random.py`` of its own.
"""

from __future__ import annotations

import os
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Python with this module as its program, which looks for modules in the current folder only if we do."""
    return [sys.executable, *(() if _imports_from_here() else ("-P",)), "-m", module, *arguments]


def _imports_from_here() -> bool:
    try:
        return not {"", os.getcwd()}.isdisjoint(sys.path)
    except FileNotFoundError:  # The folder has been deleted, and nothing can be found there.
        return False
