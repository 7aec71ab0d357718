"""A listing of a run's folder selects the valid files, and files are replaced atomically."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from steptape.store.errors import NotARun
from steptape.store.run_folder import RUN_ID, list_files, new_run_id, replace_file, sealed_name


def listing_of(folder: Path, *names: str) -> tuple[list[str], list[str], list[str]]:
    """Return the valid files, the superseded files and the journals of a folder with these files."""
    for name in names:
        (folder / name).touch()
    listing = list_files(folder)
    return (
        [file.path.name for file in listing.sealed],
        [file.path.name for file in listing.superseded],
        [journal.path.name for journal in listing.journals],
    )


def test_a_file_whose_range_another_one_holds_does_not_count(tmp_path: Path) -> None:
    """A merge killed before it removed its inputs leaves such files; each table is judged separately."""
    merged, first, second = (sealed_name("events", 0, 0, *ends) for ends in ((0, 19), (0, 9), (10, 19)))
    samples, after = sealed_name("samples", 0, 0, 0, 9), sealed_name("events", 0, 0, 20, 29)

    assert listing_of(tmp_path, merged, first, second, samples, after) == (
        [merged, after, samples],
        [first, second],
        [],
    )


def test_other_streams_do_not_supersede_each_other(tmp_path: Path) -> None:
    """The same range of another attempt or rank is another range."""
    streams = ((0, 0, 9), (0, 1, 99), (1, 0, 999))
    names = [sealed_name("events", attempt, rank, 0, last) for attempt, rank, last in streams]

    assert listing_of(tmp_path, *names) == (names, [], [])


def test_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Rank 10 comes after rank 2, unlike in the order of names."""
    journals = [f"journal-0-{rank}-000000000000" for rank in (0, 2, 10)]

    assert listing_of(tmp_path, *reversed(journals))[2] == journals


def test_files_of_other_names_do_not_count(tmp_path: Path) -> None:
    """Such files are half-written, torn, or foreign."""
    names = (".events-0-0-0-1.parquet.tmp", "torn-journal-0-0-0", "journal-0-0", "events.parquet", "journal-0-0-0.bak")

    assert listing_of(tmp_path, *names) == ([], [], [])


@pytest.mark.parametrize(("table", "sealed_until"), [("events", 10), ("samples", 20)])
def test_samples_that_were_sealed_before_their_events_are_not_read_twice(
    tmp_path: Path, table: str, sealed_until: int
) -> None:
    """A sealer was killed between the two tables of a segment."""
    for name in (sealed_name("events", 0, 0, 0, 9), sealed_name("samples", 0, 0, 10, 19)):
        (tmp_path / name).touch()

    assert list_files(tmp_path).sealed_until(table, (0, 0)) == sealed_until


def test_a_fresh_run_id_is_a_run_id_that_sorts_by_time() -> None:
    """The id is UTC and six random digits."""
    first, second = new_run_id(), new_run_id()

    assert re.fullmatch(r"\d{8}T\d{6}-[0-9a-f]{6}", first)
    assert RUN_ID.fullmatch(first)
    assert first != second


def test_a_file_is_replaced_at_once_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    """This holds even if the new content could not be put in place."""
    path = tmp_path / "run.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        replace_file(tmp_path / "folder", b"no file can have this name")

    assert path.read_bytes() == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "run.json"]


def test_a_folder_that_is_not_there_is_no_run(tmp_path: Path) -> None:
    """The error shows how to find the existing runs."""
    with pytest.raises(NotARun, match="no such run folder"):
        list_files(tmp_path / "missing")


def test_threads_that_replace_one_file_leave_it_whole(tmp_path: Path) -> None:
    """Each writes aside under a name of its own; no reader ever sees two contents mixed."""
    path, seen = tmp_path / "run.json", set[bytes]()
    contents = [bytes([number]) * (1 + 40_000 * number) for number in range(1, 9)]
    replace_file(path, contents[0])
    barrier = threading.Barrier(len(contents))

    def replace(content: bytes) -> None:
        barrier.wait()
        for _ in range(20):
            replace_file(path, content, is_durable=False)
            seen.add(path.read_bytes())

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(replace, contents))

    assert seen <= set(contents)
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
