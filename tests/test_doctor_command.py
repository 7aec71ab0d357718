"""``steptape doctor`` finds each kind of damage, names it with a remedy, and leaves a healthy store alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command_line import call as steptape

from steptape import Recorder
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.reading.diagnosis import diagnose

KILLED = """
import os, sys
from steptape import Recorder
rec = Recorder(sys.argv[1])
rec.step(loss=1.0)
os.kill(os.getpid(), 9)
"""


def doctor(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return steptape("doctor", *arguments)


def codes(folder: Path) -> list[str]:
    """Return the codes of the findings."""
    return [finding.code for finding in diagnose(folder).faults]


def of_another_writer(path: Path, to: Path, first: int) -> None:
    """Write the rows of a Parquet file from one on to another file, without our header."""
    pq.write_table(pq.read_table(path).slice(first).replace_schema_metadata(), to)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A run that has ended and is sealed."""
    with Recorder(tmp_path / "runs", name="sealed") as rec:
        for step in range(1, 101):
            rec.step(loss=1.0 / step)
    rec.close(seal=True)
    return rec.folder


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run whose process was killed."""
    store = tmp_path / "killed"
    result = subprocess.run([sys.executable, "-c", KILLED, str(store)], check=False)
    assert result.returncode == -signal.SIGKILL
    (folder,) = store.iterdir()
    return folder


def test_nothing_is_wrong_with_what_a_recorder_and_a_sealer_leave(sealed: Path) -> None:
    """The exit status is 0 for the store and for the run."""
    for source in ((sealed,), ("--store", sealed.parent)):
        result = doctor(*source)

        assert (result.returncode, result.stdout) == (0, "1 run: nothing is wrong\n")


def test_nothing_is_wrong_with_a_live_run(tmp_path: Path) -> None:
    """Its journal is being written."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)

        assert codes(rec.folder) == []


def test_a_killed_run_is_told_with_how_to_go_on(killed: Path) -> None:
    """No event is lost; only the sealing is missing."""
    result = doctor("--store", killed.parent)
    seal(killed)
    after = doctor("--store", killed.parent)

    assert result.returncode == 1
    assert "[unsealed]" in result.stdout
    assert f"steptape seal {killed}" in result.stdout
    assert after.returncode == 0


def test_a_journal_that_parquet_files_hold_is_told_so(killed: Path) -> None:
    """As a sealer leaves it that is killed before it removes the journal."""
    (journal,) = killed.glob("journal-*")
    content = journal.read_bytes()
    seal(killed)
    journal.write_bytes(content)

    result = doctor(killed)
    seal(killed)

    assert "Parquet files hold all that is in it" in result.stdout
    assert not journal.exists()
    assert codes(killed) == []


def test_a_torn_journal_is_told_with_what_is_left(killed: Path) -> None:
    """After sealing, the truncated part is still reported."""
    (journal,) = killed.glob("journal-*")
    journal.write_bytes(journal.read_bytes()[:-3])

    before = codes(killed)
    seal(killed)

    assert before == ["torn-journal", "unsealed"]
    assert codes(killed) == ["torn"]


def test_a_journal_that_is_none_is_told(killed: Path) -> None:
    """The other runs are examined all the same."""
    (journal,) = killed.glob("journal-*")
    journal.write_bytes(b"something else entirely")

    assert codes(killed) == ["unreadable-journal"]


def test_a_damaged_parquet_file_is_told_with_the_events_it_held(sealed: Path) -> None:
    """Pages carry checksums, so one changed byte suffices."""
    (path,) = sealed.glob("events-*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)

    (finding, *_) = diagnose(sealed).faults

    assert finding.code == "unreadable-parquet"
    assert "events 0 to 101" in finding.what


def test_a_file_that_is_gone_is_told_with_the_events_it_held(store_folder: Callable[..., Path]) -> None:
    """Positions are gap-free, so a hole is visible."""
    folder = store_folder()
    journal = JournalWriter(folder, run_id="run-1")
    for step in range(20):
        journal.append("step_end", ("loss",), (1.0,), step=step, time_ns=0, elapsed_ns=0)
    journal.close()
    seal(folder)
    (path,) = folder.glob("events-*.parquet")
    of_another_writer(path, folder / path.name.replace("000000000000-", "000000000005-"), 5)
    path.unlink()

    findings = {finding.code: finding for finding in diagnose(folder).faults}

    assert "events 0 to 4 of attempt 0, rank 0 are missing from all files" in findings["missing"].what


def test_a_changed_value_is_told(sealed: Path) -> None:
    """A finished run's records have a digest."""
    info = json.loads((sealed / "run.json").read_text())
    info["attempts"][0]["steps"] = 7
    (sealed / "run.json").write_text(json.dumps(info))

    assert codes(sealed) == ["changed"]


def rewrite(folder: Path, column: str, values: Callable[[pa.ChunkedArray], pa.Array], **options: Any) -> None:
    """Write the events file again, sound in itself, with other values in a column."""
    (path,) = folder.glob("events-*.parquet")
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, table.schema.field(place), values(table[column])), path, **options)


def test_a_value_that_was_changed_in_a_sound_file_is_told(sealed: Path) -> None:
    """The bytes of the file differ from those at the end, so the digest of its values decides."""
    rewrite(sealed, "loss", lambda losses: pc.multiply(losses, 2.0))

    assert codes(sealed) == ["changed", "unproven"]


def test_columns_that_changed_their_names_are_told(sealed: Path) -> None:
    """The names of metrics lie beside the file with their values, and the column follows from the name."""
    path = sealed / "columns.json"
    content = path.read_text()
    path.write_text(content.replace('"loss"', '"less"', 1))
    by_one = codes(sealed)
    path.write_text(content.replace('"loss"', '"less"'))

    assert (by_one, codes(sealed)) == (["unreadable"], ["changed"])


def test_a_file_that_was_compressed_anew_is_not_proven(sealed: Path) -> None:
    """Other bytes are no damage while the values are the same; whoever did this has the digests taken anew."""
    rewrite(sealed, "loss", lambda losses: losses.combine_chunks(), compression="gzip")
    before = codes(sealed)
    (sealed / "digests.json").unlink()
    without = codes(sealed)
    seal(sealed)

    assert (before, without, codes(sealed)) == (["unproven"], ["unproven"], [])


@pytest.mark.parametrize("command", ["doctor", "verify"])
def test_a_column_of_another_type_is_told(sealed: Path, command: str) -> None:
    """The finding names the column that a foreign rewrite changed."""
    (path,) = sealed.glob("events-*.parquet")
    table = pq.read_table(path)
    place = table.schema.get_field_index("seq")
    pq.write_table(table.set_column(place, "seq", table["seq"].cast("string")), path)
    result = steptape(command, sealed)
    told = result.stdout + result.stderr

    assert result.returncode == {"doctor": 1, "verify": 2}[command]
    assert "the column 'seq' of this file has the wrong type" in told.replace("\n", " ")
    assert path.name in told
    assert "Traceback" not in told


def test_digests_that_are_none_are_told(sealed: Path) -> None:
    """They do not prevent the examination of other runs."""
    (sealed / "digests.json").write_text("{")

    assert codes(sealed) == ["changed"]


def test_a_run_without_its_run_json_is_told(sealed: Path) -> None:
    """The folder holds files of a run, so it is not a foreign folder."""
    (sealed / "run.json").unlink()

    result = doctor("--store", sealed.parent, "--json")

    assert result.returncode == 1
    assert json.loads(result.stdout)["code"] == "no-run"


def test_what_killed_writers_and_sealers_left_is_told(sealed: Path) -> None:
    """Such files are ignored and may be deleted."""
    leftover = sealed / ".run.json.123.tmp"
    leftover.write_text("{")
    os.utime(leftover, (0, 0))
    (path,) = sealed.glob("events-*.parquet")
    of_another_writer(path, sealed / path.name.replace("000000000000-", "000000000001-"), 1)

    assert codes(sealed) == ["leftover", "superseded"]


def test_two_runs_of_one_id_are_told(sealed: Path) -> None:
    """Readers show only the first."""
    shutil.copytree(sealed, sealed.with_name(f"{sealed.name}-copy"))

    result = doctor("--store", sealed.parent)

    assert result.returncode == 1
    assert "[twin]" in result.stdout


def test_events_that_could_not_be_written_are_told(store_folder: Callable[..., Path]) -> None:
    """The recorder reports them itself when writing works again."""
    folder = store_folder()
    journal = JournalWriter(folder, run_id="run-1")
    attrs = b'{"lost_events":3,"first_error":"disk full"}'
    journal.append("gap", (), (), step=4, time_ns=0, elapsed_ns=0, attrs=attrs)
    journal.close()
    seal(folder)

    (finding,) = diagnose(folder).faults

    assert (finding.code, "3 events before step 4" in finding.what) == ("gap", True)


def test_another_machine_s_journal_is_told(store_folder: Callable[..., Path]) -> None:
    """This machine cannot see whether the writer is alive."""
    folder = store_folder(status="running")
    journal = JournalWriter(folder, run_id="run-1", writer={"host": "elsewhere", "boot_id": "another", "pid": 1})
    journal.append("step_end", ("loss",), (1.0,), step=1, time_ns=0, elapsed_ns=0)
    journal.close()

    (finding,) = diagnose(folder).faults

    assert finding.code == "foreign"
    assert "--other-hosts" in finding.fix


def test_what_is_no_store_is_exit_status_2(tmp_path: Path) -> None:
    """A sentence is on stderr."""
    result = doctor(tmp_path / "nowhere")

    assert (result.returncode, result.stdout) == (2, "")
    assert "no such" in result.stderr
    assert not os.path.exists(tmp_path / "nowhere")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_run_that_may_not_be_looked_into_is_told(sealed: Path) -> None:
    """The other runs are examined."""
    shutil.copytree(sealed, sealed.with_name("closed"))
    sealed.with_name("closed").chmod(0o000)

    result = doctor("--store", sealed.parent)
    sealed.with_name("closed").chmod(0o700)

    assert result.returncode == 1
    assert "closed" in result.stdout
    assert "2 runs: 1 finding" in result.stdout
