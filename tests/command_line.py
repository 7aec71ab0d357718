"""Runs ``steptape`` in the process of the tests: a process of its own takes 1.2 s of imports for each command."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from steptape.__main__ import main


def call(*arguments: object, folder: Path | None = None, given: str = "") -> CompletedProcess[str]:
    """Run a command, in a folder if one is named, with a text on stdin; return what it printed and its exit status.

    A test of pipes, signals, locales, memory or start-up runs ``python -m steptape`` instead.
    """
    command = ["steptape", *map(str, arguments)]
    written, told = BytesIO(), BytesIO()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile("w+", encoding="utf-8") as stdin:
        stdin.write(given)
        stdin.seek(0)
        patch.setattr(sys, "argv", command)
        patch.setattr(sys, "stdin", stdin)
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
