"""Mutates real logs and reads them with every reader: only our own errors may be raised, within a time limit.

``python tests/fuzz/fuzz_importers.py SECONDS FOLDER... [--seed N]``. Folders hold logs of any kind that ``auto``
recognises. Input that breaks a reader is kept in ``.fuzz/importers`` and reported; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import shutil
import signal
import sqlite3
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from event_files import record

from steptape import TelemetryError
from steptape.importers.discovery import Source, all_readers, find_sources
from steptape.importers.encodings import tfrecord, wandb_log
from steptape.importers.importing import import_sources
from steptape.importers.source import Reader, ReadOptions

#: The limits: seconds per case, bytes of memory for the whole process.
CASE_S = 20
MEMORY_BYTES = 4 * 1024**3

#: One case in this many is imported into a store; the others are only read, because writing is slow.
IMPORTED_EVERY = 20

LONGEST = 256 * 1024
NASTY = [
    *(b"nan", b"NaN", b"inf", b"-Infinity", b"1e999", b"-1", b"9" * 30, b"0x10", b"", b"null", b"true", b"[]", b"{}"),
    *(b'"', b"'", b",", b"\t", b"\n", b"\r\n", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\\ud800", b"step", b"epoch"),
    *(b"[" * 2000, b'{"a":' * 2000, b"\x80" * 12, b"\xff" * 8, b"\x7f\xff\xff\xff", b"1_000", b"12345678901234567890"),
]


class TooSlow(BaseException):
    """A case exceeded its time limit. Not an ``Exception``, so that only this module catches it."""


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return the content after some mutations."""
    data = bytearray(content[:LONGEST])
    for _ in range(chance.choice((1, 1, 2, 4, 16, 64))):
        at = chance.randrange(len(data) + 1)
        until = min(len(data), at + chance.choice((1, 2, 4, 8, 64, 1024)))
        kind = chance.randrange(7)
        if kind == 0:
            del data[at:]
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            data[at:until] = chance.randbytes(until - at)
        elif kind == 3:
            data[at:at] = chance.choice(NASTY)
        elif kind == 4:
            data[at:until] = chance.choice(NASTY)
        elif kind == 5:
            data[at:at] = data[at:until] * chance.choice((1, 3, 50))
        else:
            del data[at:until]
    return bytes(data)


def read_all(reader: Reader, path: Path, head: bytes) -> int:
    """Read a source to its end and return the number of its facts."""
    reader.recognises(path, head)
    count = 0
    for run in reader.read([path], ReadOptions()):
        count += sum(1 for _ in run.facts)
    return count


def mutated_records(path: Path, chance: random.Random) -> bytes | None:
    """Mutate records inside intact frames, for a file of framed records; None for other files.

    Otherwise the checksums would reject every mutation before the readers of record contents see it.
    """
    try:
        if "tfevents" in path.name:
            contents = list(tfrecord.records(path, is_growing=True))
            return b"".join(record(_perhaps(content, chance)) for content in contents)
        if path.suffix == ".wandb":
            contents = list(wandb_log.records(path, is_growing=True))
            return wandb_log.HEADER + b"".join(_wandb_record(_perhaps(content, chance)) for content in contents[:200])
    except TelemetryError:
        pass
    return None


def _perhaps(content: bytes, chance: random.Random) -> bytes:
    return mutated(content, chance) if chance.randrange(8) == 0 else content


def _wandb_record(content: bytes) -> bytes:
    content = content[:4000]
    return struct.pack("<IHB", zlib.crc32(content, zlib.crc32(b"\x01")), len(content), 1) + content


def mutate_cells(path: Path, chance: random.Random) -> None:
    """Write nasty values into cells of a database that stays readable."""
    connection = sqlite3.connect(path)
    with contextlib.closing(connection), contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA ignore_check_constraints = ON")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(chance.choice((1, 4, 16))):
            table = chance.choice(tables)
            column = chance.choice([row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')])
            value = chance.choice([None, -1, 2**63 - 1, float("inf"), 1.5, "x", chance.choice(NASTY), "\0", "[" * 5000])
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE random() % 2', (value,))
        connection.commit()


def write_seeds(folder: Path) -> None:
    """Write logs of the kinds that no tool at hand writes."""
    folder.mkdir()
    rows = [{"_step": step, "_timestamp": 1.7e9 + step, "loss": 1 / (step + 1), "eval/acc": None} for step in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "history.parquet")
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def one_case(seed: Source, chance: random.Random, folder: Path) -> Path:
    """Write a mutated source and return its path."""
    place = folder / "case"
    shutil.rmtree(place, ignore_errors=True)
    original = chance.choice(seed.files)
    shutil.copytree(original.parent, place) if len(list(original.parent.iterdir())) < 12 else place.mkdir()
    path = place / original.name
    path.unlink(missing_ok=True)
    framed = mutated_records(original, chance) if chance.randrange(2) else None
    content = original.read_bytes()
    is_database = content.startswith(b"SQLite format 3") and chance.randrange(2) == 0
    path.write_bytes(content if is_database else mutated(content, chance) if framed is None else framed)
    if is_database:
        mutate_cells(path, chance)
    return path


def check(reader: Reader, path: Path, store: Path | None) -> str:
    """Read or import a case and return the outcome in one word."""
    try:
        if store is None:
            return "read" if read_all(reader, path, path.read_bytes()[: 64 * 1024]) else "empty"
        outcomes = list(import_sources(store, find_sources([path], all_readers()).sources, ReadOptions()))
        return "imported" if any(outcome.run_id for outcome in outcomes) else "refused"
    except TelemetryError:
        return "refused"


def within(seconds: int, call: Callable[[], str]) -> str:
    """Call with a time limit."""

    def too_slow(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(seconds)
    try:
        return call()
    finally:
        signal.alarm(0)


def main() -> int:
    """Fuzz for the given seconds and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", type=float)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    chance = random.Random(arguments.seed)
    by_kind: dict[str, list[Source]] = {}
    told: Counter[tuple[str, str]] = Counter()
    broken = 0
    until = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_seeds(folder / "seeds")
        for source in find_sources([*arguments.folders, folder / "seeds"], all_readers()).sources:
            by_kind.setdefault(source.reader.kind, []).append(source)
        while time.monotonic() < until:
            kind = chance.choice(sorted(by_kind))
            seed = chance.choice(by_kind[kind])
            store = folder / "store" if chance.randrange(IMPORTED_EVERY) == 0 else None
            path = one_case(seed, chance, folder)
            # Foreign readers get the files too: a user may name any reader for any file.
            reader = chance.choice(all_readers()) if chance.randrange(10) == 0 else seed.reader
            try:
                told[kind, within(CASE_S, partial(check, reader, path, store))] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                broken += 1
                kept = Path(".fuzz/importers") / f"{reader.kind}-{broken}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(path.parent, kept)
                print(f"BROKEN: {reader.kind} by a mutated {kind}, kept in {kept}: {path.name}: {error!r}")
                traceback.print_exc(limit=-4)
            shutil.rmtree(folder / "store", ignore_errors=True)
    for (kind, word), count in sorted(told.items()):
        print(f"{kind}: {count} {word}")
    print(f"{sum(told.values())} cases, {broken} broken")
    return broken > 0


if __name__ == "__main__":
    sys.exit(main())
