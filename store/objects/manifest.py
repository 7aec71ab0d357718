"""Encodes and checks manifests. A manifest is the one mutable object of a run in object storage.

It holds the run's small files, and names the immutable parts that its log consists of: Parquet files and, while the run
grows, chunks. FORMAT.md defines it. It has a digest of each block of a large part: a reader of a few columns fetches
those blocks alone, and a block is checked, cached and evicted like a part.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import DamagedLog, require_version
from ..run_folder import (
    ANNOTATIONS,
    COLUMNS_JSON,
    DIGESTS_JSON,
    MOST_SMALL_BYTES,
    RUN_ID,
    RUN_JSON,
    SUMMARY_JSONL,
    Listing,
    Stream,
    is_journal,
    is_sealed,
    listing_of,
)

FORMAT: Final = 1

_AGAIN: Final = "Use the steptape that pushed it, or delete the run there and push it again"

#: The small files that a manifest may hold, in the order in which a reader may get them.
SMALL_FILES: Final = (COLUMNS_JSON, SUMMARY_JSONL, DIGESTS_JSON, ANNOTATIONS, RUN_JSON)

#: Seconds after its pusher's last word during which a run counts as live. The pusher's words come more often.
LEASE_S: Final = 60.0

#: Where manifests and parts lie below the prefix of a store.
MANIFESTS: Final = "runs/"
PARTS: Final = "parts/"

_SHA256: Final = re.compile("[0-9a-f]{64}")
_MOST_INT64: Final = 2**63 - 1


#: Size of a part from which its pusher takes digests of its blocks.
LEAST_BYTES: Final = 16 << 20

#: Size of a block, but for the last. A column of 1,000 has about 32 KiB in each row group of 32 MiB.
BLOCK_BYTES: Final = 1 << 18


def block_digests(path: Path) -> tuple[str, ...]:
    """Return the SHA-256 of each block of a large file, in hexadecimal; empty for a smaller file."""
    if path.stat().st_size < LEAST_BYTES:
        return ()
    with open(path, "rb") as file:
        return tuple(hashlib.sha256(block).hexdigest() for block in iter(lambda: file.read(BLOCK_BYTES), b""))


class PartInBlocks(io.RawIOBase):
    """A part as a file whose blocks are fetched when they are read. Fetches the whole part once half of it was read.

    Args:
        path: Where the whole part appears.
        names: The file name of each block in the cache: ``SHA256.SIZE``.
        read: Returns the content of some consecutive blocks, given their indices.
        fetch: Fetches the whole part.
    """

    def __init__(
        self, path: Path, names: Sequence[str], read: Callable[[range], bytes], fetch: Callable[[Path], None]
    ) -> None:
        self._path, self._read, self._fetch = path, read, fetch
        self._count = len(names)
        self._size = sum(int(name.partition(".")[2]) for name in names)
        self._at, self._seen = 0, set[int]()

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes, or fewer at the end; all if negative."""
        start, end = self._at, self._size if size < 0 else min(self._at + size, self._size)
        if end <= start:
            return b""
        self._at = end
        blocks = range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1)
        self._seen.update(blocks)
        if 2 * len(self._seen) <= self._count:
            before = blocks.start * BLOCK_BYTES
            return self._read(blocks)[start - before : end - before]
        self._fetch(self._path)
        with open(self._path, "rb") as file:
            file.seek(start)
            return file.read(end - start)


class LogPart(NamedTuple):
    """An immutable part of a run's log.

    Attributes:
        name: Its file name in a run's folder.
        sha256: Digest of its content, in hexadecimal.
        size_bytes: Its size.
        next_seq: The ``seq`` after its last event, if it is a chunk; 0 for a Parquet file, whose name has it.
    """

    name: str
    sha256: str
    size_bytes: int
    next_seq: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        run_id: The run.
        files: The content of its small files.
        parts: The parts of its log.
        live: The streams, as (attempt, rank), that have a writer.
        beat: Counts the signs of life of a run without new events.
        blocks: The digests of the blocks of large parts, by the digest of the part.
    """

    run_id: str
    files: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[LogPart, ...] = ()
    live: frozenset[Stream] = frozenset()
    beat: int = 0
    blocks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def listing(self) -> Listing:
        """Its parts as the files of a folder. Their paths are names."""
        return _listing(part.name for part in self.parts)

    def next_seq(self, stream: Stream) -> int:
        """Return the ``seq`` of the next event of a stream that it lacks."""
        listing = self.listing
        names = {journal.path.name for journal in listing.journals if journal.stream == stream}
        ends = [part.next_seq for part in self.parts if part.name in names]
        return max([listing.sealed_until("events", stream), *ends])

    def to_json(self) -> bytes:
        """Encode it."""
        document = {
            "format": FORMAT,
            "run_id": self.run_id,
            "beat": self.beat,
            "live": [{"attempt": attempt, "rank": rank} for attempt, rank in sorted(self.live)],
            "parts": [_part_json(part) for part in self.parts],
            "files": dict(self.files),
            **({"blocks": dict(self.blocks)} if self.blocks else {}),
        }
        return (json.dumps(document, indent=1) + "\n").encode()


def manifest_key(run_id: str) -> str:
    """Return the key of a run's manifest, below the prefix."""
    return f"{MANIFESTS}{run_id}.json"


def part_key(run_id: str, name: str, sha256: str) -> str:
    """Return the key of a part, below the prefix. It holds the digest: a key has the same content for good."""
    return f"{PARTS}{run_id}/{sha256}/{name}"


def part_in(key: str) -> tuple[str, str]:
    """Return the name and the digest of a part from its key; empty texts if it is no such key."""
    *_, sha256, name = ["", "", *key.split("/")]
    return (name, sha256) if _SHA256.fullmatch(sha256) and (is_journal(name) or is_sealed(name)) else ("", "")


def run_id_in(key: str) -> str | None:
    """Return the run of a manifest's key below the prefix; None if it is no manifest."""
    name = key.removeprefix(MANIFESTS).removesuffix(".json")
    return name if manifest_key(name) == key and RUN_ID.fullmatch(name) else None


def is_redundant(name: str, manifest: Manifest) -> bool:
    """Whether Parquet files of a manifest hold everything that a part of this name can hold."""
    own, listing = _listing([name]), manifest.listing
    if own.journals:
        journal = own.journals[0]
        return journal.first < listing.sealed_until("events", journal.stream)
    (file,) = own.sealed
    return any(other.holds(file) or other.path == file.path for other in listing.sealed)


def manifest_of(content: bytes, run_id: str) -> Manifest:
    """Parse a manifest. Trusts no name, number or digest in it.

    Raises:
        DamagedLog: It is not the manifest of this run.
        UnsupportedVersion: The manifest has another format.
    """
    try:
        document = json.loads(content)
        require_version("manifest format", document["format"], FORMAT, where=run_id, fix=_AGAIN)
        if document["run_id"] != run_id:
            raise ValueError("it belongs to another run")
        parts = tuple(_part_of(entry) for entry in document["parts"])
        files = {name: _text(document["files"][name]) for name in SMALL_FILES if name in document["files"]}
        live = frozenset((_number(entry["attempt"]), _number(entry["rank"])) for entry in document["live"])
        if len({part.name for part in parts}) < len(parts):
            raise ValueError("it names a part twice")
        blocks = {part.sha256: _blocks_of(part, document.get("blocks", {})) for part in parts}
        known = {sha256: digests for sha256, digests in blocks.items() if digests}
        return Manifest(run_id, files, parts, live, _number(document["beat"]), known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"the run's manifest cannot be read ({type(error).__name__}: {error})"
        raise DamagedLog(what, where=run_id, fix="Delete it, and push the run again") from None


def _part_json(part: LogPart) -> dict[str, object]:
    document = part._asdict()
    return document if is_journal(part.name) else {key: document[key] for key in document if key != "next_seq"}


def _part_of(entry: Mapping[str, Any]) -> LogPart:
    name, sha256 = entry["name"], entry["sha256"]
    if not isinstance(name, str) or not (is_journal(name) or is_sealed(name)):
        raise ValueError(f"{name!r} is not the name of a part")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"the digest of {name} is none")
    return LogPart(name, sha256, _number(entry["size_bytes"]), _number(entry["next_seq"]) if is_journal(name) else 0)


def _blocks_of(part: LogPart, blocks: Mapping[str, Any]) -> tuple[str, ...]:
    digests = tuple(blocks.get(part.sha256, ()))
    if digests and len(digests) != -(-part.size_bytes // BLOCK_BYTES):
        raise ValueError(f"{part.name} has another number of blocks")
    if not all(isinstance(digest, str) and _SHA256.fullmatch(digest) for digest in digests):
        raise ValueError(f"the digest of a block of {part.name} is none")
    return digests


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_INT64:
        raise ValueError(f"{value!r} is not a number of events or bytes")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_SMALL_BYTES:
        raise ValueError("a file is not a text, or too large")
    value.encode()
    return value


def _listing(names: Iterable[str]) -> Listing:
    return listing_of(Path(), names)
