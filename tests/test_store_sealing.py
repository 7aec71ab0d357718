"""Sealing turns journals into Parquet without losing or doubling an event at any moment."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import shutil
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sealed_content import EVENTS, SAMPLES, content, names
from waiting import PATIENCE_S

from steptape import open_run
from steptape.store.errors import DamagedLog, NotARun
from steptape.store.events import INTEGER_IDS, NO_IDS, TEXT_IDS, Event, SampleLosses
from steptape.store.journal.format import EVENT, FRAME, HAS_SAMPLES, framed
from steptape.store.journal.segment import field_offset
from steptape.store.journal.writer import JournalWriter
from steptape.store.own_process import WriterIdentity, boot_id
from steptape.store.parquet.digests import digest_faults
from steptape.store.parquet.sealing import complaints, seal
from steptape.store.run_folder import list_files


def test_a_sealed_run_reads_as_its_journal_did(store_record: Callable[..., Path]) -> None:
    """No journal remains: there is one file per table."""
    folder = store_record(EVENTS, samples=SAMPLES)
    before = content(folder)
    sealed = seal(folder)

    assert (sealed, content(folder)) == (24, before)
    assert names(folder) == [
        "events-0-0-000000000000-000000000023.parquet",
        "samples-0-0-000000000000-000000000023.parquet",
    ]


def test_sealing_is_idempotent(store_record: Callable[..., Path]) -> None:
    """A second seal changes no file."""
    folder = store_record(EVENTS, samples=SAMPLES, sealed=True)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = seal(folder)

    assert (again, {path: path.stat().st_mtime_ns for path in folder.iterdir()}) == (0, before)


def test_a_finished_run_of_many_segments_becomes_one_file_a_table(store_record: Callable[..., Path]) -> None:
    """Metrics may appear and disappear between segments; columns are in the order of first appearance."""
    folder = store_record(EVENTS, samples=SAMPLES, segment_bytes=300)
    segments, before = len(list_files(folder).journals), content(folder)
    seal(folder)

    assert segments > 5
    assert (content(folder), len(names(folder))) == (before, 2)
    (events,) = folder.glob("events-*")
    assert pq.read_schema(events).names[11:-1] == ["m0", "loss", "m1", "m2"]


def test_files_of_samples_without_token_losses_are_read_and_merged_as_ever(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """They lack the column and read as null next to other files' values."""
    folder = store_folder(status="running")
    losses = SampleLosses(struct.pack("<f", 1.5), b"", NO_IDS)
    flagged = dataclasses.replace(
        losses, flagged=struct.pack("<I", 0), flagged_tokens=struct.pack("<I", 1), token_losses=losses.losses
    )
    writer = JournalWriter(folder, run_id="run-1", segment_bytes=1)
    for step, samples in enumerate((losses, flagged)):
        store_append(writer, Event("step_end", step=step), samples)
        seal(folder)
    has_column = ["token_losses" in pq.read_schema(path).names for path in sorted(folder.glob("samples-*"))]
    run = open_run(folder)
    query = "SELECT token_losses FROM samples ORDER BY seq"
    before = run.samples()["token_losses"].to_pylist(), run.rows(query)
    writer.close()
    seal(folder)

    assert has_column == [False, True]
    assert len(list(folder.glob("samples-*"))) == 1
    assert before == ([None, [1.5]], [{"token_losses": None}, {"token_losses": [1.5]}])
    assert (run.samples()["token_losses"].to_pylist(), run.rows(query)) == before


INTEGERS = SampleLosses(struct.pack("<2f", 1.5, 2.5), struct.pack("<2q", -7, 2**62), INTEGER_IDS)
TEXTS = SampleLosses(struct.pack("<2f", 1.5, 2.5), b'["007","a"]', TEXT_IDS)
NAMELESS = SampleLosses(struct.pack("<2f", 1.5, 2.5), b"", NO_IDS)


@pytest.mark.parametrize(
    ("losses", "type_", "ids"),
    [
        ((INTEGERS, INTEGERS), "int64", ["-7", str(2**62)] * 2),
        ((INTEGERS, NAMELESS), "int64", ["-7", str(2**62), None, None]),
        ((INTEGERS, TEXTS), "string", ["-7", str(2**62), "007", "a"]),
        ((TEXTS, NAMELESS), "string", ["007", "a", None, None]),
        ((NAMELESS, NAMELESS), "int64", [None] * 4),
    ],
)
@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_ids_of_samples_are_integers_in_a_file_where_none_is_text_and_text_to_everybody(
    store_record: Callable[..., Path],
    losses: tuple[SampleLosses, SampleLosses],
    type_: str,
    ids: list[str | None],
    segment_bytes: int,
) -> None:
    """The file is made of one segment, or of two that had a file each."""
    events = [Event("step_end", step=step, metrics={"loss": 1.0}) for step in (1, 2)]
    folder = store_record(events, samples=dict(enumerate(losses)), segment_bytes=segment_bytes)
    run = open_run(folder)
    before = run.samples(), run.rows("FROM samples ORDER BY seq, position"), list(run.events(samples=True))
    seal(folder)
    (path,) = folder.glob("samples-*.parquet")

    assert str(pq.read_schema(path).field("sample_id").type) == type_
    assert run.samples().equals(before[0])
    assert run.samples()["sample_id"].to_pylist() == ids
    assert run.rows("FROM samples ORDER BY seq, position") == before[1]
    assert run.rows("SELECT loss FROM samples WHERE sample_id = '-7'") == [{"loss": 1.5}] * losses.count(INTEGERS)
    assert [sample_ids(event) for event in run.events(samples=True)] == [sample_ids(event) for event in before[2]]


def sample_ids(event: Event) -> list[str] | None:
    """Return the ids of an event's samples, as text."""
    ids = event.samples.ids if event.samples else b""
    if event.samples and event.samples.id_kind == INTEGER_IDS:
        return [str(number) for number in struct.unpack(f"<{len(ids) // 8}q", ids)]
    return json.loads(ids) if ids else None


def test_every_attempt_and_rank_keeps_its_own_files(store_record: Callable[..., Path]) -> None:
    """Streams are merged within themselves, never with each other."""
    events = [
        event._replace(attempt=attempt, rank=rank) for attempt in (0, 1) for rank in (0, 1, 10) for event in EVENTS
    ]
    folder = store_record(events, segment_bytes=400)
    before = content(folder)
    seal(folder)

    assert content(folder) == before
    assert [name[:11] for name in names(folder) if "-10-" not in name] == [
        "events-0-0-",
        "events-0-1-",
        "events-1-0-",
        "events-1-1-",
    ]


def test_a_live_run_is_sealed_up_to_its_open_segment(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """The writer continues in it, and readers see one run."""
    folder = store_folder(status="running")
    writer = JournalWriter(folder, run_id="run-1", segment_bytes=500)
    seen = []
    for event in EVENTS:
        store_append(writer, event)
        seal(folder)
        seen.append([read.step for read in open_run(folder).events()])
    open_segment = writer.path.exists()
    live = names(folder)
    writer.close()
    seal(folder)

    assert open_segment
    assert len(live) > 2
    assert seen == [[event.step for event in EVENTS[: n + 1]] for n in range(len(EVENTS))]
    assert names(folder) == ["events-0-0-000000000000-000000000023.parquet"]


def test_a_segment_that_is_just_being_created_is_not_taken_for_a_dead_writers(
    store_folder: Callable[..., Path],
    store_append: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sealer runs between the creation of the file and its lock, and deletes it: the writer creates it again."""
    folder = store_folder(status="running")
    lock = fcntl.flock

    def late(fd: int, operation: int) -> None:
        monkeypatch.undo()
        seal(folder)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    writer = JournalWriter(folder, run_id="run-1")
    store_append(writer, EVENTS[0])

    assert len(content(folder)[0]) == 1
    writer.close()


def test_segments_behind_one_that_is_still_held_wait_for_it(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """Readers skip events below the last sealed seq, so nothing may be sealed out of order."""
    folder = store_folder(status="running")
    writer = JournalWriter(folder, run_id="run-1", segment_bytes=1)
    held = open(writer.path)  # noqa: SIM115 - it has to outlive the writer's own descriptor
    for event in EVENTS[:3]:
        store_append(writer, event)
    writer.close()
    fcntl.flock(held, fcntl.LOCK_EX)
    while_held, seen = seal(folder), len(content(folder)[0])
    held.close()

    assert (while_held, seen, seal(folder), len(content(folder)[0])) == (0, 3, 3, 3)


def test_two_sealers_at_once_take_turns(store_record: Callable[..., Path]) -> None:
    """Three real processes seal one run of many segments."""
    events = [event._replace(step=step) for step in range(20) for event in EVENTS]
    folder = store_record(events, samples=SAMPLES, segment_bytes=2000)
    before = content(folder)
    command = [sys.executable, "-W", "error", "-m", "steptape", "seal", str(folder)]
    sealers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [sealer.communicate(timeout=PATIENCE_S)[1] for sealer in sealers]

    assert (errors, [sealer.returncode for sealer in sealers]) == (["", "", ""], [0, 0, 0])
    assert (content(folder), len(names(folder))) == (before, 2)


def test_a_reader_beside_a_sealer_sees_every_event_once(store_record: Callable[..., Path]) -> None:
    """Events and SQL are read repeatedly while another process seals and merges."""
    events = [event._replace(step=step) for step in range(40) for event in EVENTS]
    folder = store_record(events, segment_bytes=3000)
    run = open_run(folder)
    sealer = subprocess.Popen([sys.executable, "-m", "steptape", "seal", str(folder)])
    counts: Counter[Any] = Counter()
    while sealer.poll() is None:
        counts[len(list(run.events()))] += 1
        counts[run.rows("SELECT count(*) AS n, count(DISTINCT seq) AS m FROM events")[0]["n"]] += 1

    assert counts.total() > 2
    assert set(counts) == {len(events)}


#: Many consecutive records of one length, with an occasional other one.
ALIKE = [
    Event("step_end", step=step, metrics={"loss": step / 7} if step % 50 else {"loss": 0.0, f"at_{step}": 1.0})
    for step in range(120)
]
ALIKE_SAMPLES = {index: SampleLosses(struct.pack("<2f", index, -index)) for index in range(60, 100)}


def test_damage_anywhere_among_records_of_one_length_is_sealed_as_it_is_read(
    store_record: Callable[..., Path], tmp_path: Path
) -> None:
    """Checksums are verified while the tables are written: output from damaged bytes is discarded."""
    whole = store_record(ALIKE, samples=ALIKE_SAMPLES)
    (journal,) = whole.glob("journal-*")
    data = journal.read_bytes()
    found = set()
    for number, position in enumerate(range(9, len(data), 97)):
        folder = tmp_path / "damaged" / f"run-{number}"
        shutil.copytree(whole, folder)
        damaged = bytearray(data)
        damaged[position] ^= 1 << (number % 8)
        (folder / journal.name).write_bytes(damaged)
        before = content(folder)

        assert seal(folder) == len(before[0])
        assert content(folder) == before
        assert not list(folder.glob(".*"))
        found.add(len(before[0]))
    assert len(found) > 80


def test_a_damaged_journal_whose_events_are_sealed_already_is_kept_aside(store_record: Callable[..., Path]) -> None:
    """As after a kill between writing the tables and deleting the journal; nothing but a sound one is deleted."""
    folder = store_record(store_events := [Event("step_end", step=step, metrics={"loss": 1.0}) for step in range(40)])
    (journal,) = folder.glob("journal-*")
    data = journal.read_bytes()
    seal(folder)
    before = content(folder)

    journal.write_bytes(data)
    seal(folder)
    assert not list(folder.glob("*journal-*"))

    journal.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    seal(folder)
    assert names(folder)[-1] == f"torn-{journal.name}"
    assert content(folder) == before
    assert len(before[0]) == len(store_events)


def test_no_digest_is_kept_of_records_that_turned_out_damaged(store_record: Callable[..., Path]) -> None:
    """This holds even if a killed sealer had written a file of the same name before the damage."""
    events = [Event("step_end", step=step, metrics={"loss": 1.0}) for step in range(40)]
    folder = store_record(events, samples=dict.fromkeys(range(40), INTEGERS))
    (journal,) = folder.glob("journal-*")
    content = journal.read_bytes()
    seal(folder)
    (path,) = folder.glob("events-*")
    path.unlink()
    (folder / "digests.json").unlink()
    place = content.rindex(INTEGERS.losses)
    journal.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    seal(folder)

    assert len(list(open_run(folder).events())) == 39
    assert digest_faults(folder) == []


def test_a_record_whose_checksum_is_right_and_that_makes_no_sense_is_told(store_record: Callable[..., Path]) -> None:
    """Its journal stays unchanged."""
    folder = store_record([Event("step_end", step=1)])
    (journal,) = folder.glob("journal-*")
    content = journal.read_bytes()
    record = bytearray(content[-EVENT.size :])
    record[field_offset("flags")] = HAS_SAMPLES
    journal.write_bytes(content[: -EVENT.size - FRAME.size] + framed(bytes(record)))
    before = journal.read_bytes()

    with pytest.raises(DamagedLog, match="its samples are cut short"):
        seal(folder)
    assert journal.read_bytes() == before


def test_what_is_torn_is_kept_aside_when_the_rest_is_sealed(store_record: Callable[..., Path]) -> None:
    """No bytes are thrown away; the file no longer counts."""
    folder = store_record(EVENTS)
    (journal,) = folder.glob("journal-*")
    journal.write_bytes(journal.read_bytes()[:-5])
    sealed = seal(folder)

    assert (sealed, len(content(folder)[0])) == (23, 23)
    assert names(folder) == ["events-0-0-000000000000-000000000022.parquet", f"torn-{journal.name}"]


def test_a_journal_that_is_none_stays_as_it_is(store_record: Callable[..., Path]) -> None:
    """Sealing raises an error, which the sealing process reports."""
    folder = store_record(EVENTS)
    (journal,) = folder.glob("journal-*")
    journal.write_bytes(b"something else")

    with pytest.raises(DamagedLog):
        seal(folder)
    assert (len(complaints(folder)), journal.read_bytes()) == (1, b"something else")


def test_an_empty_journal_leaves_no_file(store_record: Callable[..., Path]) -> None:
    """The run ended before its first event."""
    folder = store_record([])
    JournalWriter(folder, run_id="run-1").close()
    sealed = seal(folder)

    assert (sealed, names(folder), content(folder)) == (0, [], ([], []))


def test_sealing_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """Nothing is written into it."""
    with pytest.raises(NotARun):
        seal(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_dead_sealers_are_removed(store_record: Callable[..., Path]) -> None:
    """Half-written files have names that begin with a dot and end in tmp."""
    folder = store_record(EVENTS)
    (folder / ".events-0-0-000000000000-000000000023.parquet.tmp").write_bytes(b"PAR1")
    (folder / ".columns.json.123.tmp").write_bytes(b"{")
    before = content(folder)
    seal(folder)

    assert (before, names(folder)) == (content(folder), ["events-0-0-000000000000-000000000023.parquet"])


FULL = """
import resource, sys
from pathlib import Path
from steptape.store.parquet.sealing import seal

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
seal(Path(sys.argv[1]))
"""


def test_a_sealer_that_has_no_room_takes_none(store_record: Callable[..., Path]) -> None:
    """The log stays unchanged, and the running training has the rest of the disk."""
    folder = store_record(EVENTS * 40, samples=SAMPLES)
    before = content(folder)
    done = subprocess.run([sys.executable, "-c", FULL, folder], capture_output=True, text=True, check=False)

    assert "OSError" in done.stderr
    assert content(folder) == before
    assert not list(folder.glob("*.tmp"))


def test_files_of_other_names_are_left_alone(store_record: Callable[..., Path]) -> None:
    """A run folder may hold checkpoints and notes."""
    folder = store_record(EVENTS)
    strangers = [
        "checkpoint.pt",
        "events-old.parquet",
        "journal-0-0",
        "events-0-0-1.parquet",
        "metrics-0-0-1-2.parquet",
    ]
    for stranger in strangers:
        (folder / stranger).write_bytes(b"mine")
    seal(folder)

    assert [name for name in strangers if not (folder / name).exists()] == []


def foreign(folder: Path, writer: WriterIdentity) -> None:
    """Write two segments whose header names this writer."""
    journal = JournalWriter(folder, run_id="run-1", writer=writer, segment_bytes=1)
    for step in range(2):
        journal.append("step_end", ("loss",), (1.0,), step=step, time_ns=0, elapsed_ns=0)
    journal.close()


def test_another_hosts_journal_is_left_alone_unless_told_otherwise(
    store_folder: Callable[..., Path],
) -> None:
    """Its writer's lock is invisible here; the rest is readable, and the sealing process says so."""
    folder = store_folder(status="running")
    foreign(folder, {"host": "elsewhere", "boot_id": "another", "pid": 1})
    before = names(folder)
    untouched, seen = seal(folder), len(content(folder)[0])
    reported = complaints(folder)

    assert (untouched, seen, names(folder)) == (0, 2, before)
    assert all("another machine wrote it" in what for what in reported)
    assert len(reported) == 3
    assert (seal(folder, other_hosts=True), len(content(folder)[0]), len(names(folder))) == (2, 2, 1)


@pytest.mark.parametrize(
    "writer",
    [
        {"host": socket.gethostname(), "boot_id": "an earlier one", "pid": 1},
        {"host": "a container", "boot_id": boot_id(), "pid": 1},
        {},
    ],
)
def test_a_journal_of_this_machine_is_sealed_whatever_boot_or_container_wrote_it(
    store_folder: Callable[..., Path], writer: WriterIdentity
) -> None:
    """The same host in another boot is dead; another host name in this boot is a container, whose lock is visible."""
    if writer.get("boot_id", "") is None:
        pytest.skip("no boot id here")
    folder = store_folder(status="running")
    foreign(folder, writer)

    assert seal(folder) == 2


def test_a_growing_run_has_few_files_and_reads_the_same_throughout(
    store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> None:
    """Three hundred segments are each sealed when they are closed."""
    folder = store_folder(status="running")

    def seal_closed(_: Path) -> None:
        seal(folder)

    writer = JournalWriter(folder, run_id="run-1", segment_bytes=1, on_segment_closed=seal_closed)
    most = 0
    for index in range(300):
        store_append(writer, EVENTS[index % len(EVENTS)], SAMPLES.get(index % len(EVENTS)))
        most = max(most, len(names(folder)))
    writer.close()

    assert most < 20
    assert [event.seq for event in open_run(folder).events()] == list(range(300))
    assert open_run(folder).samples().num_rows == 2 * sum((index % len(EVENTS)) in SAMPLES for index in range(300))
