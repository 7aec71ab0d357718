"""The wheel works as installed: in its own environment, in another folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: The third-party modules that recording with rules imports.
RECORDING = ("yaml", "simpleeval.py")

RECORD = """
import logging, sys
logging.basicConfig(format="%(message)s")
from steptape import Recorder
with Recorder("runs", name="bare", rules="policy.yaml", quiet=True) as rec:
    for step in range(1, 101):
        if rec.step(loss=1.0 / step, samples=[1.0, 2.0], sample_ids=[step, 0]).should_stop:
            break
print(step, sorted({"numpy", "pyarrow", "duckdb", "torch"} & set(sys.modules)))
"""

POLICY = """
controllers:
  - name: low
    triggers: [on_step_end]
    rule: mean(loss, 3) < 0.05
    operations: [hfcontrols.should_training_stop]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy, because a build writes into its source folder."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "docs" / "reference", source / "docs" / "reference")
    for path in ROOT.glob("*/__init__.py"):
        shutil.copytree(path.parent, source / path.parent.name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, str(source)], cwd=source, check=True, capture_output=True)
    (found,) = source.glob("*.whl")
    return found


def environment(folder: Path, wheel: Path) -> Path:
    """Make a new environment that holds only the wheel, and return its Python."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    assert Path(packages, "steptape", "store", "journal", "writer.py").is_file()
    return python


def run(python: Path, arguments: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder with only these environment variables."""
    clean: Mapping[str, str] = {"PATH": os.environ["PATH"], "HOME": str(folder), **more}
    return subprocess.run([python, *arguments], cwd=folder, env=clean, capture_output=True, text=True, check=False)


def test_the_wheel_holds_every_package_and_its_data(wheel: Path) -> None:
    """It holds all modules, templates, scripts, the plotter, shipped policies and references, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    rooms = [path.parent for path in ROOT.glob("*/__init__.py") if path.parent.name != "steptape"]
    expected = {f"steptape/{path.name}" for path in (ROOT / "steptape").iterdir() if path.is_file()}
    expected |= {f"steptape/reference/{path.name}" for path in (ROOT / "docs" / "reference").glob("*.*")}
    for room in rooms:
        for path in room.rglob("*"):
            # Scripts that users copy are no part of the package.
            if path.is_file() and not {"__pycache__", "scripts"}.intersection(path.parts):
                expected.add(f"steptape/{path.relative_to(ROOT).as_posix()}")

    assert names == expected


def test_the_installed_wheel_runs_the_readme_s_first_example(wheel: Path, tmp_path: Path) -> None:
    """It runs in another folder, from the front door, with the dependencies of this environment."""
    python = environment(tmp_path / "environment", wheel)
    dependencies = {"PYTHONPATH": sysconfig.get_path("purelib")}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    here = tmp_path / "here"
    here.mkdir()

    version = run(python, ["-m", "steptape", "--version"], here, **dependencies)
    script = "import steptape; from steptape import Recorder; print(steptape.__file__)"
    front = run(python, ["-c", script], here, **dependencies)
    example = run(python, ["-c", blocks[0]], here, **dependencies)

    assert version.stdout.startswith("steptape "), version.stderr
    assert front.stdout.startswith(str(tmp_path / "environment")), front.stderr
    assert example.returncode == 0, example.stderr


def test_a_node_that_only_records_needs_two_small_packages(wheel: Path, tmp_path: Path) -> None:
    """It records with rules and logs one line: sealing needs a full installation."""
    python = environment(tmp_path / "environment", wheel)
    packages = Path(sysconfig.get_path("purelib"))
    links = tmp_path / "packages"
    links.mkdir()
    for name in RECORDING:
        (links / name).symlink_to(packages / name)
    (tmp_path / "policy.yaml").write_text(POLICY)

    recorded = run(python, ["-c", RECORD], tmp_path, PYTHONPATH=str(links))
    command = run(python, ["-m", "steptape", "--version"], tmp_path, PYTHONPATH=str(links))
    sealed = subprocess.run(
        [sys.executable, "-m", "steptape", "seal", "--store", "runs"], cwd=tmp_path, capture_output=True, text=True
    )
    verified = subprocess.run(
        [sys.executable, "-m", "steptape", "verify", "--store", "runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert recorded.stdout == "22 []\n", recorded.stderr
    (line,) = recorded.stderr.splitlines()
    assert "pyarrow is not installed" in line
    assert "steptape seal" in line
    assert command.stderr == "error: the command line needs typer: 'pip install steptape' brings it\n"
    assert "events sealed" in sealed.stdout
    assert "identical, 1 outcome" in verified.stdout
