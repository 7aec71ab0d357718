"""Data that worker processes preload equals what the catalog would have read itself, or is discarded."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steptape.api.workers.reading_ahead import reading_ahead
from steptape.store.reading.catalog import Catalog, Look
from steptape.store.reading.folder_content import SETTLED_NS, settled_content
from steptape.store.run_info import Attempt, RunInfo

RUNS = 1000
NAMES = [f"run-{number:04d}" for number in range(RUNS)]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A store with enough finished runs for preloading."""
    for name in NAMES:
        write_run(tmp_path / name, name)
    return tmp_path


def write_run(folder: Path, name: str, status: str = "completed") -> None:
    """Write a run without recent changes."""
    folder.mkdir()
    attempts = (Attempt(0, status, 10**9, 2 * 10**9, steps=3),)
    (folder / "run.json").write_bytes(RunInfo(folder.name, name, attempts).to_json())
    (folder / "columns.json").write_text('{"loss": "loss"}')
    back_date(folder)


def back_date(folder: Path) -> None:
    """Make the folder look as if nothing had changed recently."""
    past = time.time_ns() - 2 * SETTLED_NS
    for path in (folder / "run.json", folder):
        os.utime(path, ns=(past, past))


def look_ahead(store: Path, meanwhile: Callable[[], object] = lambda: None) -> Look:
    """Return a scan of a store that was preloaded before ``meanwhile`` changed it."""
    with reading_ahead(store) as ahead:
        runs = ahead.runs()
    meanwhile()
    catalog = Catalog(store)
    catalog.use_preloaded(lambda: runs)
    return catalog.look()


def test_a_look_at_what_was_read_ahead_is_the_same_look(large: Path) -> None:
    """Entries and problems are the same, whatever is wrong with the runs."""
    (large / "run-0003" / "run.json").write_text("{")
    (large / "run-0004" / "columns.json").write_text("[")
    (large / "run-0005" / "journal-0-0-000000000000").write_bytes(b"no journal")
    (large / "run-0006" / "run.json").unlink()
    shutil.rmtree(large / "run-0007")
    write_run(large / "run-0007", "running to this day", status="running")
    for number in (3, 4, 5, 7):
        back_date(large / f"run-000{number}")
    itself = Catalog(large).look()

    ahead = look_ahead(large)

    assert [(e.snapshot.folder, e.snapshot.info, e.snapshot.listing, e.summary, e.stamp) for e in ahead.entries] == [
        (e.snapshot.folder, e.snapshot.info, e.snapshot.listing, e.summary, e.stamp) for e in itself.entries
    ]
    assert [e.snapshot.columns.by_metric for e in ahead.entries] == [
        e.snapshot.columns.by_metric for e in itself.entries
    ]
    assert [(path, str(error)) for path, error in ahead.problems] == [(p, str(error)) for p, error in itself.problems]
    assert (len(ahead.entries), len(ahead.problems)) == (RUNS - 4, 3)


def test_finished_runs_are_read_ahead_and_no_others(large: Path) -> None:
    """A run with a journal, or with a recent change, may change again unnoticed."""
    (large / "run-0000" / "journal-0-0-000000000000").touch()
    back_date(large / "run-0000")
    (large / "run-0001" / "run.json").touch()

    with reading_ahead(large) as ahead:
        runs = ahead.runs()

    assert sorted(runs) == NAMES[2:]
    assert runs["run-0002"].content == settled_content(large / "run-0002")


def test_what_happens_after_a_run_was_read_ahead_is_seen(large: Path) -> None:
    """After a rename, a resume, a deletion or a new run the scan shows the current store."""

    def happen() -> None:
        (large / "run-0000" / "run.json").write_bytes(
            RunInfo("run-0000", "renamed", (Attempt(0, "failed", 1),)).to_json()
        )
        (large / "run-0001" / "journal-0-0-000000000000").write_bytes(b"no journal")
        shutil.rmtree(large / "run-0002")
        write_run(large / "run-1000", "new")

    look = look_ahead(large, happen)

    names = {entry.snapshot.folder.name: entry.summary.name for entry in look.entries}
    assert names == {name: name for name in NAMES[3:]} | {"run-0000": "renamed", "run-1000": "new"}
    assert [folder.name for folder, _ in look.problems] == ["run-0001"]


def test_a_store_that_is_small_or_missing_is_not_read_ahead(tmp_path: Path) -> None:
    """The server reads its runs faster than a process starts."""
    write_run(tmp_path / "run", "run")

    found = []
    for store in (tmp_path, tmp_path / "missing"):
        with reading_ahead(store) as ahead:
            found.append(ahead.runs())

    assert found == [{}, {}]


@pytest.mark.parametrize("python", ["/bin/false", "/bin/true", "/nowhere/python"])
def test_readers_that_fail_cost_time_alone(large: Path, monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    """The runs are read as if without preloading."""
    monkeypatch.setattr(sys, "executable", python)

    assert len(look_ahead(large).entries) == RUNS


@pytest.mark.parametrize("program", ["kill -STOP $$", "echo 'Import hooks are there'"])
def test_readers_that_never_end_or_say_something_else_cost_time_alone(
    large: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """The wait for a stopped process is bounded, and output of a Python start-up file is not an answer."""
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("steptape.api.workers.reading_ahead._START_S", 0.1)
    monkeypatch.setattr("steptape.api.workers.reading_ahead._SLOW_RUN_S", 0.0)

    assert len(look_ahead(large).entries) == RUNS


def test_readers_that_nobody_waits_for_are_ended(large: Path) -> None:
    """A server that cannot start leaves no process behind."""
    with reading_ahead(large) as ahead:
        processes = [reader.process for reader in ahead._readers]

    assert processes
    assert all(process.returncode is not None for process in processes)
