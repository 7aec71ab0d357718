"""Retention deletes runs by age and number, and never deletes live runs or foreign folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from steptape import TelemetryError, open_store
from steptape.store.errors import NotARun
from steptape.store.journal.writer import JournalWriter
from steptape.store.store import delete_run, expendable

DAY_NS = 86_400 * 1_000_000_000
EPOCH = datetime(1970, 1, 1)


@pytest.fixture
def dated(store_record: Callable[..., Path], store_steps: Any) -> Callable[[int], Path]:
    """A function that makes sealed runs that started and ended on a day after 1970."""

    def make(day: int) -> Path:
        folder = store_record(store_steps([1.0]), run_id=f"day-{day:03d}", sealed=True, steps=1)
        path = folder / "run.json"
        text = path.read_text()
        info = json.loads(text)
        info["attempts"][0]["started_ns"] = info["attempts"][0]["ended_ns"] = day * DAY_NS
        path.write_text(json.dumps(info))
        return folder

    return make


@pytest.mark.parametrize(
    ("older_than", "keep_last", "expected"),
    [
        (timedelta(days=15), None, ["day-010", "day-020"]),
        (None, 1, ["day-010", "day-020"]),
        (timedelta(days=15), 2, ["day-010"]),
        (timedelta(days=100), None, []),
        (None, 5, []),
        (None, 0, ["day-010", "day-020", "day-030"]),
    ],
)
def test_retention_lets_go_by_age_and_number(
    dated: Callable[[int], Path],
    store_path: Path,
    older_than: timedelta | None,
    keep_last: int | None,
    expected: list[str],
) -> None:
    """Both conditions must hold for a deletion."""
    for day in (30, 10, 20):
        dated(day)

    entries = open_store(store_path).entries()[0]
    chosen = expendable(entries, now=EPOCH + timedelta(days=40), older_than=older_than, keep_last=keep_last)

    assert [entry.summary.run_id for entry in chosen] == expected


def test_a_live_run_is_neither_let_go_nor_deleted(store_folder: Callable[..., Path], store_path: Path) -> None:
    """Its age does not matter."""
    folder = store_folder("live", status="running")
    writer = JournalWriter(folder, run_id="live", attempt=0, rank=0)

    chosen = expendable(open_store(store_path).entries()[0], now=datetime.now(UTC).replace(tzinfo=None))
    with pytest.raises(TelemetryError, match="a process is writing"):
        delete_run(folder)
    writer.close()

    assert chosen == []
    assert folder.exists()


def test_a_deleted_run_is_gone_with_everything_in_its_folder(dated: Callable[[int], Path], store_path: Path) -> None:
    """Its neighbours stay."""
    doomed, other = dated(1), dated(2)
    (doomed / "checkpoints").mkdir()
    (doomed / "checkpoints" / "model.pt").write_bytes(b"x")

    delete_run(doomed)

    assert [path.name for path in store_path.iterdir()] == [other.name]


def test_what_is_no_run_is_not_deleted(tmp_path: Path) -> None:
    """A folder without run.json is not steptape's to remove."""
    (tmp_path / "precious").mkdir()

    with pytest.raises(NotARun):
        delete_run(tmp_path / "precious")
    assert (tmp_path / "precious").exists()


def test_an_imported_run_that_does_not_say_when_it_was_is_never_too_old(
    dated: Callable[[int], Path], store_path: Path
) -> None:
    """Its source has no clock: the day is unknown, not 1970."""
    dated(0)
    entries, _ = open_store(store_path).entries()

    assert expendable(entries, now=EPOCH + timedelta(days=40), older_than=timedelta(days=1)) == []
