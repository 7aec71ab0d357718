"""Each script in ``examples/scripts`` runs as it is, in an empty folder, and leaves a run that ended well."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from steptape import open_store

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "examples" / "scripts").glob("*.py"))


def packages(script: Path) -> list[str]:
    """Return the packages that a script imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
    return sorted(found)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs_and_its_runs_end_well(script: Path, tmp_path: Path) -> None:
    """It reaches no network. It is no longer than its page promises."""
    for package in packages(script):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{script.name} needs {package}, which is not installed")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(script)]

    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 0, done.stderr
    runs = list(open_store(tmp_path / "runs"))
    assert runs
    assert {run.status for run in runs} <= {"completed", "stopped"}
    assert all(run.info.last.steps for run in runs)
    longest = 82 if script.stem == "nanogpt" else 45  # nanoGPT's loop is shown whole, torchrun's part too.
    assert len(script.read_text(encoding="utf-8").splitlines()) <= longest
