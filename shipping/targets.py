"""The targets of a push: a folder (a mounted disk, a stick, another store here), a server, and object storage."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from ..store.errors import (
    DamagedLog,
    NotWritten,
    RunChanging,
    StoreAway,
    StoreNotFound,
    TelemetryError,
    UnsupportedVersion,
)
from ..store.events import JsonObject
from ..store.objects.bucket import Bucket
from ..store.objects.manifest import LEASE_S, Manifest, manifest_key, manifest_of, part_key
from ..store.run_folder import RUN_JSON, Stream
from .push_protocol import (
    PIECE_BYTES,
    BadFrames,
    ForeignRun,
    IntakeBusy,
    LineLost,
    OutOfStep,
    PushRefused,
    RunConflict,
    RunPapers,
    RunState,
    TargetAway,
    position_of,
)

#: The owner of runs that are pushed without a token, to a folder or to a server on this machine.
OWNER: Final = "local"


class FolderTarget:
    """The store in a folder, which is created if only its last part is missing.

    Raises:
        TelemetryError: The folder cannot be created, or pyarrow is missing.
    """

    def __init__(self, store: Path) -> None:
        if find_spec("pyarrow") is None:
            what = "a push to a folder needs pyarrow, which is not installed"
            raise TelemetryError(what, fix="Install steptape with its dependencies, or push to a server")
        try:
            store.mkdir(exist_ok=True)
        except OSError as error:
            raise TelemetryError(f"the target cannot be created ({error.strerror})", where=str(store)) from None
        from .intake import Intake  # Needs pyarrow, which a push to a server does without.

        self._why_unsealed = ""
        self._intake = Intake(store.absolute(), self._seal)

    def state(self, run_id: str) -> RunState:
        """As ``Target`` says."""
        with _translated():
            return self._intake.state(run_id, OWNER)

    def put_papers(self, run_id: str, papers: RunPapers) -> None:
        """As ``Target`` says."""
        with _translated():
            self._intake.take_papers(run_id, OWNER, papers)

    def put_chunk(self, run_id: str, chunk: bytes) -> int:
        """As ``Target`` says."""
        with _translated():
            return self._intake.take_chunk(run_id, OWNER, chunk)[1]

    def end(self, run_id: str, streams: Collection[Stream]) -> None:
        """As ``Target`` says; the run is sealed on return."""
        with _translated():
            self._intake.end(run_id, OWNER, streams)
        if self._why_unsealed:
            raise TargetAway("the run could not be sealed at the target", got=self._why_unsealed)

    def pieces(self, run_id: str, name: str) -> Iterator[bytes]:
        """As ``Target`` says."""
        with _translated():
            yield from whole_pieces(lambda offset: self._intake.piece(run_id, OWNER, name, offset))

    def close(self) -> None:
        """As ``Target`` says."""
        self._intake.close()

    def _seal(self, folder: Path) -> None:
        from ..store.parquet.sealing import complaints

        self._why_unsealed = "; ".join(complaints(folder, other_hosts=True))


def whole_pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield a file, given what returns a piece of it from an offset on."""
    offset = 0
    while piece := read(offset):
        yield piece
        offset += len(piece)
        if len(piece) < PIECE_BYTES:
            return


@contextmanager
def _translated() -> Iterator[None]:
    """Turn the intake's errors into those of a target."""
    try:
        yield
    except (IntakeBusy, NotWritten, RunChanging, StoreAway) as error:
        raise TargetAway(error.what, where=error.where, fix=error.fix) from None
    except (BadFrames, RunConflict, ForeignRun, StoreNotFound, DamagedLog, UnsupportedVersion) as error:
        raise PushRefused(error.what, where=error.where, got=error.got, fix=error.fix) from None
    except OSError as error:
        raise TargetAway(f"the target cannot be reached ({error})") from None


#: Seconds that sending a request may take, and as many again for its answer. Then it counts as lost.
TIMEOUT_S: Final = 30.0

#: Largest answer: one about 10,000 streams has 3 MB.
_MOST_ANSWER_BYTES: Final = 16 << 20

#: Characters of a server's own words that are shown.
_MOST_WORDS: Final = 500

_NOT_OURS: Final = "this server's answer is not one of steptape"
_JSON: Final = "application/json"
_FRAMES: Final = "application/octet-stream"


class HttpTarget:
    """A server, reached over one connection that stays open.

    Args:
        address: ``http(s)://HOST[:PORT][/PREFIX]``.
        token: The bearer token; empty without one.
        timeout_s: Seconds that sending a request may take, and as many again for its answer.

    Raises:
        TelemetryError: The address is none, or holds a password.
    """

    def __init__(self, address: str, token: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise TelemetryError(f"the target's address does not parse ({error})", got=address) from None
        if not host or parts.username or parts.password or parts.query or parts.fragment:
            fix = "Write http://HOST:PORT; a token comes from --token-file or STEPTAPE_TOKEN"
            raise TelemetryError("the target's address must be a host and a port", got=address, fix=fix)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection, self._timeout_s = kind(host, port, timeout=timeout_s), timeout_s
        self._prefix = f"{parts.path.rstrip('/')}/api/v1/intake/"
        self._address = address
        self._is_used = self._has_answered = False
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def state(self, run_id: str) -> RunState:
        """As ``Target`` says."""
        answer = self._request("GET", run_id)
        try:
            return RunState.from_json(answer)
        except (ValueError, TypeError, KeyError):
            raise TargetAway(_NOT_OURS, where=self._address) from None

    def put_papers(self, run_id: str, papers: RunPapers) -> None:
        """As ``Target`` says."""
        body = {"run": papers.run, "columns": list(papers.columns), "notes": list(papers.notes)}
        self._request("PUT", f"{run_id}/papers", json.dumps(body).encode(), _JSON)

    def put_chunk(self, run_id: str, chunk: bytes) -> int:
        """As ``Target`` says."""
        answer = self._request("POST", f"{run_id}/frames", chunk, _FRAMES)
        try:
            return position_of(answer.get("next_seq"))
        except ValueError:
            raise TargetAway(_NOT_OURS, where=self._address) from None

    def end(self, run_id: str, streams: Collection[Stream]) -> None:
        """As ``Target`` says. The server seals the run after it has answered."""
        body = {"streams": [{"attempt": attempt, "rank": rank} for attempt, rank in sorted(streams)]}
        self._request("POST", f"{run_id}/end", json.dumps(body).encode(), _JSON)

    def pieces(self, run_id: str, name: str) -> Iterator[bytes]:
        """As ``Target`` says."""
        return whole_pieces(lambda offset: self._answer("GET", f"{run_id}/files/{name}/{offset}", None, _JSON))

    def close(self) -> None:
        """As ``Target`` says."""
        self._connection.close()

    def _request(self, method: str, path: str, body: bytes | None = None, media_type: str = _JSON) -> JsonObject:
        """Send one request and return the JSON object of its answer. Raises as ``_answer``."""
        document = _parsed(self._answer(method, path, body, media_type))
        if document is None:
            raise TargetAway(_NOT_OURS, where=self._address)
        return document

    def _answer(self, method: str, path: str, body: bytes | None, media_type: str) -> bytes:
        """Send one request and return the content of its answer.

        Raises:
            OutOfStep, PushRefused, TargetAway: As ``Target`` says.
        """
        try:
            try:
                status, content = self._exchange(method, path, body, media_type)
            except (OSError, http.client.HTTPException) as error:
                if not self._is_used or isinstance(error, TimeoutError):
                    raise
                # A server may close a connection that has been idle. All requests may be repeated.
                self._is_used = False
                status, content = self._exchange(method, path, body, media_type)
        except (OSError, http.client.HTTPException) as error:
            lost = LineLost(f"the target does not answer ({error or type(error).__name__})", where=self._address)
            lost.after_answers, self._has_answered = self._has_answered, False
            raise lost from None
        self._has_answered = self._is_used = True
        if status < 300:
            return content
        raise self._error_of(status, _parsed(content) or {})

    def _exchange(self, method: str, path: str, body: bytes | None, media_type: str) -> tuple[int, bytes]:
        headers = {**self._headers, "Content-Type": media_type, "Accept": _JSON}
        try:
            self._connection.request(method, self._prefix + quote(path), body, headers)
            with self._deadline(), closing(self._connection.getresponse()) as answer:
                content = answer.read(_MOST_ANSWER_BYTES)
                if not answer.isclosed():
                    self._connection.close()  # It has more to say.
            return answer.status, content
        except BaseException:
            self._connection.close()  # The next request connects anew.
            raise

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        """Bound the time of an answer. The timeout of a socket bounds only that of each part.

        Raises:
            TimeoutError: It took longer.
        """
        connection, is_over = self._connection.sock, threading.Event()

        def end() -> None:
            is_over.set()
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, http.client.HTTPException):
            if not is_over.is_set():
                raise
        finally:
            timer.cancel()
        if is_over.is_set():
            raise TimeoutError("timed out")

    def _error_of(self, status: int, problem: Mapping[str, Any]) -> TelemetryError:
        what = _words(problem.get("detail")) or f"the server answered with status {status}"
        fix = _words(problem.get("hint"))
        if 300 <= status < 400:
            fix = "A push follows no redirect; give the address that it leads to"
        if problem.get("code") == "out-of-step":
            return OutOfStep(what, where=self._address)
        if status < 400 or status >= 500 or status in (408, 425, 429):
            return TargetAway(what, where=self._address, fix=fix)
        if status == 401 and not fix:
            fix = "Give the token by --token-file or in STEPTAPE_TOKEN"
        elif status in (404, 405) and not fix:
            fix = "The server must be steptape's, of a version that takes runs"
        return PushRefused(what, where=self._address, fix=fix)


def _parsed(content: bytes) -> JsonObject | None:
    """Parse the JSON object of an answer; None if it is none."""
    try:
        document = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _words(text: object) -> str:
    """Return what a server says, short and without control characters."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_WORDS]) if isinstance(text, str) else ""


class ObjectTarget:
    """Object storage computes nothing, so it takes no chunks as a ``Target`` does: ``ObjectPush`` writes the objects.

    Args:
        address: ``s3://BUCKET[/PREFIX]``.

    Attributes:
        bucket: The prefix.

    Raises:
        TelemetryError: The address is none, or the extra ``s3`` is not installed.
    """

    def __init__(self, address: str) -> None:
        if find_spec("pyarrow") is None:
            what = "a push to object storage needs pyarrow, which is not installed"
            raise TelemetryError(what, fix="Install steptape with its dependencies, or push to a server")
        self.bucket = Bucket(address)
        self._copied = Manifest("")

    def state(self, run_id: str) -> RunState:
        """As ``Target`` says, as far as a copy of the run needs it."""
        with _translated():
            try:
                found = self.bucket.get(manifest_key(run_id))
            except FileNotFoundError:
                return RunState()
            assert found is not None
            self._copied = manifest = manifest_of(found.content, run_id)
        names = (*manifest.files, *(part.name for part in manifest.parts))
        is_live = bool(manifest.live) and found.heard_s < LEASE_S
        return RunState(run_sha256=self._digest(RUN_JSON), is_live=is_live, files=names)

    def pieces(self, run_id: str, name: str) -> Iterator[bytes]:
        """As ``Target`` says, of the run whose state was asked for last."""
        if name in self._copied.files:
            yield self._copied.files[name].encode()
            return
        part = next(part for part in self._copied.parts if part.name == name)
        sha256 = hashlib.sha256()
        with _translated():
            try:
                for piece in self.bucket.pieces(part_key(run_id, name, part.sha256)):
                    sha256.update(piece)
                    yield piece
            except FileNotFoundError:
                raise OutOfStep("the run has no such file any more", where=run_id, got=name) from None
        if sha256.hexdigest() != part.sha256:
            raise TargetAway("a part of the run is damaged at the target", where=run_id, got=name)

    def _digest(self, name: str) -> str:
        text = self._copied.files.get(name)
        return "" if text is None else hashlib.sha256(text.encode()).hexdigest()

    def close(self) -> None:
        """Do nothing: connections end with the process."""
