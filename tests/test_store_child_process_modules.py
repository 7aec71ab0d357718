"""Our processes run our modules, whatever the folder that they are started in holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptape.store.child_process import module_command

RECORDED = """
from pathlib import Path
from steptape import Recorder

with Recorder("runs", name="beside a queue.py") as rec:
    rec.step(loss=1.0)
rec.close(seal=True)
print(*sorted(path.name for path in rec.folder.glob("*-*")))
"""


def test_a_modules_process_looks_in_the_current_folder_only_where_its_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interactive Python looks there, and so does one started with ``-m``."""
    (tmp_path / "own.py").write_text("print('found')")
    monkeypatch.chdir(tmp_path)
    elsewhere = [path for path in sys.path if path not in ("", os.getcwd())]
    statuses = []
    for path in (elsewhere, ["", *elsewhere], [str(tmp_path), *elsewhere]):
        monkeypatch.setattr(sys, "path", path)
        statuses.append(subprocess.run(module_command("own"), capture_output=True, check=False).returncode)

    assert statuses == [1, 0, 0]


def test_a_folder_that_is_gone_holds_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can still be started there."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    assert module_command("steptape.store.parquet.sealing", "a")[1:] == [
        "-P",
        "-m",
        "steptape.store.parquet.sealing",
        "a",
    ]


def test_a_training_beside_modules_that_are_called_like_pythons_own_is_sealed(tmp_path: Path) -> None:
    """The program is in another folder than the current one, and so never sees them."""
    program = tmp_path / "program" / "train.py"
    program.parent.mkdir()
    program.write_text(RECORDED)
    for module in ("contextlib", "queue", "random", "numpy"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('another module of this name')")
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["events-0-0-000000000000-000000000002.parquet"]
    assert done.stderr == ""
