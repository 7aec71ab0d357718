"""A target that lies costs a sentence: no traceback, no wait beyond ``--wait``, and nothing of the source."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command_line import call
from shipped_runs import RUN, Loop
from test_shipping_recordings import files_in
from waiting import PATIENCE_S, until

from steptape.shipping.push_protocol import AttemptState, PushRefused, RunState, StreamDigest, TargetAway
from steptape.shipping.run_push import RunPush
from steptape.shipping.store_push import Backoff, StorePush
from steptape.shipping.targets import FolderTarget, HttpTarget

#: Of ``Loop``, by its ``run.json``.
RECORDING = "100 None@None"

Says = Callable[[str, str], tuple[int, bytes]]


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing of a pusher that has hung up."""


class Liar:
    """A server on loopback that answers each request as it likes.

    Args:
        says: Returns the status and the body of an answer, by the request's method and path.

    Attributes:
        address: Its address.
        asked: The requests that have come.
    """

    def __init__(self, says: Says) -> None:
        self.asked: list[str] = []
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline()
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                liar.asked.append(self.command)
                status, body = says(self.command, self.path)
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:9/")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def liar() -> Iterator[Callable[[Says], Liar]]:
    """Start servers that lie, and stop them after the test."""
    started: list[Liar] = []

    def start(says: Says) -> Liar:
        started.append(Liar(says))
        return started[-1]

    yield start
    for each in started:
        each.close()


def a_run(store: Path, *, is_live: bool = False) -> Loop:
    """Record 20 events."""
    loop = Loop(store)
    loop.steps(20)
    if not is_live:
        loop.end()
    return loop


def state(next_seq: object = 20, **more: object) -> bytes:
    """What an honest target says of the run, but for some of it."""
    document = RunState({}, "", (AttemptState(0, RECORDING, has_ended=False),), {}).to_json()
    return json.dumps({**document, "streams": [{"attempt": 0, "rank": 0, "next_seq": next_seq}], **more}).encode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * 100_000, "not one of steptape"),
        (b'{"a":' * 100_000, "not one of steptape"),
        (b" " * (17 << 20), "not one of steptape"),
        (b"7", "not one of steptape"),
        (b"{}", "not one of steptape"),
        (state(-1), "not one of steptape"),
        (state(1e999), "not one of steptape"),
        (state(10**400), "not one of steptape"),
        (state(True), "not one of steptape"),
        (state("20"), "not one of steptape"),
        (state(streams={"a": 1}), "not one of steptape"),
        (state(attempts=[[]]), "not one of steptape"),
        (state(digests=[{"attempt": 0, "rank": 0, "last_seq": 1e308, "sha256": "", "format": 2}]), "not one of"),
    ],
    ids=lambda each: None if isinstance(each, str) else f"{each[:20]!r}",
)
def test_an_answer_that_is_none_is_an_error_in_a_sentence(
    body: bytes, said: str, liar: Callable[[Says], Liar], tmp_path: Path
) -> None:
    """The command ends with the status 1, and says that nothing is lost."""
    a_run(tmp_path)
    result = call("push", tmp_path, liar(lambda *_: (200, body)).address, "--wait", "0")

    assert (result.returncode, result.stdout) == (1, "")
    assert said in result.stderr
    assert "Nothing is lost. Repeat the command to push the rest" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (307, b"", "A push follows no redirect; give the address that it leads to"),
        (500, b"<h1>\x1b[31mno</h1>", "the server answered with status 500"),
        (503, json.dumps({"detail": "\x1b[2Jgone\n" + "x" * 10**6}).encode(), " [2Jgone xxx"),
        (503, json.dumps({"detail": {"a": 1}, "hint": 7}).encode(), "the server answered with status 503"),
    ],
)
def test_an_error_that_is_none_is_shown_short_and_without_control_characters(
    status: int, body: bytes, said: str, liar: Callable[[Says], Liar], tmp_path: Path
) -> None:
    """The words are the server's, so they are not trusted."""
    a_run(tmp_path)
    result = call("push", tmp_path, liar(lambda *_: (status, body)).address, "--wait", "0")

    assert said in result.stderr
    assert "\x1b" not in result.stderr
    assert len(result.stderr) < 1000


@pytest.mark.parametrize("is_live", [False, True], ids=["ended", "live"])
@pytest.mark.parametrize("claimed", [21, 10**9, 2**63 - 1])
def test_a_target_that_claims_more_events_than_there_are_is_refused(
    claimed: int, is_live: bool, liar: Callable[[Says], Liar], tmp_path: Path
) -> None:
    """Also where it shows a digest of them."""
    loop = a_run(tmp_path, is_live=is_live)
    digests = [{"attempt": 0, "rank": 0, **StreamDigest(claimed - 1, "0" * 64, 2)._asdict()}]
    answer = json.dumps({**json.loads(state(claimed, digests=digests)), "next_seq": claimed}).encode()
    target = HttpTarget(liar(lambda *_: (200, answer)).address)
    with closing(target), closing(RunPush(loop.folder, target)) as push, pytest.raises(PushRefused) as caught:
        push.look()
    loop.writer.close()

    assert f"more events of attempt 0, rank 0 than this folder; got {claimed}." in str(caught.value)


def test_a_target_that_claims_more_events_once_they_are_sent_is_refused(
    liar: Callable[[Says], Liar], tmp_path: Path
) -> None:
    """The answer to a chunk is believed no more than the first one."""
    loop = a_run(tmp_path)
    target = HttpTarget(liar(lambda method, _: (200, state(0) if method != "POST" else b'{"next_seq": 99}')).address)
    more = "more events of attempt 0, rank 0 than this folder; got 99"
    with closing(target), closing(RunPush(loop.folder, target)) as push, pytest.raises(PushRefused, match=more):
        push.look()


def test_what_another_pusher_has_brought_is_no_lie(tmp_path: Path) -> None:
    """It has seen more of a run that grows."""
    loop = a_run(tmp_path / "a", is_live=True)
    with closing(FolderTarget(tmp_path / "b")) as target:
        late = RunPush(loop.folder, target)
        late.look()
        loop.steps(5)
        with closing(RunPush(loop.folder, target)) as other:
            other.look()
        late._state = None  # It asks anew, as after any failure.
        progress = late.look()
        late.close()
    loop.writer.close()

    assert (progress.events, progress.is_live) == (0, True)


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (20, "has taken nothing new of the run, and has not sealed it"),
        (0, "position changes with each request"),
    ],
    ids=["never-seals", "takes-nothing"],
)
def test_a_waiting_pusher_says_so_within_its_wait(
    position: int, said: str, liar: Callable[[Says], Liar], tmp_path: Path
) -> None:
    """A target that never gets on is not waited for without end."""
    a_run(tmp_path)
    answer = json.dumps({**json.loads(state(position)), "next_seq": position}).encode()
    result = call("push", tmp_path, liar(lambda *_: (200, answer)).address, "--wait", "0.5")

    assert result.returncode == 1
    assert said in result.stderr


def test_a_target_that_forgets_everything_each_time_is_not_pushed_to_for_ever(
    liar: Callable[[Says], Liar], tmp_path: Path
) -> None:
    """Sending the same events again is no progress."""
    a_run(tmp_path)

    def says(_: str, path: str) -> tuple[int, bytes]:
        return 200, b'{"next_seq": 20}' if path.endswith("/frames") else state(0)

    assert call("push", tmp_path, liar(says).address, "--wait", "0.5").returncode == 1


DRIPS = [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{"]


@pytest.mark.parametrize("beginning", DRIPS, ids=["head", "body"])
def test_an_answer_that_drips_for_ever_is_cut_off(beginning: bytes) -> None:
    """Each byte comes in time, and the whole never does."""

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(beginning)
            while True:
                try:
                    connection.sendall(b" ")
                except OSError:
                    return
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        target = HttpTarget(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2)
        with closing(target), pytest.raises(TargetAway, match=r"does not answer \(timed out\)"):
            target.state(RUN)


def test_a_target_that_says_nothing_is_given_up_within_the_wait(tmp_path: Path) -> None:
    """It takes the connection. The default limit of an answer is longer than the wait."""
    a_run(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        result = call("push", tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}", "--wait", "0.5")

    assert result.returncode == 1
    assert "does not answer (timed out)" in result.stderr


def test_a_follower_outlives_a_target_that_lies(liar: Callable[[Says], Liar], tmp_path: Path) -> None:
    """It goes on asking until it is interrupted."""
    a_run(tmp_path)
    server = liar(lambda *_: (200, b"[" * 100_000))
    command = [sys.executable, "-m", "steptape", "push", str(tmp_path), server.address, "--follow"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: len(server.asked) > 2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, "Traceback" in said) == (130, False)


def test_a_follower_says_once_that_a_growing_run_is_refused(tmp_path: Path) -> None:
    """Each look finds it refused."""
    first, second = Loop(tmp_path / "a", pid=1), Loop(tmp_path / "b", pid=2)
    first.steps(5)
    said: list[str] = []
    with closing(FolderTarget(tmp_path / "there")) as target, closing(RunPush(first.folder, target)) as push:
        push.look()
        before = files_in(tmp_path / "there")
        store = StorePush(tmp_path / "b", target, lambda outcome: said.append(outcome.refused), Backoff(print, 0.0))
        for _ in range(3):
            second.steps(5)
            store._look(second.folder, goes_on=True)
        after = files_in(tmp_path / "there")
    for loop in (first, second):
        loop.writer.close()

    assert len(said) == 1
    assert "is of another recording" in said[0]
    assert after == before
