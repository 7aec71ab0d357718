"""``steptape alert`` tells once what happens to the runs of a store from its first start on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from command_line import call
from notice_channels import Hook, hanging, hook, mailbox, refusing
from waiting import until

from steptape import Recorder
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.run_info import Attempt, RunInfo, write_run_info

SECOND = 1_000_000_000
STEP = Event("step_end", step=1)


@pytest.fixture
def channel() -> Iterator[Hook]:
    """A web hook."""
    with hook() as served_hook:
        yield served_hook


def look(store: Path, channel: Hook, *more: object) -> CompletedProcess[str]:
    """Look once at the store."""
    return call("alert", store, "--notify", channel.address, "--once", *more)


def begun(store: Path, channel: Hook) -> Path:
    """Begin to watch a store with a run that has ended; return the store."""
    with Recorder(store, name="before", quiet=True) as rec:
        rec.step(loss=1.0)
    look(store, channel)
    return store


def test_the_first_look_tells_no_old_history(tmp_path: Path, channel: Hook) -> None:
    """It says how many runs there are."""
    begun(tmp_path / "other", channel)
    with Recorder(tmp_path / "runs", name="old", quiet=True) as rec:
        rec.step(loss=1.0)

    said = [look(tmp_path / "runs", channel) for _ in range(2)]

    assert said[0].stdout == f"watching {tmp_path}/runs from now on: 1 run, 0 of them live\n"
    assert (said[1].returncode, said[1].stdout, channel.titles) == (0, "", [])


def test_a_run_that_ends_is_told_once_with_headline_and_link(tmp_path: Path, channel: Hook) -> None:
    """Its title is its name and its status."""
    store = begun(tmp_path, channel)
    rec = Recorder(store, name="digits", quiet=True)
    rec.step(loss=1.0)
    rec.fail(ValueError("bad"))
    for _ in range(2):
        look(store, channel, "--url", "https://runs.example.org")

    assert channel.titles == ["digits: failed"]
    headline, link = channel.texts[0].split("\n")
    assert headline.startswith("Failed at step 1: ValueError: bad")
    assert link == f"https://runs.example.org/runs/{rec.run_id}"


def test_a_process_that_is_killed_is_told_as_a_crash(tmp_path: Path, channel: Hook) -> None:
    """It was live at the first look, and wrote nothing since."""
    program = """
import sys, time
from steptape import Recorder
rec = Recorder(sys.argv[1], name="victim", quiet=True)
rec.step(loss=1.0)
print("ready", flush=True)
time.sleep(9999)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        look(tmp_path, channel)
        process.kill()
    look(tmp_path, channel)

    assert channel.titles == ["victim: crashed"]


@pytest.fixture
def silent(
    store_path: Path, store_folder: Callable[..., Path], store_append: Callable[..., int]
) -> Iterator[Callable[..., Path]]:
    """Write a live run whose newest event is so many seconds old; return its store."""
    writers: list[JournalWriter] = []

    def write(age_s: float, event: Event = STEP) -> Path:
        event_ns = time.time_ns() - int(age_s * SECOND)
        if not writers:
            folder = store_folder("run-1", status="running")
            write_run_info(folder, RunInfo("run-1", "run-1", (Attempt(0, "running", event_ns - SECOND),)))
            writers.append(JournalWriter(folder, run_id="run-1", attempt=0, rank=0))
        store_append(writers[0], event._replace(time_ns=event_ns))
        return store_path

    yield write
    for writer in writers:
        writer.close()


def test_a_run_that_stalls_is_told_once_for_each_silence(
    store_path: Path, silent: Callable[[float], Path], channel: Hook
) -> None:
    """A later event makes the next silence another one."""
    begun(store_path, channel)
    for age_s in (1000, 900):
        store = silent(age_s)
        for _ in range(2):
            look(store, channel)

    assert channel.titles == ["run-1: stalled", "run-1: stalled"]


def test_a_run_that_was_told_as_stalled_is_told_once_when_it_runs_again(
    store_path: Path, silent: Callable[..., Path], channel: Hook
) -> None:
    """With the length of the silence, also where several events followed it."""
    begun(store_path, channel)
    look(silent(1000), channel)
    for age_s in (280, 0):
        store = silent(age_s, Event("step_end", step=2))
    for _ in range(2):
        look(store, channel)

    assert channel.titles == ["run-1: stalled", "run-1: running again"]
    assert channel.texts[1].startswith("Silent for 12 min before step 2.\nRunning at step 2")


@pytest.mark.parametrize("told", [True, False])
def test_a_question_for_stalled_runs_tells_when_those_that_were_told_run_again(
    told: bool, store_path: Path, silent: Callable[..., Path], channel: Hook
) -> None:
    """A run that the question left out sends no message when it goes on."""
    begun(store_path, channel)
    where = ("--where", "status:stalled" if told else "name:other")
    look(silent(1000), channel, *where)
    look(silent(0), channel, *where)

    assert channel.titles == (["run-1: stalled", "run-1: running again"] if told else [])


def test_a_dead_run_that_is_resumed_is_told_once(tmp_path: Path, channel: Hook) -> None:
    """The end of the resumed run is told, too."""
    store = begun(tmp_path, channel)
    first = Recorder(store, name="digits", quiet=True)
    first.step(loss=1.0)
    first.fail(ValueError("bad"))
    look(store, channel)
    with Recorder(store, resume=(first.run_id, 1), quiet=True) as rec:
        look(store, channel)
        rec.step(loss=0.9)
        look(store, channel)
    look(store, channel)

    assert channel.titles == ["digits: failed", "digits: running again", "digits: completed"]


def test_a_stall_is_told_with_the_place_that_the_watch_of_the_loop_recorded(
    store_path: Path, silent: Callable[..., Path], channel: Hook
) -> None:
    """The place is no sign of life."""
    begun(store_path, channel)
    silent(1000)
    store = silent(940, Event("stalled", step=1, attrs={"silent_s": 60.0, "where": "main thread in train.py:8 next"}))
    look(store, channel)

    assert "Main thread in train.py:8 next. " in channel.texts[0]


def test_a_rule_that_acts_is_told_and_then_held_back(tmp_path: Path, channel: Hook) -> None:
    """Its next firing waits for five minutes, or for the end of the run. A shadow rule is not told."""
    store = begun(tmp_path, channel)
    with Recorder(store, name="digits", rules=["save if loss > 3"], quiet=True) as rec:
        rec.step(loss=1.0)
        look(store, channel)
        for loss in (4.0, 5.0):
            rec.step(loss=loss)
            look(store, channel)
        assert channel.titles == ["digits: rule save_if_loss_3 acted"]
    look(store, channel)

    assert channel.titles[1:] == ["digits: completed"]


def test_a_question_chooses_what_is_told(tmp_path: Path, channel: Hook) -> None:
    """The state of other runs is kept all the same."""
    store = begun(tmp_path, channel)
    for name in ("wide", "base"):
        with Recorder(store, name=name, quiet=True) as rec:
            rec.step(loss=1.0)
    look(store, channel, "--where", "name:wide")

    assert channel.titles == ["wide: completed"]


def test_many_runs_at_once_are_one_message(tmp_path: Path, channel: Hook) -> None:
    """A machine that dies takes all its runs."""
    store = begun(tmp_path, channel)
    for number in range(7):
        with Recorder(store, name=f"run {number}", quiet=True) as rec:
            rec.step(loss=1.0)
    look(store, channel)

    assert channel.titles == ["7 runs: 7 completed"]
    assert channel.texts[0].count("completed (") == 7


def test_what_a_dead_channel_did_not_take_is_told_later(tmp_path: Path, channel: Hook) -> None:
    """The command says so in one line, without the address's secrets."""
    store = begun(tmp_path, channel)
    with Recorder(store, name="digits", quiet=True) as rec:
        rec.step(loss=1.0)
    channel.status = 503
    failed = look(store, channel)
    channel.status = 200
    channel.titles.clear()
    look(store, channel)

    assert failed.returncode == 1
    assert failed.stderr.count("\n") == 1
    assert failed.stderr.startswith("steptape alert: address 1 (json://) did not take a message: ")
    assert "s3cret" not in failed.stderr
    assert channel.titles == ["digits: completed"]


def test_one_of_two_channels_is_enough(tmp_path: Path, channel: Hook) -> None:
    """The message is not repeated to the one that took it."""
    store = begun(tmp_path, channel)
    with Recorder(store, name="digits", quiet=True) as rec:
        rec.step(loss=1.0)
    for _ in range(2):
        look(store, channel, "--notify", refusing())

    assert channel.titles == ["digits: completed"]


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (301, 1), (302, 1), (500, 1)])
def test_a_test_message_says_by_its_exit_status_whether_it_arrived(
    channel: Hook, tmp_path: Path, status: int, expected: int
) -> None:
    """It needs no store."""
    channel.status = status

    done = call("alert", tmp_path / "none", "--notify", channel.address, "--test")

    assert (done.returncode, channel.titles) == (expected, ["steptape: test"])
    assert done.stdout == f"{1 - expected} of 1 message taken\n"


def test_a_test_message_to_mail_arrives(tmp_path: Path) -> None:
    """The title is the subject."""
    with mailbox() as (address, messages):
        assert call("alert", tmp_path, "--notify", address, "--test").returncode == 0

        assert [mail["Subject"] for mail in messages] == ["steptape: test"]


def test_a_channel_that_hangs_is_given_up(tmp_path: Path) -> None:
    """After the seconds that its address names."""
    with hanging() as address:
        done = call("alert", tmp_path, "--notify", address.replace("99999", "0.05"), "--test")

    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no address is given. Give --notify an address such as slack://..., or set STEPTAPE_NOTIFY"),
        (("--notify", "nothing://s3cret"), "address 1 (nothing://) is the address of no service"),
        (("--notify", "json://localhost", "--where", "lr<"), "where:4:"),
        (("--notify", "json://localhost", "--url", "runs"), "take http(s)://HOST[:PORT]"),
        (("--notify", "json://localhost"), "no such store"),
    ],
)
def test_what_cannot_be_watched_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status is that of wrong usage."""
    monkeypatch.delenv("STEPTAPE_NOTIFY", raising=False)

    done = call("alert", tmp_path / "none", *arguments)

    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "s3cret" not in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not the file of what was told, or a damaged one"),
        (b'{"format": 2, "since_us": 0, "runs": {"a": {"b": 1}}}', "not the file of what was told, or a damaged one"),
        (b'{"format": 3}', "the format of what was told"),
    ],
)
def test_a_file_of_another_version_or_a_damaged_one_is_refused(
    tmp_path: Path, channel: Hook, content: bytes, message: str
) -> None:
    """The message says how to begin anew."""
    (tmp_path / "alerts.json").write_bytes(content)

    done = look(tmp_path, channel)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Move it away" in done.stderr
    assert (tmp_path / "alerts.json").read_bytes() == content


def watch(store: Path, channel: Hook) -> subprocess.Popen[str]:
    """Start the command."""
    environment = {**os.environ, "STEPTAPE_NOTIFY": channel.address}
    command = [sys.executable, "-m", "steptape", "alert", str(store)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_second_watch_of_a_store_is_refused(tmp_path: Path, channel: Hook) -> None:
    """It would tell everything twice. The first one ends by Ctrl-C."""
    store = begun(tmp_path, channel)
    with watch(store, channel) as process:
        with Recorder(store, name="digits", quiet=True) as rec:
            rec.step(loss=1.0)
        until(lambda: channel.titles)
        second = look(store, channel)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()

    assert (second.returncode, channel.titles) == (2, ["digits: completed"])
    assert "another 'steptape alert' watches this store" in second.stderr
    assert (process.returncode, errors) == (130, "")


def test_what_cannot_be_kept_is_not_repeated_and_kept_later(tmp_path: Path, channel: Hook) -> None:
    """As on a disk that is full for a while."""
    store = begun(tmp_path, channel)
    kept = store / "alerts.json"
    with watch(store, channel) as process:
        assert process.stderr is not None
        with Recorder(store, name="first", quiet=True) as rec:
            rec.step(loss=1.0)
        until(lambda: channel.titles)
        until(lambda: rec.run_id in json.loads(kept.read_bytes())["runs"])
        kept.unlink()
        kept.mkdir()
        with Recorder(store, name="second", quiet=True) as rec:
            rec.step(loss=1.0)
        line = process.stderr.readline()
        kept.rmdir()
        until(kept.exists)
        process.kill()
        process.communicate()
    look(store, channel)

    assert line.startswith("steptape alert: what was told cannot be kept: ")
    assert channel.titles == ["first: completed", "second: completed"]


def test_a_run_that_is_pushed_to_the_store_is_told(tmp_path: Path, channel: Hook) -> None:
    """The watch needs no more than the folder that the server writes."""
    away, home = tmp_path / "away", tmp_path / "home"
    home.mkdir()
    look(home, channel)
    with Recorder(away, name="digits", quiet=True) as rec:
        rec.step(loss=1.0)
    call("push", away, home)
    look(home, channel)

    assert channel.titles == ["digits: completed"]


def test_a_storm_of_kills_loses_no_message_and_each_doubles_one_at_most(tmp_path: Path, channel: Hook) -> None:
    """Whatever a killed watch was doing."""
    store, names = begun(tmp_path, channel), [f"run {number}" for number in range(5)]  # More news are one message.
    chance, kept = random.Random(7), tmp_path / "alerts.json"
    for name in names:
        with Recorder(store, name=name, quiet=True) as rec:
            rec.step(loss=1.0)
        before = len(channel.titles), kept.stat().st_mtime_ns
        with watch(store, channel) as process:
            while (len(channel.titles), kept.stat().st_mtime_ns) == before and process.poll() is None:
                time.sleep(0.0005)  # A look every 50 ms would miss what lies between a message and its record.
            time.sleep(chance.choice((0, 0, 0.01, 0.02)))
            process.kill()
    look(store, channel)
    json.loads((store / "alerts.json").read_bytes())

    told = Counter(channel.titles)
    assert told.keys() == {f"{name}: completed" for name in names}
    assert sum(told.values()) <= 2 * len(names)  # There were as many kills as runs.
