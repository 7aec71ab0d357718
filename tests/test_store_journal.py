"""The journal's writer leaves whole records after failed writes, interrupts and forks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from measuring import not_measured
from waiting import PATIENCE_S

from steptape.store.events import Event
from steptape.store.journal.segment_reading import read_segment
from steptape.store.journal.writer import DELETED, JournalWriter


def run_script(script: str, *arguments: object) -> str:
    """Run the script in its own process, with warnings as errors, and return its output."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def seqs(folder: Path) -> list[int]:
    """Return the ``seq`` of every event in a folder's journals, which must not hold a torn byte."""
    segments = [read_segment(path) for path in sorted(folder.glob("journal-*"))]
    assert not any(segment.torn_bytes for segment in segments)
    return [record.event.seq for segment in segments for record in segment.records]


APPEND = "writer.append('step_end', ('loss',), (1.0,), step=writer.seq, time_ns=0, elapsed_ns=0)"

FULL_DISK = f"""
import json, resource, sys
from pathlib import Path
from steptape.store.journal.writer import JournalWriter

writer = JournalWriter(Path(sys.argv[1]), run_id="run-1", segment_bytes=int(sys.argv[2]))
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
refused = []
in_the_way = [Path(sys.argv[1], f"journal-0-0-{{seq:012d}}") for seq in range(1, 41)]
for path in in_the_way:
    path.mkdir()  # No other segment can be begun either.
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
for _ in range(40):
    try:
        {APPEND}
    except OSError:
        refused.append(writer.seq)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
for path in in_the_way:
    path.rmdir()
for _ in range(5):
    {APPEND}
print(json.dumps([refused, writer.seq]))
"""


def test_a_full_disk_leaves_whole_records_and_no_gap(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel write short and then refuse, as a full disk does; Python ignores SIGXFSZ."""
    refused, written = json.loads(run_script(FULL_DISK, tmp_path, 1 << 26))

    assert refused
    assert (len(refused), seqs(tmp_path)) == (40 + 5 - written, list(range(written)))


def test_a_segment_that_cannot_be_followed_by_another_goes_on(tmp_path: Path) -> None:
    """The next segment's name is taken; the event that filled the segment is still written, once."""
    writer = JournalWriter(tmp_path, run_id="run-1", segment_bytes=1)
    (tmp_path / "journal-0-0-000000000001").mkdir()
    for step in range(3):
        writer.append("step_end", (), (), step=step, time_ns=0, elapsed_ns=0)
    writer.close()

    (tmp_path / "journal-0-0-000000000001").rmdir()
    assert seqs(tmp_path) == [0, 1, 2]


def test_a_journal_that_cannot_be_begun_leaves_nothing_behind(tmp_path: Path) -> None:
    """Not even the first bytes fit: the constructor raises and leaves no file."""
    script = """
import resource, sys
from pathlib import Path
from steptape.store.journal.writer import JournalWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    JournalWriter(Path(sys.argv[1]), run_id="run-1")
except OSError:
    print(list(Path(sys.argv[1]).iterdir()))
"""

    assert run_script(script, tmp_path) == "[]\n"


INTERRUPTED = f"""
import random, signal, sys
random.seed(1)
from pathlib import Path
from steptape.store.journal.writer import JournalWriter

class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

writer = JournalWriter(Path(sys.argv[1]), run_id="run-1")
interrupts = 0
signal.signal(signal.SIGALRM, interrupt)
while interrupts < 300:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-4))
        while True:
            {APPEND}
    except Interrupted:
        interrupts += 1
print(writer.seq)
"""


@not_measured
def test_an_interrupt_in_the_middle_of_an_append_loses_or_doubles_no_event(tmp_path: Path) -> None:
    """Signal handlers raise, as Ctrl-C does, 300 times at random moments."""
    written = int(run_script(INTERRUPTED, tmp_path))

    assert seqs(tmp_path) == list(range(written))


FORKED = f"""
import os, sys
from pathlib import Path
from steptape.store.journal.writer import JournalWriter

writer = JournalWriter(Path(sys.argv[1]), run_id="run-1")
{APPEND}
if os.fork() == 0:
    try:
        {APPEND}
    except OSError as error:
        os._exit(42)
    os._exit(0)
status = os.waitstatus_to_exitcode(os.wait()[1])
{APPEND}
print(status)
"""


COPIED = f"""
import ctypes, os, sys
from pathlib import Path
from steptape.store.journal.segment_reading import is_being_written
from steptape.store.journal.writer import JournalWriter

writer = JournalWriter(Path(sys.argv[1]), run_id="run-1")
{APPEND}
waiting, ends = os.pipe()
if ctypes.CDLL(None).fork() == 0:  # Without Python's own handlers, as when a program is started.
    os.close(ends)
    os.read(waiting, 1)
    os._exit(0)
writer.close()
print(is_being_written(next(Path(sys.argv[1]).glob("journal-*"))))
os.close(ends)
"""


def test_a_closed_journal_is_free_although_a_child_process_has_its_descriptor(tmp_path: Path) -> None:
    """A program that is being started holds all descriptors for a moment; the sealer would pass the journal over."""
    assert run_script(COPIED, tmp_path) == "False\n"


def test_a_forked_child_cannot_write_into_its_parents_journal(tmp_path: Path) -> None:
    """A DataLoader's worker might try; the parent's journal is not disturbed."""
    exit_code = int(run_script(FORKED, tmp_path))

    assert (exit_code, seqs(tmp_path)) == (42, [0, 1])


def test_a_segment_that_is_full_is_closed_and_announced(tmp_path: Path) -> None:
    """Each segment's name holds its first seq, and the segment holds its layouts."""
    closed: list[Path] = []
    writer = JournalWriter(tmp_path, run_id="run-1", segment_bytes=400, on_segment_closed=closed.append)
    for step in range(20):
        writer.append("log", ("loss",), (float(step),), step=step, time_ns=0, elapsed_ns=0)
    writer.close()

    firsts = [read_segment(path).records[0].event.seq for path in closed]
    assert len(firsts) >= 3
    assert firsts == [int(path.name[-12:]) for path in closed]
    assert seqs(tmp_path) == list(range(20))


def test_a_stream_has_one_writer(tmp_path: Path) -> None:
    """A second journal of the same (attempt, rank) is refused, even if the first is closed."""
    JournalWriter(tmp_path, run_id="run-1").close()

    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path, run_id="run-1")


def test_a_closed_journal_refuses_events(tmp_path: Path) -> None:
    """Closing twice is allowed; writing afterwards raises OSError instead of being silent."""
    writer = JournalWriter(tmp_path, run_id="run-1")
    writer.close()
    writer.close()

    with pytest.raises(OSError, match="the run has ended"):
        writer.append("log", (), (), step=0, time_ns=0, elapsed_ns=0)


def test_a_number_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, store_append: Callable[..., int]
) -> None:
    """The journal continues with the same seq."""
    writer = JournalWriter(tmp_path, run_id="run-1")
    store_append(writer, Event("step_end", step=1, metrics={"a": 1.0}))
    with pytest.raises(struct.error):
        store_append(writer, Event("step_end", step=2**63, metrics={"b": 1.0}))
    store_append(writer, Event("step_end", step=2, metrics={"c": 1.0}))
    writer.close()

    assert [record.event.step for record in read_segment(writer.path).records] == [1, 2]


def append(writer: JournalWriter, elapsed_ns: int) -> int:
    """Append one event at a time of the monotonic clock."""
    return writer.append("step_end", ("loss",), (1.0,), step=writer.seq, time_ns=0, elapsed_ns=elapsed_ns)


SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("what", ["folder", "segment"])
def test_a_journal_that_was_deleted_is_noticed_and_begun_anew(tmp_path: Path, what: str) -> None:
    """The write that notices it raises, so that the loss is counted; the next one is on disk again, with its folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    begun_anew: list[str] = []
    writer = JournalWriter(folder, run_id="run-1", on_begun_anew=begun_anew.append)
    append(writer, 0)
    if what == "folder":
        shutil.rmtree(folder)
    else:
        writer.path.unlink()
    with pytest.raises(FileNotFoundError, match="deleted"):
        append(writer, 2 * SECOND_NS)
    again = [append(writer, 2 * SECOND_NS + 1), append(writer, 4 * SECOND_NS)]
    writer.close()

    assert (again, seqs(folder), begun_anew) == ([1, 2], [1, 2], [DELETED])


def test_a_journal_whose_folder_was_moved_is_followed(tmp_path: Path) -> None:
    """No event is lost, and the next segments are where the folder is."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere" / "run"
    folder.mkdir()
    elsewhere.parent.mkdir()
    moved: list[Path] = []
    writer = JournalWriter(folder, run_id="run-1", segment_bytes=400, on_moved=moved.append)
    append(writer, 0)
    folder.rename(elsewhere)
    for number in range(1, 20):
        append(writer, number * SECOND_NS)
    path = writer.path
    writer.close()

    assert (moved, path.parent, seqs(elsewhere)) == ([elsewhere], elsewhere, list(range(20)))
    assert not folder.exists()


def test_a_segment_that_was_moved_out_of_its_folder_is_begun_anew_there(tmp_path: Path) -> None:
    """The run stays one folder, and the recorder does not follow a file into another one."""
    folder = tmp_path / "run"
    folder.mkdir()
    writer = JournalWriter(folder, run_id="run-1")
    append(writer, 0)
    writer.path.rename(tmp_path / writer.path.name)
    with pytest.raises(FileNotFoundError, match="deleted"):
        append(writer, 2 * SECOND_NS)
    append(writer, 3 * SECOND_NS)
    writer.close()

    assert (seqs(folder), seqs(tmp_path)) == ([1], [0])


CLOSED_DESCRIPTOR = """
import os, sys
from pathlib import Path
from steptape.store.journal.writer import CLOSED, JournalWriter

folder, events_before, is_reused = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "reused"
begun_anew = []

def append(elapsed_ns):
    try:
        writer.append("step_end", ("loss",), (1.0,), step=writer.seq, time_ns=0, elapsed_ns=elapsed_ns)
    except OSError:
        print("refused")

writer = JournalWriter(folder, run_id="run-1", on_begun_anew=begun_anew.append)
for _ in range(events_before):
    append(0)
os.closerange(3, 256)
checkpoint = os.open(folder / "checkpoint", os.O_CREAT | os.O_RDWR) if is_reused else None
append(1 if events_before else 2 * 10**9)
size = os.fstat(checkpoint).st_size if is_reused else 0
for number in range(3, 6):
    append(number * 10**9)
assert not is_reused or os.fstat(checkpoint).st_size == size, "written into another file after noticing"
writer.close()
assert not is_reused or os.write(checkpoint, b"open") == 4
assert begun_anew == [CLOSED], begun_anew
"""


@pytest.mark.parametrize(
    ("events_before", "then", "readable"),
    [(2, "reused", [0, 1, 3, 4, 5]), (2, "", [0, 1, 2, 3, 4]), (0, "reused", [0, 1, 2, 3])],
)
def test_a_journal_whose_descriptor_the_program_closed_is_reopened(
    tmp_path: Path, events_before: int, then: str, readable: list[int]
) -> None:
    """The next check notices it, also if another file has the number by now; that file is left alone from then on."""
    printed = run_script(CLOSED_DESCRIPTOR, tmp_path, events_before, then)

    assert (seqs(tmp_path), printed) == (readable, "" if then else "refused\n")


def test_a_journal_whose_folder_cannot_be_made_again_goes_on_as_soon_as_it_can(tmp_path: Path) -> None:
    """Every event until then raises; none is lost silently."""
    folder = tmp_path / "parent" / "run"
    folder.mkdir(parents=True)
    writer = JournalWriter(folder, run_id="run-1")
    shutil.rmtree(tmp_path / "parent")
    (tmp_path / "parent").write_text("in the way")
    for time_ns in (SECOND_NS, SECOND_NS, 3 * SECOND_NS):
        with pytest.raises(OSError, match=r"deleted|Not a directory|exists"):
            append(writer, time_ns)
    (tmp_path / "parent").unlink()
    seq = append(writer, 3 * SECOND_NS)
    writer.close()

    assert (seq, seqs(folder)) == (0, [0])


def test_a_journal_with_durability_power_is_synced_off_the_writing_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync runs at its interval and at the end, covers closed segments, and never runs in the appending thread."""
    synced: list[tuple[str, str]] = []
    first_sync = threading.Event()
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append((threading.current_thread().name, Path(os.readlink(f"/proc/self/fd/{fd}")).name))
        fsync(fd)
        first_sync.set()

    monkeypatch.setattr(os, "fsync", noted)
    writer = JournalWriter(tmp_path, run_id="run-1", sync_every_s=0.01, segment_bytes=400)
    assert first_sync.wait(PATIENCE_S)
    for index in range(20):
        append(writer, index)
    writer.close()

    assert {thread for thread, _ in synced} == {"steptape-sync"}
    assert {name for _, name in synced} >= {path.name for path in tmp_path.glob("journal-*")}
    assert seqs(tmp_path) == list(range(20))


def test_a_sync_that_fails_is_reported_and_writing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback gets the error; the events are still in the journal."""
    failures: list[OSError] = []
    failed = threading.Event()

    def refuse(_fd: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    def report(error: OSError) -> None:
        failures.append(error)
        failed.set()

    monkeypatch.setattr(os, "fsync", refuse)
    writer = JournalWriter(tmp_path, run_id="run-1", sync_every_s=0.01, on_sync_failed=report)
    append(writer, 0)
    assert failed.wait(PATIENCE_S)
    append(writer, 1)
    writer.close()

    assert failures[0].errno == errno.EIO
    assert seqs(tmp_path) == [0, 1]


def test_a_forked_child_of_a_synced_journal_ends_without_waiting_for_its_parents_thread(tmp_path: Path) -> None:
    """The thread does not exist in the child; the parent's journal continues."""
    script = FORKED.replace('run_id="run-1"', 'run_id="run-1", sync_every_s=1.0')

    assert (int(run_script(script, tmp_path)), seqs(tmp_path)) == (42, [0, 1])


REALLY_FULL = f"""
import errno, json, sys
from pathlib import Path
from steptape.store.journal.writer import JournalWriter

folder = Path(sys.argv[1])
writer = JournalWriter(folder, run_id="run-1")
(folder / "filler").write_bytes(b"")
errors = set()
with open(folder / "filler", "ab", buffering=0) as filler:
    try:
        while True:
            filler.write(bytes(4096))
    except OSError:
        pass
refused = 0
for _ in range(200):
    try:
        {APPEND}
    except OSError as error:
        refused += 1
        errors.add(errno.errorcode[error.errno])
(folder / "filler").unlink()
for _ in range(5):
    {APPEND}
writer.close()
print(json.dumps([refused, writer.seq, sorted(errors)]))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "steptape-test", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here ({mounted.stderr.strip()}); RLIMIT_FSIZE stands in elsewhere")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_writing_works_again_when_a_full_file_system_has_room(small_disk: Path) -> None:
    """The kernel raises ENOSPC; records before and after are whole and in one sequence."""
    refused, written, errors = json.loads(run_script(REALLY_FULL, small_disk))

    assert refused > 100
    assert errors == ["ENOSPC"]
    assert (205 - refused, seqs(small_disk)) == (written, list(range(written)))
