"""The example of add-a-reader.md works: its reader is registered by its entry point, and its commands print that."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_S

from steptape import open_run
from steptape.importers.discovery import ForeignReader, find_sources
from steptape.importers.importing import Outcome, import_sources
from steptape.importers.source import Reader, ReadOptions

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "how-to" / "add-a-reader.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the page shows, and the metadata of its package as an installation leaves it."""
    for name, content in re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = tmp_path / f"my_readers-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the page's consoles, with the lines that it prints."""
    for console in re.findall(r"^```console\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        for part in console.removeprefix("$ ").split("\n$ "):
            command, *output = part.rstrip("\n").split("\n")
            yield command, output


def test_the_commands_of_the_page_print_what_it_says(folder: Path) -> None:
    """They run in order, in the folder of its files; ``...`` stands for any lines."""
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PYTHONPATH": str(folder), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    for command, expected in commands():
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=PATIENCE_S,
            check=False,
        )

        pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in expected)
        assert re.fullmatch(pattern, result.stdout), f"{command}\n{result.stdout}"


def reader_in(folder: Path) -> Reader:
    """Load the page's reader from its file."""
    spec = importlib.util.spec_from_file_location("my_readers", folder / "my_readers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reader = module.MyLoggerReader()
    assert isinstance(reader, Reader)
    return reader


def imported(folder: Path, *, is_growing: bool = False) -> Outcome:
    """Import the page's log with its reader, and return the outcome."""
    found = find_sources([folder / "logs"], [ForeignReader(reader_in(folder))])
    (outcome,) = import_sources(folder / "runs", found.sources, ReadOptions(is_growing=is_growing))
    return outcome


@pytest.mark.parametrize("is_growing", [True, False])
def test_the_reader_follows_a_log_that_grows(folder: Path, is_growing: bool) -> None:
    """It leaves an unfinished line for the next import, and no fact is imported twice."""
    log = folder / "logs" / "first.mylog"
    whole = log.read_text(encoding="utf-8")
    log.write_text(whole[: whole.index("5\n", -5)], encoding="utf-8")

    first = imported(folder, is_growing=is_growing)
    log.write_text(whole, encoding="utf-8")
    second = imported(folder, is_growing=is_growing)

    assert (first.state, first.events) == ("new", 3)
    assert first.problem == (None if is_growing else f"{log}:5: this line is unfinished")
    assert (second.state, second.events, second.problem) == ("grown", 1, None)
    assert open_run(folder / "runs" / first.run_id).info.config == {"lr": 0.1}


def test_the_reader_keeps_what_precedes_a_bad_line(folder: Path) -> None:
    """The problem names the line."""
    log = folder / "logs" / "first.mylog"
    log.write_text(log.read_text(encoding="utf-8") + "1750000003.0 4 train loss\n", encoding="utf-8")

    outcome = imported(folder)

    assert (outcome.state, outcome.events) == ("new", 4)
    assert str(outcome.problem).startswith(f"{log}:6: this is no line of MyLogger")
