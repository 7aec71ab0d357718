"""Mirrors a store in object storage as a folder of runs in the user's cache, so that all readers read local files.

A run's folder holds its small files, and a symbolic link for each part into the cache of parts. A reader that opens a
part for the first time finds the link's target missing, and fetches it. All of this is derived and may be deleted. The
parts that were not read for longest go first.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ..errors import DamagedLog, NotWritten, PartsMissing, StoreAway, StoreNotFound, TelemetryError
from ..events import JsonObject
from ..run_folder import RUN_ID, is_journal, is_sealed, replace_file
from ..user_cache import mirrors_folder
from .bucket import CONNECTIONS, Bucket, Content, endpoint_here, plain_address
from .manifest import (
    BLOCK_BYTES,
    LEASE_S,
    MANIFESTS,
    SMALL_FILES,
    Manifest,
    PartInBlocks,
    manifest_key,
    manifest_of,
    part_key,
    run_id_in,
)

#: Seconds between two looks at a run that grows, and between two listings of the bucket, at the least.
_RUN_EVERY_S: Final = 1.0
_STORE_EVERY_S: Final = 2.0

#: A listing is used for this multiple of the time that it took.
_STORE_TIMES: Final = 10.0

#: Times that a part is read whose content is cut or wrong, and the pause after the first.
_MOST_TRIES: Final = 4
_PAUSE_S: Final = 0.1

#: The file that names the store of a mirror, and the one with what is known of a run's manifest.
MIRROR_JSON: Final = ".mirror.json"
_STATE: Final = ".manifest.json"

#: Beginnings of the names of parts that hold events.
_LOGS: Final = ("events-", "metrics-", "journal-")

#: Slashes in ``s3://BUCKET``.
_LEAST_SLASHES: Final = 2
_INDEX: Final = ".index.json"


#: Environment variable with the size limit of the cache in gigabytes, and its default.
LIMIT_VARIABLE: Final = "STEPTAPE_CACHE_GB"
_LIMIT_GB: Final = 20.0

#: A part is not evicted within so many seconds: one statement may need more parts than the limit allows.
_KEPT_S: Final = 600.0

#: Share of the limit that a process fetches between two looks at the size of the cache.
_LOOK_SHARE: Final = 0.05


class PartsCache:
    """The cached parts. Any number of processes may share the folder.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._limit_bytes = _limit_bytes()
        self._fetched_bytes = float("inf")

    def keep(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Write a part unless its content is another one; return whether it was written.

        Args:
            name: ``SHA256.SIZE``, which is its file name.
            pieces: Its content. No more is read than the size in its name.

        Raises:
            NotWritten: The cache has no room.
        """
        sha256, _, size = name.partition(".")
        self._make_room(int(size))
        digest, left = hashlib.sha256(), int(size)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.NamedTemporaryFile(dir=self.folder, prefix=".", delete=False)  # noqa: SIM115
        except OSError as error:
            raise _unwritten(self.folder, error) from None
        try:
            with file:
                for piece in pieces:
                    left -= len(piece)
                    if left < 0:
                        break
                    digest.update(piece)
                    try:
                        file.write(piece)
                        file.flush()
                    except OSError as error:
                        raise _unwritten(self.folder, error) from None
            is_whole = left == 0 and digest.hexdigest() == sha256
            if is_whole:
                os.replace(file.name, self.folder / name)
            return is_whole
        finally:
            Path(file.name).unlink(missing_ok=True)

    def _make_room(self, size_bytes: int) -> None:
        """Evict parts once the limit is exceeded. Looks at the size of the cache only now and then."""
        self._fetched_bytes += size_bytes
        if self._fetched_bytes < _LOOK_SHARE * self._limit_bytes:
            return
        self._fetched_bytes = 0.0
        found: list[tuple[float, int, str]] = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    found.append((max(status.st_atime, status.st_mtime), status.st_size, entry.path))
        held, oldest_s = sum(size for _, size, _ in found) + size_bytes, time.time() - _KEPT_S
        for read_s, size, path in sorted(found):
            if held <= self._limit_bytes or read_s > oldest_s:
                return
            Path(path).unlink(missing_ok=True)
            held -= size


def _limit_bytes() -> float:
    text = os.environ.get(LIMIT_VARIABLE)
    try:
        return 1e9 * (_LIMIT_GB if not text else max(0.0, float(text)))
    except ValueError:
        what = f"{LIMIT_VARIABLE} must be a number of gigabytes"
        raise TelemetryError(what, got=text) from None


def _unwritten(folder: Path, error: OSError) -> NotWritten:
    fix = f"Free some space, or set {LIMIT_VARIABLE} or STEPTAPE_CACHE"
    return NotWritten(f"the cache cannot be written ({error.strerror})", where=str(folder), fix=fix)


class Mirror:
    """The mirror of one store. Threads and processes may share its folder.

    Args:
        folder: Its folder.
        address: The store, as ``s3://BUCKET[/PREFIX]``.
        endpoint: URL of the service; empty for AWS.
    """

    #: Whether this process leaves the bucket to its parent: it asks for parts by ``PartsMissing``.
    is_fed = False

    def __init__(self, folder: Path, address: str, endpoint: str) -> None:
        self.folder, self.address, self.endpoint = folder, address, endpoint
        self.problems: list[tuple[Path, TelemetryError]] = []
        self._parts = PartsCache(folder.parent.parent / "parts")
        self._again_s = 0.0
        self._run_again_s: dict[str, float] = {}
        self._threads = threading.RLock()

    @functools.cached_property
    def bucket(self) -> Bucket:
        """The bucket. Connects at the first request."""
        return Bucket(self.address, self.endpoint)

    @property
    def is_empty(self) -> bool:
        """Whether the store has no run."""
        return not self._index()

    def refresh(self, *, at_once: bool = False) -> None:
        """Bring the folder to the state of the bucket, unless that was done just now.

        Args:
            at_once: Whether to look in any case.

        Raises:
            StoreNotFound, StoreAway: The bucket cannot be listed, or a manifest not be read.
        """
        is_fresh = time.monotonic() < self._again_s and (self.folder / MIRROR_JSON).exists()
        if self.is_fed or (is_fresh and not at_once):
            return
        with self._threads, self._turn():
            began_s = time.monotonic()
            known = self._index()
            found = {run_id: stored for stored in self.bucket.list(MANIFESTS) if (run_id := run_id_in(stored.key))}
            changed = [run_id for run_id, stored in found.items() if known.get(run_id) != stored.etag]
            self.problems = []
            with ThreadPoolExecutor(CONNECTIONS) as threads:
                etags = dict(zip(changed, threads.map(self._fetch_run, changed), strict=True))
            for name in (entry.name for entry in os.scandir(self.folder)):
                if RUN_ID.fullmatch(name) and name not in found:
                    self._drop(name)
            current = {run_id: etags.get(run_id, stored.etag) for run_id, stored in found.items()}
            if (index := {run_id: etag for run_id, etag in current.items() if etag}) != known:
                replace_file(self.folder / _INDEX, json.dumps(index).encode(), is_durable=False)
            took_s = time.monotonic() - began_s
            self._again_s = time.monotonic() + max(_STORE_EVERY_S, _STORE_TIMES * took_s)

    def refresh_run(self, run_id: str) -> None:
        """Bring one run's folder to the state of the bucket.

        Raises:
            TelemetryError: The manifest cannot be read.
        """
        with self._threads, self._turn():
            known = self._state(run_id).get("etag", "")
            try:
                content = self.bucket.get(manifest_key(run_id), known)
            except FileNotFoundError:
                self._drop(run_id)
                return
            if content is not None:
                self._apply(manifest_of(content.content, run_id), content)

    def freshen(self, run_id: str) -> None:
        """Bring a run that grows, or that is missing here, up to date. Raises as ``refresh_run``."""
        state = self._state(run_id)
        if self.is_fed or (state and not state["live"]):
            return
        now_s = time.monotonic()
        if not state or now_s >= self._run_again_s.get(run_id, 0.0):
            self._run_again_s[run_id] = now_s + _RUN_EVERY_S
            self.refresh_run(run_id)

    def ensure(self, run_id: str, etag: str) -> Path:
        """Return the folder of a run, brought up to date if it is not the one with this etag."""
        if self._state(run_id).get("etag") != etag:
            self.refresh_run(run_id)
        return self.folder / run_id

    def etag(self, run_id: str) -> str:
        """Return the etag of the manifest that a run's folder shows; empty without one."""
        return str(self._state(run_id).get("etag", ""))

    def is_live(self, run_id: str) -> bool:
        """Whether a pusher has lately said that a run has a writer."""
        state = self._state(run_id)
        return bool(state) and bool(state["live"]) and time.time() < state["heard_s"] + LEASE_S

    def object_of(self, path: Path) -> str:
        """Return the address of the object that a run's folder, or a file in it, comes from."""
        key = _part_key(path) if path.is_symlink() else manifest_key(path.relative_to(self.folder).parts[0])
        return f"{self.address}/{key}"

    def fetch(self, paths: Iterable[Path]) -> None:
        """Fetch parts that are not in the cache.

        Args:
            paths: Paths in the folders of runs.

        Raises:
            FileNotFoundError: The run has replaced a part meanwhile.
            DamagedLog: A part is missing in the bucket, or its content is wrong.
            StoreNotFound, StoreAway: It cannot be read.
            NotWritten: The cache has no room.
            PartsMissing: This process leaves the bucket to its parent.
        """
        missing = [path for path in paths if not path.exists()]
        if missing and self.is_fed:
            error = PartsMissing("parts of runs are not in the cache", where=self.address)
            error.paths = tuple(missing)
            raise error
        if len(missing) == 1:
            self._fetch_one(missing[0])
        elif missing:
            with ThreadPoolExecutor(CONNECTIONS) as threads:
                list(threads.map(self._fetch_one, missing))

    def fetch_logs(self, run_ids: Iterable[str]) -> None:
        """Fetch the events of runs. What is read by blocks, or cannot be fetched now, is left to those who read it."""
        paths: list[Path] = []
        for folder in (self.folder / run_id for run_id in run_ids):
            blocks = self._state(folder.name).get("blocks", {})
            with contextlib.suppress(OSError):
                found = [folder / name for name in os.listdir(folder) if name.startswith(_LOGS)]
                paths += [path for path in found if not blocks or _digest_of(path) not in blocks]
        with contextlib.suppress(TelemetryError, FileNotFoundError):
            self.fetch(paths)

    def in_blocks(self, path: Path) -> PartInBlocks | None:
        """Open a part that is read by blocks; None for one that must be fetched whole."""
        sha256, _, size = os.path.basename(os.readlink(path)).partition(".")
        digests = () if self.is_fed else self._state(path.parent.name).get("blocks", {}).get(sha256, ())
        last = int(size) - (len(digests) - 1) * BLOCK_BYTES
        names = [f"{digest}.{BLOCK_BYTES}" for digest in digests[:-1]] + [f"{digest}.{last}" for digest in digests[-1:]]
        read = functools.partial(self._blocks, path, names)
        return PartInBlocks(path, names, read, self._fetch_one) if names else None

    def _blocks(self, path: Path, names: Sequence[str], asked: range) -> bytes:
        """Return some blocks of a part. Fetches each series of those that are not in the cache by one request."""
        folder = self._parts.folder
        missing = [index for index in asked if not (folder / names[index]).exists()]
        for _, series in itertools.groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
            wanted = [index for _, index in series]
            self._fetch_one(path, names[wanted[0] : wanted[-1] + 1], wanted[0] * BLOCK_BYTES)
        return b"".join((folder / names[index]).read_bytes() for index in asked)

    def _kept(self, key: str, names: Sequence[str], start: int) -> bool:
        """Fetch some blocks into the cache; return whether all are what their names say."""
        sizes = [int(name.partition(".")[2]) for name in names]
        content = io.BytesIO(b"".join(self.bucket.pieces(key, slice(start, start + sum(sizes)))))
        return all(self._parts.keep(name, [content.read(size)]) for name, size in zip(names, sizes, strict=True))

    def _fetch_one(self, path: Path, blocks: Sequence[str] = (), start: int = 0) -> None:
        """Fetch a part, or some of its blocks."""
        target = os.readlink(path)
        name, key = os.path.basename(target), _part_key(path)
        where, pause_s = f"{self.address}/{key}", _PAUSE_S
        for attempt in range(1, _MOST_TRIES + 1):
            try:
                if self._kept(key, blocks, start) if blocks else self._parts.keep(name, self.bucket.pieces(key)):
                    return
            except FileNotFoundError:
                self.refresh_run(path.parent.name)
                if not os.path.lexists(path) or os.readlink(path) != target:
                    raise FileNotFoundError(2, "the run has replaced this part", str(path)) from None
                what = "the bucket lacks a part of the run"
                raise DamagedLog(what, where=where, fix="Push the run again") from None
            except StoreAway:
                if attempt == _MOST_TRIES:
                    raise
            time.sleep(pause_s)
            pause_s *= 2
        what = "the content of this part is not the one that the manifest names"
        raise DamagedLog(what, where=where, fix="Delete the run's manifest there, and push the run again")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock that admits one writer of the folder at a time. Makes the folder anew if it was deleted."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / MIRROR_JSON).exists():
                document = {"format": 1, "address": self.address, "endpoint": self.endpoint}
                replace_file(self.folder / MIRROR_JSON, json.dumps(document).encode(), is_durable=False)
            with open(self.folder / ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except FileNotFoundError:
            raise
        except OSError as error:
            what = f"the cache cannot be written ({error.strerror})"
            raise NotWritten(what, where=str(self.folder), fix="Set STEPTAPE_CACHE to a folder with room") from None

    def _fetch_run(self, run_id: str) -> str:
        """Fetch and apply a manifest, and return its etag; empty if it is damaged: the next look tries again."""
        try:
            content = self.bucket.get(manifest_key(run_id))
            assert content is not None
            self._apply(manifest_of(content.content, run_id), content)
        except FileNotFoundError:
            self._drop(run_id)  # It was deleted after the listing.
            return ""
        except StoreNotFound:
            raise
        except TelemetryError as error:
            self._drop(run_id)
            self.problems.append((self.folder / run_id, error))
            return ""
        return content.etag

    def _apply(self, manifest: Manifest, content: Content) -> None:
        """Bring a run's folder to a manifest, in an order in which every reader reads a whole run."""
        folder = self.folder / manifest.run_id
        folder.mkdir(exist_ok=True)
        parts = {part.name: f"../../../parts/{part.sha256}.{part.size_bytes}" for part in manifest.parts}
        for name in SMALL_FILES[:1]:
            _write_small(folder, name, manifest.files.get(name))
        for name, target in parts.items():
            _link(folder / name, target)
        for name in SMALL_FILES[1:]:
            _write_small(folder, name, manifest.files.get(name))
        for entry in list(os.scandir(folder)):
            if (is_journal(entry.name) or is_sealed(entry.name)) and entry.name not in parts:
                os.unlink(entry)
        # Readers cache what they know of a folder by its times: each manifest has its own.
        written_ns = int((time.time() - content.heard_s) * 1e9)
        changed_ns = written_ns - written_ns % 10**9 + int(hashlib.sha256(content.content).hexdigest(), 16) % 10**9
        state = {"etag": content.etag, "live": bool(manifest.live), "heard_s": written_ns / 1e9}
        state |= {"blocks": manifest.blocks} if manifest.blocks else {}
        replace_file(folder / _STATE, json.dumps(state).encode(), is_durable=False)
        for path in (folder / SMALL_FILES[-1], folder):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, ns=(changed_ns, changed_ns))

    def _drop(self, run_id: str) -> None:
        """Remove a run, so that no reader takes a half of it for a run."""
        doomed = tempfile.mkdtemp(prefix=".deleted-", dir=self.folder)
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.folder / run_id, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def _index(self) -> dict[str, str]:
        """Return the etags of the manifests that the folders show."""
        document = _json_in(self.folder / _INDEX)
        return {name: etag for name, etag in document.items() if (self.folder / name / _STATE).exists()}

    def _state(self, run_id: str) -> JsonObject:
        return _json_in(self.folder / run_id / _STATE)


#: The mirrors that this process uses. Each is known by its folder, even if that is deleted.
_MIRRORS: Final[dict[Path, Mirror]] = {}


def open_mirror(address: str, *, endpoint: str | None = None) -> Mirror:
    """Return the mirror of a store, brought up to date.

    Args:
        address: ``s3://BUCKET[/PREFIX]``.
        endpoint: URL of the service; by default the one in the environment.

    Raises:
        StoreNotFound, StoreAway: The store cannot be read.
        TelemetryError: The extra ``s3`` is not installed, or there is no folder for the mirror.
    """
    mirror = mirror_for(address, endpoint)
    mirror.refresh(at_once=True)
    return mirror


def folder_of(address: str) -> Path:
    """Return the folder of a store, or of the run at ``s3://BUCKET/PREFIX/RUN_ID``. Raises as ``open_mirror``."""
    mirror = open_mirror(address)
    store, _, name = mirror.address.rpartition("/")
    if not mirror.is_empty or store.count("/") < _LEAST_SLASHES or not RUN_ID.fullmatch(name):
        return mirror.folder
    run = mirror_for(store).ensure(name, "")
    return run if run.is_dir() else mirror.folder


def mirror_for(address: str, endpoint: str | None = None) -> Mirror:
    """Return the mirror of a store as it is here. Raises as ``open_mirror``."""
    address, mirrors = plain_address(address), mirrors_folder()
    endpoint = endpoint_here() if endpoint is None else endpoint
    if mirrors is None:
        raise TelemetryError("a store in object storage needs a cache", fix="Set STEPTAPE_CACHE to a folder")
    name = hashlib.sha256(f"{endpoint}\0{address}".encode()).hexdigest()[:32]
    return _mirror(mirrors / name, address, endpoint)


def _mirror(folder: Path, address: str, endpoint: str) -> Mirror:
    return _MIRRORS.setdefault(folder, Mirror(folder, address, endpoint))


def known_mirror(folder: Path) -> Mirror:
    """Return the mirror in a folder of the cache.

    Raises:
        StoreNotFound: Its file was deleted before this process has used it.
    """
    try:
        document = _json_in(folder / MIRROR_JSON)
        return _mirror(folder, document["address"], document["endpoint"])
    except KeyError:
        known = _MIRRORS.get(folder)
        if known is None:
            raise StoreNotFound("this copy of a store is gone", where=str(folder), fix="Open s3://... again") from None
        return known


def _part_key(path: Path) -> str:
    return part_key(path.parent.name, path.name, _digest_of(path))


def _digest_of(path: Path) -> str:
    return os.path.basename(os.readlink(path)).partition(".")[0]


def _json_in(path: Path) -> JsonObject:
    """Return the object in a file; empty if it is missing or damaged."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write_small(folder: Path, name: str, text: str | None) -> None:
    if text is None:
        (folder / name).unlink(missing_ok=True)
    elif (content := text.encode()) != _content(folder / name):
        replace_file(folder / name, content, is_durable=False)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _link(path: Path, target: str) -> None:
    """Make a symbolic link, or replace it."""
    with contextlib.suppress(FileNotFoundError):
        if os.readlink(path) == target:
            return
    aside = path.with_name(f".{path.name}.tmp")
    aside.unlink(missing_ok=True)
    os.symlink(target, aside)
    os.replace(aside, path)
