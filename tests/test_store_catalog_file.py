"""The catalog in the user's cache is derived: checked by stamps, written again when damaged, and never required."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from api_serving import served
from steptape import open_store
from steptape.store.annotations import Annotation, append_annotation
from steptape.store.reading.catalog import KEPT_FROM, Catalog, Look
from steptape.store.reading.summary import SETTLED_NS
from steptape.store.run_info import Attempt, RunInfo

NAMES = [f"run-{number:04d}" for number in range(KEPT_FROM)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("STEPTAPE_CACHE", str(folder))
    return folder


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A store with enough runs for a catalog, half of them without a clock."""
    store = tmp_path / "store"
    store.mkdir()
    for number, name in enumerate(NAMES):
        write_run(store / name, name, started_ns=number % 2 * (number + 1) * 10**9)
    return store


def write_run(folder: Path, name: str, *, status: str = "completed", started_ns: int = 10**9) -> None:
    """Write a run without recent changes."""
    folder.mkdir()
    attempts = (Attempt(0, status, started_ns, started_ns + 10**9, steps=3),)
    info = RunInfo(folder.name, name, attempts, group="g", tags=("a", "b"), config={"lr": 0.1})
    (folder / "run.json").write_bytes(info.to_json())
    (folder / "columns.json").write_text('{"loss": "loss"}')
    back_date(folder)


def back_date(folder: Path) -> None:
    """Make the folder look as if nothing had changed recently."""
    past = time.time_ns() - 2 * SETTLED_NS
    for path in (folder / "run.json", folder):
        os.utime(path, ns=(past, past))


def content(look: Look) -> list[tuple[object, ...]]:
    """Return everything that a scan says of its runs and problems."""
    runs = [(e.folder, e.stamp, e.summary, e.listing, e.columns.by_metric, e.snapshot.info) for e in look.entries]
    return [*runs, *((folder, str(problem)) for folder, problem in look.problems)]


def kept_files(cache: Path) -> list[Path]:
    """Return the catalogs in a cache."""
    return list((cache / "catalogs").iterdir())


def test_a_scan_from_the_kept_catalog_is_the_same_scan(large: Path, cache: Path) -> None:
    """Entries and problems are the same, whatever is wrong with the runs."""
    (large / "run-0003" / "run.json").write_text("{")
    (large / "run-0004" / "columns.json").write_text("[")
    (large / "run-0005" / "journal-0-0-000000000000").write_bytes(b"no journal")
    (large / "run-0006" / "run.json").unlink()
    shutil.rmtree(large / "run-0007")
    write_run(large / "run-0007", "running to this day", status="running")
    for number in (3, 4, 5, 7):
        back_date(large / f"run-000{number}")
    first = content(Catalog(large).look())
    (file,) = kept_files(cache)

    again = content(Catalog(large).look())

    assert again == first
    assert len(first) == KEPT_FROM - 1
    assert file.stat().st_size < 100 * KEPT_FROM


def test_every_change_since_the_catalog_was_kept_is_seen(large: Path) -> None:
    """After an edit, a resume, a deletion or a new run the scan shows the current store."""
    Catalog(large).look()
    info = RunInfo("run-0000", "renamed", (Attempt(0, "failed", 1),))
    (large / "run-0000" / "run.json").write_bytes(info.to_json())
    (large / "run-0001" / "journal-0-0-000000000000").write_bytes(b"no journal")
    shutil.rmtree(large / "run-0002")
    write_run(large / "run-1000", "new")

    look = Catalog(large).look()

    names = {entry.name: entry.summary.name for entry in look.entries}
    assert names == {name: name for name in NAMES[3:]} | {"run-0000": "renamed", "run-1000": "new"}
    assert [folder.name for folder, _ in look.problems] == ["run-0001"]


@pytest.mark.parametrize("scan", [Catalog.look, Catalog.recent, Catalog.known])
def test_what_people_have_said_since_the_catalog_was_kept_is_seen(large: Path, scan: Callable[[Catalog], Look]) -> None:
    """Also by a scan that compares no other stamps: an append changes no folder."""
    Catalog(large).look()
    append_annotation(large / "run-0500", Annotation("a", 1, "", name="best", archived=True))

    look = scan(Catalog(large))

    assert (look.by_id["run-0500"].summary.name, look.archived) == ("best", 1)


def test_a_page_from_the_kept_catalog_leaves_out_what_was_archived_since(large: Path) -> None:
    """And has a run that is listed again."""
    append_annotation(large / "run-0997", Annotation("a", 1, "", archived=True))
    back_date(large / "run-0997")
    Catalog(large).look()
    append_annotation(large / "run-0999", Annotation("a", 1, "", archived=True))
    append_annotation(large / "run-0997", Annotation("b", 2, "", archived=False))

    found = Catalog(large).newest(2)

    assert [entry.name for entry in found.entries] == ["run-0995", "run-0997"]
    assert (found.total, found.archived) == (KEPT_FROM - 1, 1)


def test_a_server_of_a_large_store_lists_what_it_has_just_changed(large: Path) -> None:
    """Its scans may be some seconds old, but not older than a change through the server."""
    with served(large) as client:
        client.get("/api/v1/runs")
        client.patch("/api/v1/runs/run-0999", json={"name": "best"})
        (item,) = client.get("/api/v1/runs", params={"limit": 1}).json()["items"]

    assert item["name"] == "best"


@pytest.mark.parametrize("count", [1, 7, 5 * KEPT_FROM])
@pytest.mark.parametrize("page", [1, 3])
def test_a_page_from_the_kept_catalog_equals_that_part_of_a_scan(large: Path, count: int, page: int) -> None:
    """Renamed, deleted and new runs included, in the order of a scan."""
    Catalog(large).look()
    for number in (999, 997, 3):
        shutil.rmtree(large / f"run-0{number:03d}")
    write_run(large / "run-1001", "newest", started_ns=10**15)
    write_run(large / "run-1002", "without a clock", started_ns=0)
    (large / "run-0995" / "run.json").write_text(
        (large / "run-0995" / "run.json").read_text().replace('"name": "run-0995"', '"name": "renamed"')
    )
    expected = list(Catalog(large).look().entries)
    end = max(0, len(expected) - count * (page - 1))

    found = Catalog(large).newest(count, page)

    shown = [entry.summary for entry in found.entries]
    assert shown == [entry.summary for entry in expected[max(0, end - count) : end]]
    assert (found.total, found.problems) == (len(expected), [])


def test_a_page_names_a_twin_as_a_scan_does(large: Path) -> None:
    """Two folders with one run id are one run and one problem."""
    Catalog(large).look()
    shutil.copytree(large / "run-0005", large / "a-copy")

    found = Catalog(large).newest(10)

    assert found.total == KEPT_FROM
    assert [problem.where for problem in found.problems] == [str(large / "run-0005")]


@pytest.mark.parametrize("at", [0, 0.3, 0.6, 0.9, 0.999])
def test_a_damaged_catalog_is_written_again(large: Path, cache: Path, at: float) -> None:
    """A changed byte, wherever it is, costs time alone."""
    first = content(Catalog(large).look())
    (file,) = kept_files(cache)
    damaged = bytearray(file.read_bytes())
    damaged[int(at * len(damaged))] ^= 0x55
    file.write_bytes(damaged)

    again = content(Catalog(large).look())

    assert again == first
    assert file.read_bytes() != bytes(damaged)


@pytest.mark.parametrize("found", [b"", b"PAR1", b"something else"])
def test_a_file_that_is_no_catalog_is_replaced(large: Path, cache: Path, found: bytes) -> None:
    """A process that died while it wrote leaves nothing that hinders the next."""
    Catalog(large).look()
    (file,) = kept_files(cache)
    file.write_bytes(found)

    look = Catalog(large).look()

    assert len(look.entries) == KEPT_FROM
    assert file.stat().st_size > 1000


def test_without_a_cache_folder_the_store_is_read_as_ever(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written is not an error."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(large / "run-0000" / "run.json"))

    assert len(open_store(large).entries()[0]) == KEPT_FROM


def test_a_small_store_keeps_no_catalog(large: Path, cache: Path) -> None:
    """Its runs are read faster than a file of them."""
    shutil.rmtree(large / "run-0000")

    Catalog(large).look()

    assert not (cache / "catalogs").exists()


def test_processes_share_one_catalog(large: Path, cache: Path) -> None:
    """Several write it at once, and each reads the whole store."""
    program = "import sys, steptape; print(len(list(steptape.open_store(sys.argv[1]))))"
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(large)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]

    printed = [process.communicate()[0] for process in processes]

    assert printed == [f"{KEPT_FROM}\n"] * 3
    assert len(kept_files(cache)) == 1


def test_a_run_that_the_catalog_cannot_hold_is_read_each_time(large: Path) -> None:
    """Half a surrogate pair in a name, or a number beyond 64 bits, keeps no other run out of the catalog."""
    for name, facts in {"run-0001": {"name": "\ud800"}, "run-0002": {"group": "\udfff"}}.items():
        path = large / name / "run.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | facts))
        back_date(large / name)
    path = large / "run-0003" / "run.json"
    document = json.loads(path.read_bytes())
    document["attempts"][0]["steps"] = 10**30
    path.write_text(json.dumps(document))
    back_date(large / "run-0003")
    first = content(Catalog(large).look())

    assert content(Catalog(large).look()) == first


def test_a_scan_of_an_unchanged_store_is_the_same_object(large: Path) -> None:
    """Orders and indices that were made for it stay."""
    catalog = Catalog(large)
    before = catalog.look()
    same = catalog.look()
    (large / "run-0000" / "run.json").touch()

    assert same is before
    assert catalog.look() is not before
