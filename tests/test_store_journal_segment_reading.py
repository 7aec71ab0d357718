"""The journal's reader returns a prefix of what was written, or refuses, for any damage to its bytes."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import TelemetryError, open_run, open_store
from steptape.store.errors import DamagedLog, UnsupportedVersion
from steptape.store.events import INTEGER_IDS, TEXT_IDS, Event, SampleLosses
from steptape.store.journal.format import (
    FRAME,
    LAYOUT,
    MAGIC,
    PREAMBLE,
    TAG_EVENT,
    TAG_HEADER,
    VERSION,
    framed,
    header_record,
)
from steptape.store.journal.segment_reading import is_being_written, read_segment, runs_of_frames
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import complaints

EVENTS = [
    Event("train_begin", attrs={"note": "größer als 2**53", "n": 2**60}),
    Event("step_end", step=1, epoch=0.25, time_ns=7, elapsed_ns=3, metrics={"loss": 2.5, "lr": 1e-3}),
    Event("step_end", step=2, epoch=0.5, micro_step=3, value_lag=2, metrics={"loss": float("nan"), "lr": 1e-3}),
    Event("log", step=2, metrics={"train/Loss": -0.0}),
    Event("evaluate", step=2, metrics={"eval_loss": float("inf")}, attrs={"split": "test"}),
    Event("step_end", step=3, metrics={"loss": 1.0, "lr": 5e-324}),
    Event("train_end", step=3),
]
SAMPLES = {
    1: SampleLosses(struct.pack("<3f", 1, 2, 3), struct.pack("<3q", 7, -8, 2**60), INTEGER_IDS),
    2: SampleLosses(struct.pack("<2f", 1, 2), '["a","ü"]'.encode(), TEXT_IDS, struct.pack("<2i", 5, 6)),
    5: SampleLosses(struct.pack("<1f", 9)),
}


@pytest.fixture
def small_run(store_record: Callable[..., Path]) -> Path:
    """A run folder whose one journal has attrs, samples of every kind and several layouts."""
    return store_record(EVENTS, samples=SAMPLES, status="running")


def journal_of(folder: Path) -> Path:
    """Return the one journal of a run."""
    (journal,) = folder.glob("journal-*")
    return journal


def contents(path: Path) -> list[Any]:
    """Return the content of a segment, samples included, as text, so that NaN equals NaN."""
    return [(repr(record.event), record.samples) for record in read_segment(path).records]


def test_what_was_appended_is_read_back(small_run: Path, store_facts: Callable[..., Any]) -> None:
    """Envelope, metrics, attrs and samples are equal."""
    records = read_segment(journal_of(small_run)).records

    assert store_facts(record.event for record in records) == store_facts(
        event._replace(seq=seq) for seq, event in enumerate(EVENTS)
    )
    assert {seq: record.samples for seq, record in enumerate(records) if record.samples} == SAMPLES


def test_a_journal_cut_at_any_byte_reads_back_a_prefix_of_what_was_written(small_run: Path) -> None:
    """It is cut at every byte and read by segment and by store; no whole record is lost."""
    journal = journal_of(small_run)
    whole, written = journal.read_bytes(), contents(journal)
    run = open_run(small_run)
    survivors = []
    for size in range(len(whole) + 1):
        journal.write_bytes(whole[:size])
        read = contents(journal)
        stored = [repr(event) for event in run.events()]
        samples = run.snapshot().samples_table()["seq"].to_pylist()
        assert read == written[: len(read)]
        assert stored == [event for event, _ in read]
        assert samples == [seq for seq in SAMPLES if seq < len(read) for _ in range(len(SAMPLES[seq]))]
        survivors.append(len(read))

    assert survivors == sorted(survivors)
    assert set(survivors) == set(range(len(EVENTS) + 1))


def test_bytes_that_are_no_whole_record_are_counted(small_run: Path) -> None:
    """They are the unfinished write of a killed writer."""
    journal = journal_of(small_run)
    journal.write_bytes(journal.read_bytes()[:-1])

    assert read_segment(journal).torn_bytes > 0


def test_a_flipped_bit_never_yields_a_wrong_event(small_run: Path) -> None:
    """Every bit of the file is tried: the result is a shorter prefix or an error of ours."""
    journal = journal_of(small_run)
    whole, written = journal.read_bytes(), contents(journal)
    refused = 0
    for position in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            journal.write_bytes(damaged)
            try:
                read = contents(journal)
            except TelemetryError:
                refused += 1
                continue
            assert len(read) < len(written)
            assert read == written[: len(read)]

    assert refused == 8 * PREAMBLE.size


@examples(200)
@given(data=st.data())
def test_damage_anywhere_never_yields_a_wrong_event(small_run: Path, data: st.DataObject) -> None:
    """Some bytes are overwritten, some removed, some inserted."""
    pristine = small_run / "pristine"
    if not pristine.exists():
        pristine.write_bytes(journal_of(small_run).read_bytes())
    whole, written = pristine.read_bytes(), contents(pristine)
    start = data.draw(st.integers(PREAMBLE.size, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    damaged = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    journal_of(small_run).write_bytes(damaged)

    try:
        read = contents(journal_of(small_run))
    except (
        DamagedLog
    ):  # A header or layout was removed as a whole: without it no reader can tell what the events of the segment hold.
        assert any(record not in damaged for record in records_that_events_need(whole))
    else:
        assert read == written[: len(read)]


def records_that_events_need(segment: bytes) -> list[bytes]:
    """Return the header and the layouts of a segment, frames included."""
    runs = runs_of_frames(segment)
    starts = [
        (start + index * (FRAME.size + length), length) for start, length, count in runs for index in range(count)
    ]
    return [segment[at - FRAME.size : at + length] for at, length in starts if segment[at] != TAG_EVENT]


def test_a_header_or_layout_that_was_cut_out_whole_is_damage_that_is_told(small_run: Path) -> None:
    """All checksums are right, and the events that need the record cannot be read."""
    journal = journal_of(small_run)
    whole = journal.read_bytes()
    needed = records_that_events_need(whole)
    assert len(needed) > 2
    for record in needed:
        journal.write_bytes(whole.replace(record, b""))
        with pytest.raises(DamagedLog, match="cannot be read"):
            contents(journal)


@pytest.mark.parametrize("zeros", [1, 7, 8, 9, 4096])
def test_zeros_at_the_end_are_no_events(small_run: Path, zeros: int) -> None:
    """A power loss may leave a file longer than the data that reached the disk."""
    journal = journal_of(small_run)
    written = contents(journal)
    with open(journal, "ab") as file:
        file.write(bytes(zeros))

    assert (contents(journal), read_segment(journal).torn_bytes) == (written, zeros)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 4096])
def test_a_journal_of_nothing_but_zeros_holds_no_event(small_run: Path, size: int) -> None:
    """This includes the empty file; the run remains readable."""
    journal_of(small_run).write_bytes(bytes(size))

    assert list(open_run(small_run).events()) == []
    assert read_segment(journal_of(small_run)).torn_bytes == size


def test_a_file_that_is_no_journal_is_refused(small_run: Path) -> None:
    """The magic is wrong, and the error names the file."""
    journal_of(small_run).write_bytes(b"PAR1 and so on")

    with pytest.raises(DamagedLog, match=r"journal-0-0-000000000000: not a journal; got b'PAR1'"):
        read_segment(journal_of(small_run))


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_journal_of_another_version_is_refused_and_stays(
    store_record: Callable[..., Path], store_steps: Any, version: int
) -> None:
    """The error says how to go on; the sealer leaves the file, and the other runs of the store are read."""
    folder, other = (store_record(store_steps([1.0]), run_id=run_id) for run_id in ("run-1", "run-2"))
    path = journal_of(folder)
    content = PREAMBLE.pack(MAGIC, version) + path.read_bytes()[PREAMBLE.size :]
    path.write_bytes(content)
    sentence = (
        f"{path}: this steptape supports journal version {VERSION}; got {version}. "
        "Use the steptape that wrote it, or record or import the run anew"
    )

    with pytest.raises(UnsupportedVersion) as opened:
        open_run(folder)
    runs, problems = open_store(folder.parent).entries()

    assert str(opened.value) == sentence
    assert [str(problem) for problem in problems] == complaints(folder) == [sentence]
    assert path.read_bytes() == content
    assert [run.snapshot.folder for run in runs] == [other]


@pytest.mark.parametrize(
    "payload",
    [
        bytes([TAG_EVENT]),
        bytes([TAG_EVENT]) + bytes(55),
        bytes([1, 0, 0, 0, 0]) + b"not JSON",
        LAYOUT.pack(1, 0) + b"[]",
        LAYOUT.pack(1, 0) + b"3",
        LAYOUT.pack(1, 0) + b'["step_end", 5]',
        LAYOUT.pack(1, 0) + b'["step_end", "\\ud800"]',
        bytes([TAG_HEADER]) + b"[]",
        bytes([TAG_HEADER]) + b'{"attempt": 0, "rank": 0, "writer": 3}',
    ],
)
def test_a_record_with_a_right_checksum_and_wrong_content_is_an_error_of_ours(tmp_path: Path, payload: bytes) -> None:
    """A foreign writer made it; it is neither read nor skipped."""
    path = tmp_path / "journal-0-0-000000000000"
    path.write_bytes(
        PREAMBLE.pack(MAGIC, VERSION) + header_record({"attempt": 0, "rank": 0, "first_seq": 0}) + framed(payload)
    )

    with pytest.raises(DamagedLog, match="although its checksum is correct"):
        read_segment(path)


def test_a_record_of_an_unknown_tag_is_passed_over(small_run: Path) -> None:
    """Another writer may add records of its own."""
    journal = journal_of(small_run)
    written = contents(journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole + framed(b"\x63 something new"))

    assert (contents(journal), read_segment(journal).torn_bytes) == (written, 0)


LIVE = """
import sys
from pathlib import Path
from steptape.store.journal.writer import JournalWriter

writer = JournalWriter(Path(sys.argv[1]), run_id="run-1")
writer.append("step_end", ("loss",), (1.0,), step=1, time_ns=0, elapsed_ns=0)
print("ready", flush=True)
sys.stdin.read()
"""

LOOKS = """
import fcntl, sys

journal = open(sys.argv[1])
fcntl.flock(journal, fcntl.LOCK_SH)
print("ready", flush=True)
sys.stdin.read()
"""

FORKS = LIVE.replace('print("ready"', "import os\nis_child = os.fork() == 0\nif is_child: print('ready'")


@contextmanager
def process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process, wait until it is ready, and keep it alive until its stdin is closed."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        assert running.stdout.readline() == "ready\n"
        try:
            yield running
        finally:
            running.kill()


def test_a_writer_is_running_while_it_lives_and_crashed_after_sigkill(store_folder: Callable[..., Path]) -> None:
    """The lock on its journal decides, not run.json; its event is readable before and after."""
    folder = store_folder(status="running")
    run = open_run(folder)
    with process(LIVE, folder) as writer:
        alive = run.status
        writer.send_signal(signal.SIGKILL)
        writer.wait()

        assert (alive, run.status, len(list(run.events()))) == ("running", "crashed", 1)


def test_a_forked_child_does_not_keep_a_dead_run_alive(store_folder: Callable[..., Path]) -> None:
    """A worker that outlives its parent holds no lock."""
    folder = store_folder(status="running")
    with process(FORKS, folder) as parent:
        alive = open_run(folder).status
        parent.send_signal(signal.SIGKILL)
        parent.wait()

        assert (alive, open_run(folder).status) == ("running", "crashed")


ROTATES = LIVE.replace("sys.argv[1]), ", "sys.argv[1]), segment_bytes=1, ").replace(
    "sys.stdin.read()",
    "import time\nfor step in range(100):\n    time.sleep(0.01)\n"
    "    writer.append('log', (), (), step=step, time_ns=0, elapsed_ns=0)\nsys.stdin.read()",
)


def test_a_writer_that_goes_from_segment_to_segment_is_running_all_the_time(store_folder: Callable[..., Path]) -> None:
    """This holds even for a reader that listed the files just before a segment was closed and the next begun."""
    run = open_run(store_folder(status="running"))
    with process(ROTATES, run.folder):
        statuses = {run.status}
        while statuses == {"running"} and len(list(run.folder.glob("journal-*"))) <= 50:
            statuses.add(run.status)

    assert statuses == {"running"}


def test_those_who_look_whether_a_run_lives_do_not_take_each_other_for_its_writer(
    store_record: Callable[..., Path],
) -> None:
    """The check takes a shared lock; a concurrent check still returns False."""
    journal = journal_of(store_record(EVENTS, status="running"))
    with process(LOOKS, journal):
        assert not is_being_written(journal)


def test_a_journal_that_is_gone_is_not_being_written(tmp_path: Path) -> None:
    """A sealer was faster."""
    assert not is_being_written(tmp_path / "journal-0-0-000000000000")


def test_a_live_writer_is_seen_in_its_own_process_too(store_folder: Callable[..., Path]) -> None:
    """A notebook may record and read its own run."""
    folder = store_folder(status="running")
    writer = JournalWriter(folder, run_id="run-1")
    is_live = open_store(folder.parent).run("run-1").snapshot().is_live
    writer.close()

    assert (is_live, open_run(folder).status) == (True, "crashed")
