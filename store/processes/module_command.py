"""Builds the command that runs a steptape module in its own process.

The child resolves modules as this process does. By default Python would search the working folder first, where a
training may well have its own ``queue.py`` or ``random.py``.
"""

from __future__ import annotations

import os
import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the Python command that runs this module. It imports from the current folder only if this process does."""
    return [sys.executable, *(() if _imports_from_here() else ("-P",)), "-m", module, *arguments]


def import_path() -> str:
    """Join the entries of ``sys.path``. Skip empty ones and, as Python itself does, those that are not text."""
    return os.pathsep.join(path for path in sys.path if path and isinstance(path, str))


def _imports_from_here() -> bool:
    try:
        return not {"", os.getcwd()}.isdisjoint(sys.path)
    except FileNotFoundError:  # The folder was deleted and holds no modules.
        return False
