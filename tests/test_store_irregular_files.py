"""A FIFO, a device or a folder in place of a run's file is reported for that run; no reader waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import call as steptape

from api_serving import recorded, served
from steptape import Recorder, TelemetryError, open_run, open_store
from steptape.store.annotations import Annotation, append_annotation, read_annotations

#: The files of a run, and whether lists of runs read them.
FILES = {
    "run.json": True,
    "columns.json": True,
    "digests.json": False,
    "annotations.jsonl": False,
    "journal-1-0-000000000000": True,
    "events-0-0-000000000000-000000000003.parquet": True,
}


def fifo(path: Path) -> None:
    """Make a FIFO that no process writes to."""
    os.mkfifo(path)


def endless(path: Path) -> None:
    """Link to a device that never ends."""
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    """Make a file of 20 GB that takes no space."""
    path.touch()
    os.truncate(path, 20 << 30)


def folder(path: Path) -> None:
    """Make a folder."""
    path.mkdir()


@pytest.fixture(params=[fifo, endless, sparse, folder])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store with a sound run, and one run for each file that is replaced.

    A Parquet file of zeros is a damaged one, which lists do not open.
    """
    make: Callable[[Path], None] = request.param
    store = tmp_path / "runs"
    for name in ["", *FILES]:
        if make is sparse and name.endswith(".parquet"):
            continue
        run = recorded(store, f"bad-{name}" if name else "sound", steps=3)
        if name:
            (run / name).unlink(missing_ok=True)
            make(run / name)
    return store


def bad_runs(store: Path) -> dict[str, bool]:
    """Return the files that are replaced in this store, and whether lists of runs read them."""
    return {name: is_read for name, is_read in FILES.items() if (store / f"bad-{name}").exists()}


def test_every_reader_names_it_and_reads_the_other_runs(store: Path) -> None:
    """Neither a list nor a check of all runs ends at it."""
    listed = steptape("runs", "--store", store)
    queried = steptape("query", "SELECT run_id, count(*) FROM steps GROUP BY run_id", "--store", store)
    checked = steptape("doctor", "--store", store)
    verified = steptape("verify", "--store", store)

    for name, is_read_by_lists in bad_runs(store).items():
        assert f"bad-{name}/{name}" in checked.stdout, checked
        assert (f"bad-{name}/{name}" in listed.stderr) == is_read_by_lists, listed
        assert (f"bad-{name}/{name}" in queried.stderr) == is_read_by_lists, queried
        if is_read_by_lists:
            with pytest.raises(TelemetryError, match=name):
                open_run(store / f"bad-{name}")
    assert "sound" in listed.stdout
    assert "sound" in queried.stdout
    assert "identical" in verified.stdout


def test_the_server_lists_it_among_the_problems_and_serves_the_other_runs(store: Path) -> None:
    """Its own pages answer with an error."""
    with served(store) as client:
        page = client.get("/api/v1/runs").json()
        sql = client.post("/api/v1/query", json={"sql": "SELECT DISTINCT run_id FROM steps"})
        statuses = {name: client.get(f"/api/v1/runs/bad-{name}").status_code for name in bad_runs(store)}

    assert {run["run_id"] for run in page["items"]} == {"sound", "bad-digests.json", "bad-annotations.jsonl"}
    assert sql.status_code == 200
    assert {name for name, status in statuses.items() if status >= 400} == {
        name for name, is_read_by_lists in bad_runs(store).items() if is_read_by_lists
    }


def test_notes_are_neither_read_from_it_nor_written_to_it(store: Path) -> None:
    """Both say what is in the way."""
    run = store / "bad-annotations.jsonl"

    with pytest.raises(TelemetryError, match=r"regular file|larger"):
        read_annotations(run)
    with pytest.raises((TelemetryError, OSError), match=r"regular file|limited|symbolic|directory"):
        append_annotation(run, Annotation("1", 1, "a note"))


def test_a_large_journal_is_read_in_time_that_is_linear_in_its_size(tmp_path: Path) -> None:
    """Bytes are not added to bytes."""
    with Recorder(tmp_path, run_id="large") as rec:
        rec.step(loss=1.0)
        name = next(rec.folder.glob("journal-*"))
        os.truncate(name, 300 << 20)

        assert len(open_run(rec.folder).table()) == 2
    assert [run.run_id for run in open_store(tmp_path)] == ["large"]


@pytest.mark.parametrize("content", [b"{", b"\xff"], ids=["half a file", "no text"])
def test_doctor_checks_the_runs_beside_one_whose_columns_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    """The file is a finding of its run."""
    for name in ("first", "second", "third"):
        recorded(tmp_path, name, steps=3)
    (tmp_path / "second" / "columns.json").write_bytes(content)

    checked = steptape("doctor", "--store", tmp_path)

    assert checked.returncode == 1, checked
    assert "second/columns.json: not a valid mapping of metrics to columns" in checked.stdout
    assert "3 runs: " in checked.stdout
