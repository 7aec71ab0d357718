"""Writes W&B's files of a run, record by record."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from event_files import field, varint


def wandb_file(path: Path, *records: bytes) -> Path:
    """Make a ``.wandb`` file of these records, each split at the blocks that it crosses."""
    block = 32 * 1024
    content = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        rest, is_first = record, True
        while is_first or rest:
            left = block - len(content) % block
            if left < 7:
                content += bytes(left)
                left = block
            piece, rest = rest[: left - 7], rest[left - 7 :]
            sort = (1 if not rest else 2) if is_first else (4 if not rest else 3)
            content += struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes((sort,)))), len(piece), sort) + piece
            is_first = False
    path.write_bytes(content)
    return path


def history(step: int, /, **values: Any) -> bytes:
    """Encode a record of a history row."""
    items = b"".join(field(1, field(1, key) + field(16, json.dumps(value))) for key, value in values.items())
    return field(2, items + field(2, b"\x08" + varint(step)))
