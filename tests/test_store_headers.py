"""A file of a run is what its name says: a copy or a renamed file is damage, and doubles no step for any reader."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import call as steptape

from steptape import Recorder, backtest, load_policy, open_run, open_store, verify
from steptape.store.errors import DamagedLog
from steptape.store.events import INTEGER_IDS, Event, SampleLosses
from steptape.store.journal.format import header_record
from steptape.store.parquet.sealing import complaints, seal
from steptape.store.reading.diagnosis import diagnose
from steptape.store.run import Run
from steptape.store.run_folder import list_files

STEPS = 100


@pytest.fixture
def run(store_record: Callable[..., Path]) -> Path:
    """A run that has ended, of one journal."""
    return store_record(EVENTS, samples=SAMPLES)


@pytest.fixture
def sealed(store_record: Callable[..., Path]) -> Path:
    """The same run, sealed."""
    return store_record(EVENTS, samples=SAMPLES, steps=STEPS, sealed=True)


EVENTS = [Event("step_end", step=step, metrics={"loss": 1 / step}) for step in range(1, STEPS + 1)]
SAMPLES = {
    index: SampleLosses(struct.pack("<2f", index, 1.0), struct.pack("<2q", index, -index), INTEGER_IDS)
    for index in range(STEPS)
}

JOURNAL = "journal-0-0-000000000000"
#: What a copy of the journal may be called: a later place, another rank, another attempt.
COPIES_OF_JOURNAL = [
    "journal-0-0-000000000050",
    "journal-0-0-000000000101",
    "journal-0-1-000000000000",
    "journal-1-0-000000000000",
]
#: What a copy of a Parquet file may be called, its table left out: another rank, another attempt, the next range, a
#: wider range.
COPIES_OF_PARQUET = [
    "0-1-000000000000-000000000099",
    "1-0-000000000000-000000000099",
    "0-0-000000000100-000000000199",
    "0-0-000000000000-000000000150",
]


def refused(folder: Path, name: str) -> None:
    """Assert that a run does not open, and that the error names the file."""
    with pytest.raises(DamagedLog, match="its name is not that of the log that it holds") as error:
        open_run(folder)
    assert error.value.where == str(folder / name)


@pytest.mark.parametrize("name", COPIES_OF_JOURNAL)
def test_a_copy_of_a_journal_is_damage(run: Path, name: str) -> None:
    """The header says which stream it is of, and from which event on."""
    shutil.copy(run / JOURNAL, run / name)

    refused(run, name)


def test_a_renamed_journal_is_damage(run: Path) -> None:
    """Its events would count from where its name says."""
    (run / JOURNAL).rename(run / "journal-0-0-000000000007")

    refused(run, "journal-0-0-000000000007")


READERS: dict[str, Callable[[Run], object]] = {
    "events": lambda run: run.events(rank=None, attempts="all"),
    "series": lambda run: run.series("loss", attempts="all"),
    "samples": lambda run: run.samples(attempts="all"),
    "table": Run.table,
    "progress": Run.progress,
    "stream": Run.stream,
    "sql": lambda run: run.sql("SELECT count(*) FROM events"),
    "digests": lambda run: run.log_digest,
    "verify": verify,
    "export": lambda run: steptape("export", run.folder).check_returncode(),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_no_reader_doubles_a_step(run: Path, reader: str, is_sealed: bool) -> None:
    """Each refuses the copy, also one that came after the run was opened."""
    if is_sealed:
        seal(run)
    opened = open_run(run)
    READERS[reader](opened)
    (path,) = run.glob("events-*" if is_sealed else "journal-*")
    shutil.copy(path, run / path.name.replace("-0-0-", "-0-1-"))

    with pytest.raises((DamagedLog, subprocess.CalledProcessError)):
        READERS[reader](opened)


def test_a_backtest_excludes_a_run_with_a_copied_file(sealed: Path) -> None:
    """The reason names the file."""
    run = open_run(sealed)
    copied(sealed, "events", COPIES_OF_PARQUET[0])

    (excluded,) = backtest(load_policy("loss_spike"), [run]).excluded

    assert f"events-{COPIES_OF_PARQUET[0]}.parquet" in excluded.reason


def test_sql_over_a_store_that_was_listed_before_doubles_no_step(sealed: Path) -> None:
    """The copy is no part of the kept summary: the scan opens the files, and names the run instead of showing it."""
    copied(sealed, "events", COPIES_OF_PARQUET[0])
    for path in (sealed / "run.json", sealed):
        os.utime(path, (0, 0))

    store = open_store(sealed.parent)
    assert store.rows("SELECT count(*) AS events FROM events") == [{"events": 0}]
    (problem,) = store.known_problems()
    assert "its name is not that of the log that it holds" in str(problem)


@pytest.mark.parametrize("name", COPIES_OF_JOURNAL)
def test_a_sealer_leaves_a_copied_journal_alone(run: Path, name: str) -> None:
    """It seals no event twice, and says why."""
    shutil.copy(run / JOURNAL, run / name)
    before = (run / name).read_bytes()

    (complaint,) = complaints(run)

    assert str(run / name) in complaint
    assert (run / name).read_bytes() == before
    assert [file.stream for file in list_files(run).table("events")] in ([], [(0, 0)])


@pytest.mark.parametrize("name", COPIES_OF_JOURNAL)
def test_doctor_names_a_copied_journal(run: Path, name: str) -> None:
    """It says what the file holds, and what to do."""
    shutil.copy(run / JOURNAL, run / name)

    (finding,) = (one for one in diagnose(run).faults if one.code == "unreadable-journal")

    assert finding.where == str(run / name)
    assert "'first_seq': 0" in finding.what
    assert "move it away" in finding.fix


@pytest.mark.parametrize("table", ["events", "samples"])
@pytest.mark.parametrize("place", COPIES_OF_PARQUET)
def test_a_copy_of_a_sealed_file_is_damage(sealed: Path, table: str, place: str) -> None:
    """The header in its metadata says what it holds."""
    copied(sealed, table, place)

    refused(sealed, f"{table}-{place}.parquet")


@pytest.mark.parametrize("place", COPIES_OF_PARQUET)
def test_doctor_names_a_copied_file(sealed: Path, place: str) -> None:
    """A copy of the samples is told like one of the events."""
    for table in ("events", "samples"):
        copied(sealed, table, place)

    found = [Path(one.where).name for one in diagnose(sealed).faults if one.code == "unreadable-parquet"]

    assert found == [f"{table}-{place}.parquet" for table in ("events", "samples")]


@pytest.mark.parametrize("place", COPIES_OF_PARQUET)
def test_a_sealer_deletes_nothing_for_a_copied_file(sealed: Path, place: str) -> None:
    """The copy of a wider range would make the true file redundant, and that of another rank the journal of it."""
    copied(sealed, "events", place)
    before = sorted(path.name for path in sealed.iterdir())

    (complaint,) = complaints(sealed)

    assert f"events-{place}.parquet" in complaint
    assert sorted(path.name for path in sealed.iterdir()) == before


def test_the_events_of_another_run_are_damage(sealed: Path, store_record: Callable[..., Path]) -> None:
    """The name is right, and the run is not."""
    other = store_record([event._replace(metrics={"loss": 9.0}) for event in EVENTS], run_id="other", sealed=True)
    (path,) = other.glob("events-*.parquet")
    shutil.copy(path, sealed / path.name)

    refused(sealed, path.name)
    assert [one.code for one in diagnose(sealed).faults] == ["unreadable-parquet"]


def test_a_journal_of_another_run_is_damage(run: Path, store_record: Callable[..., Path]) -> None:
    """The name is right, and the run is not."""
    other = store_record(EVENTS, run_id="other")
    shutil.copy(other / JOURNAL, run / JOURNAL)

    refused(run, JOURNAL)


@pytest.mark.parametrize("place", COPIES_OF_PARQUET)
def test_a_file_of_another_writer_is_known_by_its_columns(sealed: Path, place: str) -> None:
    """It need not hold the header; the true file may be rewritten so."""
    (path,) = sealed.glob("events-*.parquet")
    table = pq.read_table(path)
    mapping = {b"steptape.columns": table.schema.metadata[b"steptape.columns"]}
    pq.write_table(table.replace_schema_metadata(mapping), path)
    open_run(sealed)
    copied(sealed, "events", place)

    with pytest.raises(DamagedLog, match="its name is not that of the log that it holds"):
        open_run(sealed)


def test_a_file_that_holds_several_ranks_is_damage(sealed: Path) -> None:
    """Each file is of one attempt and rank."""
    (path,) = sealed.glob("events-*.parquet")
    table = pq.read_table(path)
    ranks = pa.array([0] * (STEPS - 1) + [1], pa.int32())
    pq.write_table(table.set_column(2, "rank", ranks).replace_schema_metadata(), path)

    with pytest.raises(DamagedLog, match="'rank': \\[0, 1\\]"):
        open_run(sealed)


def test_the_copy_of_a_folder_is_a_twin_and_counts_once(sealed: Path) -> None:
    """The store reads the first."""
    shutil.copytree(sealed, sealed.with_name("twin"))

    assert open_store(sealed.parent).rows("SELECT count(*) AS n FROM steps") == [{"n": STEPS}]
    assert "[twin]" in steptape("doctor", "--store", sealed.parent).stdout


def test_an_attempt_that_run_json_does_not_name_is_told(store_record: Callable[..., Path]) -> None:
    """Its events count as part of the run."""
    folder = store_record([Event("step_end", step=1), Event("step_end", step=2, attempt=1)])

    findings = [one for one in diagnose(folder).faults if one.code == "unnamed"]

    assert [one.what for one in findings] == ["run.json names no attempt 1, of which there is a log"]


def test_a_rank_beyond_the_world_size_is_told(tmp_path: Path) -> None:
    """The loop said how many processes it has."""
    with Recorder(tmp_path / "runs", quiet=True) as rec:
        rec.step(loss=1.0)
    (journal,) = rec.folder.glob("journal-*")
    content = journal.read_bytes()
    length, _ = struct.unpack_from("<II", content, 8)
    header = json.loads(content[17 : 16 + length]) | {"rank": 3}
    (rec.folder / "journal-0-3-000000000000").write_bytes(content[:8] + header_record(header) + content[16 + length :])

    findings = [one for one in diagnose(rec.folder).faults if one.code == "unnamed"]

    assert [one.what for one in findings] == ["attempt 0 has a world size of 1, and there is a log of rank 3"]


def copied(folder: Path, table: str, place: str) -> None:
    """Copy the file of a table under another name."""
    (path,) = folder.glob(f"{table}-0-0-000000000000-000000000099.parquet")
    shutil.copy(path, folder / f"{table}-{place}.parquet")
