"""A durable file is flushed while it is written, complete when synced, and raises on a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steptape.store.parquet import sealing
from steptape.store.parquet.sealing import SENT_BYTES, durable_file
from steptape.store.parquet.tables import write_tables

NOISE = pa.table({"value": np.random.default_rng(0).random(100_000)})


@pytest.mark.parametrize("size", [0, 1, SENT_BYTES, 5 * SENT_BYTES + 7])
def test_what_is_written_in_pieces_is_there_in_their_order(tmp_path: Path, size: int) -> None:
    """The sizes are zero, one byte, and sizes around that of a piece."""
    path, data = tmp_path / "file", random.Random(size).randbytes(size)
    rest = data
    with durable_file(path) as file:
        while rest:
            file.write(rest[:300_001])
            rest = rest[300_001:]

    assert path.read_bytes() == data


def test_what_stood_there_before_is_gone(tmp_path: Path) -> None:
    """A dead sealer may have left such a file."""
    path = tmp_path / "file"
    path.write_bytes(b"long ago" * 1000)
    with durable_file(path) as file:
        file.write(b"now")

    assert path.read_bytes() == b"now"


def test_a_file_is_synced_once_all_of_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final sync covers its last byte."""
    path, synced = tmp_path / "file", []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    with durable_file(path) as file:
        file.write(b"x" * (2 * SENT_BYTES + 1))

    assert synced == [2 * SENT_BYTES + 1]


def test_a_file_that_failed_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It will be deleted."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with contextlib.suppress(ValueError), durable_file(tmp_path / "file") as file:
        file.write(b"x")
        raise ValueError("no more")

    assert synced == []


def test_all_of_a_file_is_sent_to_the_disk_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges are contiguous."""
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(sealing, "_sync_file_range", lambda _fd, *range_: ranges.append(range_[:2]))
    with durable_file(tmp_path / "file") as file:
        file.write(b"x" * 100)
        file.write(b"x" * (3 * SENT_BYTES))

    ends = [offset + size for offset, size in ranges]
    assert ([0, *ends[:-1]], ends[-1]) == ([offset for offset, _ in ranges], 3 * SENT_BYTES + 100)


def test_where_the_system_has_no_such_function_files_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is the case on macOS."""
    monkeypatch.setattr(sealing, "_sync_file_range", None)
    with durable_file(tmp_path / "file") as file:
        file.write(b"x" * (SENT_BYTES + 1))

    assert (tmp_path / "file").stat().st_size == SENT_BYTES + 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_is_told_of_with_its_number_through_the_parquet_writer() -> None:
    """The error passes from the kernel through Python and C++ and back."""
    with pytest.raises(OSError, match="No space left") as caught, durable_file(Path("/dev/full")) as file:
        write_tables([NOISE] * 20, NOISE.schema, file)

    assert caught.value.errno == errno.ENOSPC


def test_a_column_of_a_row_group_is_one_page_up_to_a_megabyte(tmp_path: Path) -> None:
    """Each page costs a header and a fresh start for zstd."""
    path = tmp_path / "file.parquet"
    with durable_file(path) as file:
        write_tables([NOISE], NOISE.schema, file, always=NOISE.column_names)

    column = pq.read_metadata(path).row_group(0).column(0)
    assert 0 < column.total_uncompressed_size - 8 * NOISE.num_rows < 60
