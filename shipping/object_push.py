"""Pushes one run to object storage: immutable parts first, then the manifest that names them, then what it replaces.

Sealed files go as they are. The unsealed rest goes as chunks, and the last chunk is replaced by a longer one until it
has some size. So a reader sees a whole run at each moment, whenever a pusher dies, and nothing is sealed twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..store.columns import Columns, columns_json, columns_of, read_columns
from ..store.errors import DamagedLog, StoreAway, StoreNotFound, UnsupportedVersion
from ..store.objects.bucket import Bucket, ObjectChanged
from ..store.objects.manifest import (
    PARTS,
    LogPart,
    Manifest,
    block_digests,
    is_redundant,
    manifest_key,
    manifest_of,
    part_in,
    part_key,
)
from ..store.objects.mirror_access import fetch
from ..store.parquet.digests import FORMAT, Digests, digests_of, read_digests
from ..store.run_folder import (
    ANNOTATIONS,
    COLUMNS_JSON,
    DIGESTS_JSON,
    RUN_JSON,
    SUMMARY_JSONL,
    Listing,
    Stream,
    is_journal,
    journal_name,
    list_files,
    read_file,
)
from ..store.run_info import RunInfo, run_info_of
from .push_protocol import (
    CHUNK_BYTES,
    MACHINE_WITH_ALL,
    OTHER_ID,
    PushProgress,
    PushRefused,
    RunConflict,
    StreamDigest,
    TargetAway,
    attempt_states,
    check_recording,
    header_of,
    is_news,
    recording_in,
)
from .run_source import RunSource, check_equal, why_unsealed

#: Seconds between two commits of a run that grows: each is two requests or more, which cost money.
COMMIT_EVERY_S: Final = 5.0

#: Seconds between two signs of life of a run without new events. A reader's lease is longer.
_BEAT_EVERY_S: Final = 15.0

#: Size limit of a summary in a manifest, which is written at each commit. A reader computes a larger one itself.
_MOST_SUMMARY_BYTES: Final = 1 << 18

#: A chunk below this size is replaced by a longer one, so that a slow run does not end in thousands of chunks.
_LEAST_CHUNK_BYTES: Final = 1 << 18

#: Seconds after which a look puts no more parts.
_LOOK_S: Final = 5.0

#: Times that a commit is tried while other pushers commit, or a sealer replaces files.
_MOST_TRIES: Final = 10


class _LookEnded(Exception):
    """A look has taken long enough; the parts that it has put are known to the next one."""


class ObjectPush:
    """The push of one run to object storage, look by look.

    Args:
        folder: The run's folder.
        bucket: Where it goes.
        rank: Push only the streams of this rank. ``run.json`` goes with rank 0.
    """

    def __init__(self, folder: Path, bucket: Bucket, *, rank: int | None = None) -> None:
        self._source, self._bucket, self._rank = RunSource(folder, rank), bucket, rank
        self._known: tuple[Manifest, str] | None = None
        self._sha256: dict[tuple[str, int, int], str] = {}
        self._blocks: dict[str, tuple[str, ...]] = {}
        self._put_parts: set[LogPart] = set()
        self._compared: set[Stream] = set()
        self._committed_s = self._again_s = float("-inf")
        self._until_s = 0.0
        self.run_id = self._source.run_id

    def close(self) -> None:
        """Close the run's files."""
        self._source.close()

    def look(self) -> PushProgress:
        """Send what is new, and the end of the run if it has ended.

        A run that grows is looked at every few seconds; in between, this does nothing.

        Raises:
            TargetAway: The target takes nothing now. Nothing is lost: the next look continues.
            PushRefused: The target refuses the run.
            TelemetryError: The run cannot be read.
        """
        # A run whose writers are gone before everything else is read does not change any more.
        live = self._source.live_streams()
        if live and time.monotonic() < self._again_s:
            return PushProgress(0, is_live=True, is_done=False)
        why = "" if live else why_unsealed(self._source.folder)
        self._until_s = time.monotonic() + _LOOK_S
        try:
            with _translated():
                events, manifest = self._commit(frozenset(live))
                if not live:
                    self._sweep(manifest)
        except _LookEnded:
            return PushProgress(0, is_live=bool(live), is_done=False, is_whole=False)
        self._again_s = time.monotonic() + COMMIT_EVERY_S
        return PushProgress(events, is_live=bool(live), is_done=not live, uncompared=why)

    def _commit(self, live: frozenset[Stream]) -> tuple[int, Manifest]:
        """Bring the target to the state of the folder; return the number of new events, and the manifest."""
        for _ in range(_MOST_TRIES):
            old, etag = self._known or self._read()
            self._known = old, etag
            try:
                new = self._planned(old, live)
                etag = self._put(old, new, etag)
            except ObjectChanged:
                # Another pusher was faster, and may have deleted what its manifest does not name.
                self._known = None
                self._put_parts.clear()
                continue
            except FileNotFoundError:
                continue  # A sealer has replaced a file; the next listing has the new ones.
            self._known = new, etag
            gone = set(old.parts) - set(new.parts)
            self._put_parts.clear()
            with contextlib.suppress(StoreNotFound):
                self._bucket.delete([part_key(self.run_id, part.name, part.sha256) for part in gone])
            return sum(new.next_seq(stream) - old.next_seq(stream) for stream in self._source.streams), new
        raise TargetAway("the run changes faster than it can be pushed", where=self.run_id)

    def _read(self) -> tuple[Manifest, str]:
        """Return the manifest at the target and its etag; an empty one without."""
        try:
            found = self._bucket.get(manifest_key(self.run_id))
        except FileNotFoundError:
            return Manifest(self.run_id), ""
        assert found is not None
        try:
            return manifest_of(found.content, self.run_id), found.etag
        except (DamagedLog, UnsupportedVersion) as error:
            raise PushRefused(error.what, where=self.run_id, got=error.got, fix=error.fix) from None

    def _put(self, old: Manifest, new: Manifest, etag: str) -> str:
        """Replace the manifest, if it has changed or a sign of life is due, and return its etag."""
        if new == old:
            if not new.live or time.monotonic() < self._committed_s + _BEAT_EVERY_S:
                return etag
            new = replace(new, beat=new.beat + 1)
        content = new.to_json()
        etag = self._bucket.put(manifest_key(self.run_id), content, hashlib.sha256(content).hexdigest(), etag)
        self._committed_s = time.monotonic()
        return etag

    def _planned(self, old: Manifest, live: frozenset[Stream]) -> Manifest:
        """Put the parts that the target lacks, and return the manifest that names them."""
        # Before the events: the end of an attempt follows its last event.
        content, info = self._source.read_run()
        listing = list_files(self._source.folder)
        digests = read_digests(self._source.folder)
        self._source.open_streams(listing)
        for frames in self._source.streams.values():
            frames.identify(info, listing)
        files = dict(old.files) | self._papers(old, content, info)
        self._check_streams(old, info)
        columns, are_shared = self._columns(old)
        kept = (
            Digests()
            if DIGESTS_JSON not in old.files
            else digests_of(old.files[DIGESTS_JSON].encode(), self._source.folder)
        )
        own = {stream: digest for stream, digest in digests.logs.items() if stream in self._source.streams}
        parts = [part for part in old.parts if _stream_of(part) not in self._source.streams]
        for stream in sorted(self._source.streams):
            held = [part for part in old.parts if _stream_of(part) == stream]
            if stream in own and self._is_there(stream, old, kept, listing):
                parts += held
            else:
                sealed = self._sealed(stream, listing, held) if are_shared else []
                parts += sealed + self._chunks(stream, listing, held, sealed, is_live=stream in live)
        if columns.by_metric:
            files[COLUMNS_JSON] = columns_json(columns).decode()
        there = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
        there |= {part.name: part.sha256 for part in parts}
        own_files = {**kept.files, **digests.files}
        merged = Digests(
            {**kept.logs, **(own if are_shared else {})},
            {**kept.attempts, **digests.attempts},
            {name: digest for name, digest in own_files.items() if there.get(name) == digest},
        )
        if merged != kept:
            files[DIGESTS_JSON] = merged.to_json().decode()
        self._check_grown(old, parts)
        others = {stream for stream in old.live if self._rank not in (None, stream[1])}
        blocks = {**old.blocks, **self._blocks}
        blocks = {part.sha256: blocks[part.sha256] for part in parts if blocks.get(part.sha256)}
        return replace(old, files=files, parts=tuple(sorted(parts)), live=frozenset(others | live), blocks=blocks)

    def _check_grown(self, old: Manifest, parts: list[LogPart]) -> None:
        """Raise PushRefused if the target has events that this folder lacks."""
        new = replace(old, parts=tuple(parts))
        for stream in self._source.streams:
            if new.next_seq(stream) < old.next_seq(stream):
                what = f"the target has more events of attempt {stream[0]}, rank {stream[1]} than this folder"
                raise PushRefused(what, where=self.run_id, fix=MACHINE_WITH_ALL)

    def _check_streams(self, old: Manifest, info: RunInfo | None) -> None:
        """Check that the streams continue those of the target: positions alone do not say so.

        Raises:
            PushRefused, RunConflict: They are of another recording.
        """
        if info is not None:
            return  # ``_papers`` has compared the attempts.
        there = old.files.get(RUN_JSON)
        known = attempt_states(None if there is None else run_info_of(there.encode(), self._source.folder))
        for stream, frames in self._source.streams.items():
            attempt = next((each for each in known if each.attempt == stream[0]), None)
            if attempt is not None and frames.recording.recording:
                check_recording(self.run_id, attempt, frames.recording.recording)
                continue
            part = next((part for part in old.parts if _stream_of(part) == stream), None)
            if part is None or stream in self._compared:
                continue
            # Nobody here seals the stream: a sealed part is of another recording.
            stored = self._bucket.get(part_key(self.run_id, part.name, part.sha256)) if is_journal(part.name) else None
            if stored is None or recording_in(header_of(stored.content)) != frames.recording:
                what = (
                    f"rank {stream[1]} of attempt {stream[0]} at the target is of another recording, by its first event"
                )
                raise PushRefused(what, where=self.run_id, fix=OTHER_ID)
            self._compared.add(stream)

    def _papers(self, old: Manifest, content: bytes, info: RunInfo | None) -> dict[str, str]:
        """Return ``run.json`` and the notes, which come from the machine of rank 0."""
        found: dict[str, str] = {}
        if info is not None:
            before = old.files.get(RUN_JSON)
            if is_news(None if before is None else run_info_of(before.encode(), self._source.folder), info):
                found[RUN_JSON] = content.decode()
        if self._rank:
            return {}
        if (notes := self._source.read_notes()) is not None:
            found[ANNOTATIONS] = notes
        with contextlib.suppress(OSError, DamagedLog):
            found[SUMMARY_JSONL] = read_file(self._source.folder, SUMMARY_JSONL, _MOST_SUMMARY_BYTES).decode()
        return found

    def _columns(self, old: Manifest) -> tuple[Columns, bool]:
        """Return the columns of the run at the target, and whether this folder's Parquet files fit to them.

        Machines without a shared disk order their metrics each for itself.
        """
        own = read_columns(self._source.folder)
        text = old.files.get(COLUMNS_JSON)
        merged = Columns() if text is None else columns_of(text.encode(), self._source.folder)
        merged.extend(own.by_metric)
        wide = merged.wide().by_metric
        return merged, own.wide().by_metric.items() <= wide.items() and not wide.keys() & set(own.long())

    def _is_there(self, stream: Stream, old: Manifest, kept: Digests, listing: Listing) -> bool:
        """Whether the target has the whole sealed log of a stream.

        Raises:
            PushRefused: It has another one.
        """
        following = listing.sealed_until("events", stream)
        theirs = kept.logs.get(stream)
        if any(journal.stream == stream for journal in (*listing.journals, *old.listing.journals)) or theirs is None:
            return False
        if theirs.last_seq != following - 1 or old.next_seq(stream) != following:
            return False
        check_equal(self._source.folder, {stream: following}, {stream: StreamDigest(*theirs, FORMAT)})
        return True

    def _sealed(self, stream: Stream, listing: Listing, held: list[LogPart]) -> list[LogPart]:
        """Put the Parquet files of a stream that the target lacks, and return all of them."""
        parts = []
        paths = [file.path for file in listing.sealed if file.stream == stream]
        fetch(paths)
        for path in paths:
            status = path.stat()
            place = path.name, status.st_size, status.st_mtime_ns
            if place not in self._sha256:
                with open(path, "rb") as file:
                    self._sha256[place] = sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                self._blocks[sha256] = block_digests(path)
            part = LogPart(path.name, self._sha256[place], status.st_size)
            if self._lacks(part, held):
                self._bucket.put_file(part_key(self.run_id, part.name, part.sha256), path, part.sha256)
                self._add_put(part)
            parts.append(part)
        return parts

    def _chunks(
        self, stream: Stream, listing: Listing, held: list[LogPart], sealed: list[LogPart], *, is_live: bool
    ) -> list[LogPart]:
        """Put what follows the Parquet files of a stream as chunks, and return all chunks that count."""
        seq = Manifest(self.run_id, parts=tuple(sealed)).next_seq(stream)
        chunks = sorted(part for part in held if is_journal(part.name) and part.next_seq > seq)
        if chunks and chunks[-1].size_bytes < _LEAST_CHUNK_BYTES:
            shortest = chunks.pop()
            seq = max(seq, int(shortest.name.rpartition("-")[2]))
        seq = max([seq, *(part.next_seq for part in chunks)])
        for content, following in self._source.streams[stream].chunks(seq, listing, CHUNK_BYTES, is_live=is_live):
            name, sha256 = journal_name(*stream, header_of(content)["first_seq"]), hashlib.sha256(content).hexdigest()
            chunk = LogPart(name, sha256, len(content), following)
            if self._lacks(chunk, held):
                self._bucket.put(part_key(self.run_id, name, sha256), content, sha256)
                self._add_put(chunk)
            chunks.append(chunk)
        self._source.streams[stream].drop_until(seq)
        return chunks

    def _lacks(self, part: LogPart, held: list[LogPart]) -> bool:
        return part not in held and part not in self._put_parts

    def _add_put(self, part: LogPart) -> None:
        """Remember a part that has been put, and end the look if it takes long: other runs must show that they live."""
        self._put_parts.add(part)
        if time.monotonic() >= self._until_s:
            raise _LookEnded

    def _sweep(self, manifest: Manifest) -> None:
        """Delete what pushers have left that died between two requests, as far as Parquet files replace it."""
        named: Mapping[str, str] = {part.name: part.sha256 for part in manifest.parts}
        left = []
        for stored in self._bucket.list(f"{PARTS}{self.run_id}/"):
            name, sha256 = part_in(stored.key)
            if name and named.get(name) != sha256 and is_redundant(name, manifest):
                left.append(stored.key)
        if left:
            self._bucket.delete(left)


def _stream_of(part: LogPart) -> Stream:
    attempt, rank = part.name.split("-")[1:3]
    return int(attempt), int(rank)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn the errors of a bucket into those of a target."""
    try:
        yield
    except StoreAway as error:
        raise TargetAway(error.what, where=error.where, fix=error.fix) from None
    except (StoreNotFound, RunConflict) as error:
        raise PushRefused(error.what, where=error.where, got=error.got, fix=error.fix) from None
