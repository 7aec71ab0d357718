"""The catalog reads settled runs once and notices every change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptape import open_store
from steptape.store.reading.catalog import Catalog
from steptape.store.reading.summary import SETTLED_NS


@pytest.fixture
def settled(store_record: Callable[..., Path], store_steps: Any) -> Path:
    """A sealed run whose folder has not changed for a while."""
    folder = store_record(store_steps([1.0, 2.0]), sealed=True, steps=2)
    back_date(folder)
    return folder


def back_date(folder: Path) -> None:
    """Make the folder look as if nothing had changed recently."""
    past = time.time_ns() - 2 * SETTLED_NS
    for path in (folder / "run.json", folder):
        os.utime(path, ns=(past, past))


def test_a_settled_run_is_read_once(settled: Path) -> None:
    """The second scan returns the same entry object."""
    catalog = Catalog(settled.parent)

    assert catalog.entry(settled) is catalog.entry(settled)


def test_a_run_that_changed_is_read_again(settled: Path) -> None:
    """A new file, or another ``run.json``, is noticed at once."""
    catalog = Catalog(settled.parent)
    before = catalog.entry(settled)
    path = settled / "run.json"
    path.write_text(path.read_text().replace('"name": "run-1"', '"name": "renamed"'))

    after = catalog.entry(settled)

    assert (before.summary.name, after.summary.name) == ("run-1", "renamed")


def test_a_run_with_a_journal_is_looked_at_every_time(store_record: Callable[..., Path], store_steps: Any) -> None:
    """A journal grows without a change of its folder."""
    folder = store_record(store_steps([1.0]), status="running")
    back_date(folder)
    catalog = Catalog(folder.parent)

    assert catalog.entry(folder) is not catalog.entry(folder)


def looping(folder: Path) -> None:
    """Make ``run.json`` a link to itself."""
    (folder / "run.json").unlink()
    (folder / "run.json").symlink_to("run.json")


def closed(folder: Path) -> None:
    """Make the folder inaccessible."""
    folder.chmod(0o000)


@pytest.mark.parametrize(
    "change",
    [
        looping,
        pytest.param(closed, marks=pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")),
    ],
)
def test_a_run_that_may_not_be_looked_at_is_told_of(settled: Path, change: Callable[[Path], None]) -> None:
    """It is not skipped as if it did not exist."""
    change(settled)

    entries, problems = open_store(settled.parent).entries()

    assert not entries
    assert [(problem.where or "").startswith(str(settled)) for problem in problems] == [True]
    assert "cannot be read" in str(problems[0])
    settled.chmod(0o700)


def test_a_run_whose_files_are_as_old_as_time_is_a_run(settled: Path) -> None:
    """Bit-reproducible archives have files of 1970."""
    for path in (settled / "run.json", settled):
        os.utime(path, ns=(0, 0))

    assert open_store(settled.parent).runs().num_rows == 1


def test_a_run_that_is_deleted_is_gone_from_the_store(settled: Path) -> None:
    """Nothing of it is remembered."""
    store = open_store(settled.parent)
    listed = store.runs().num_rows
    for path in settled.iterdir():
        path.unlink()
    settled.rmdir()

    assert (listed, store.runs().num_rows) == (1, 0)
