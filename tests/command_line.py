"""Runs ``steptape`` in the process of the tests: a process of its own takes 1.2 s of imports for each command."""

from __future__ import annotations

import contextlib
import os
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from steptape.__main__ import main


def call(*arguments: object, folder: Path | None = None) -> CompletedProcess[str]:
    """Run a command, in a folder if one is named; return what it printed and its exit status.

    A test of pipes, signals, locales, memory or start-up runs ``python -m steptape`` instead.
    """
    command = ["steptape", *map(str, arguments)]
    written, told = BytesIO(), BytesIO()
    with pytest.MonkeyPatch.context() as patch, open(os.devnull, encoding="utf-8") as nothing:
        patch.setattr(sys, "argv", command)
        patch.setattr(sys, "stdin", nothing)
        patch.setattr(sys, "stdout", TextIOWrapper(written, encoding="utf-8"))
        patch.setattr(sys, "stderr", TextIOWrapper(told, encoding="utf-8", errors="backslashreplace"))
        with contextlib.chdir(folder or Path.cwd()):
            status = _status_of_main()
        sys.stdout.flush()
        sys.stderr.flush()
        return CompletedProcess(command, status, written.getvalue().decode(), told.getvalue().decode())


def _status_of_main() -> int:
    try:
        main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    return 0
