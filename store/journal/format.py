"""Encodes journal records and holds the constants that writer and reader share. FORMAT.md specifies both.

A journal segment is an 8-byte preamble (magic and version), followed by frames: u32 length, u32 CRC-32 of the payload,
payload. The first byte of a payload is its tag: a header (JSON), a layout (a kind and its metric names, once per
segment) or an event. All numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..events import NO_VECTORS, TEXT_IDS, SampleLosses, Vectors, pack_vectors

try:
    from isal import isal_zlib as zlib
except ImportError:  # Intel's library exists for few processors. Both compute the same values.
    import zlib  # type: ignore[no-redef]

#: isal's takes a ninth of zlib's time for a segment. For a step of ten floats it takes 0.03 us, zlib's 0.14 us.
crc32: Final = zlib.crc32

MAGIC: Final = b"STPJ"
#: The next version differs in more than one bit, so that a damaged bit makes no other version.
VERSION: Final = 7
PREAMBLE: Final = struct.Struct("<4sI")

#: Length and checksum of a record's payload, little-endian.
FRAME: Final = struct.Struct("<II")

TAG_HEADER: Final = 0
TAG_LAYOUT: Final = 1
TAG_EVENT: Final = 2

#: The key in a segment's header that says that a push brought its events.
RECEIVED: Final = "received"

#: The key in a segment's header with the identity of the recording, as ``RunInfo.recording_of`` returns it.
RECORDING: Final = "recording"

HAS_ATTRS: Final = 1
HAS_SAMPLES: Final = 2
HAS_VECTORS: Final = 4

#: tag, flags, layout id, seq, step, micro_step, value_lag, time_ns, elapsed_ns, epoch (NaN when unknown)
EVENT_HEAD: Final = "<BBIqqiiqqd"
EVENT: Final = struct.Struct(EVENT_HEAD)
EVENT_FIELDS: Final = (
    "tag",
    "flags",
    "layout_id",
    "seq",
    "step",
    "micro_step",
    "value_lag",
    "time_ns",
    "elapsed_ns",
    "epoch",
)
LAYOUT: Final = struct.Struct("<BI")
LENGTH: Final = struct.Struct("<I")
#: number of samples, kind of ids, flags for the optional parts
SAMPLES_HEAD: Final = "<IBB"
SAMPLES: Final = struct.Struct(SAMPLES_HEAD)
SAMPLES_FIELDS: Final = ("count", "id_kind", "holds")

#: Flags for the optional parts of a samples block, besides losses and ids.
HOLDS_TOKENS: Final = 1
HOLDS_POSITIONS: Final = 2
HOLDS_TOKEN_LOSSES: Final = 4


def samples_block(samples: SampleLosses) -> bytes:
    """Pack the samples of a step as its event record holds them."""
    ids = LENGTH.pack(len(samples.ids)) + samples.ids if samples.id_kind == TEXT_IDS else samples.ids
    holds, more = HOLDS_TOKENS if samples.tokens else 0, b""
    if samples.positions:
        holds, more = holds | HOLDS_POSITIONS, samples.positions
    if samples.flagged:
        flagged = (
            LENGTH.pack(len(samples.flagged) // 4),
            samples.flagged,
            samples.flagged_tokens,
            samples.token_losses,
        )
        holds, more = holds | HOLDS_TOKEN_LOSSES, b"".join((more, *flagged))
    return b"".join((SAMPLES.pack(len(samples), samples.id_kind, holds), samples.losses, ids, samples.tokens, more))


def framed(payload: bytes) -> bytes:
    """Return the payload prefixed with its length and checksum."""
    return FRAME.pack(len(payload), crc32(payload)) + payload


def header_record(header: Mapping[str, object]) -> bytes:
    """Encode the first record of a segment: the stream that it belongs to, and its writer."""
    return framed(bytes((TAG_HEADER,)) + compact_json(header))


def layout_record(layout_id: int, kind: str, names: Sequence[str]) -> bytes:
    """Encode the kind and the metric names that events refer to by ``layout_id``."""
    return framed(LAYOUT.pack(TAG_LAYOUT, layout_id) + compact_json([kind, *names]))


def event_tail(attrs: bytes, samples: SampleLosses | None, vectors: Vectors = NO_VECTORS) -> tuple[int, bytes]:
    """Return the flags of an event and the bytes after its metrics.

    Args:
        attrs: A JSON object, or empty.
        samples: Sample losses; an empty block is not written.
        vectors: Vectors by name.
    """
    flags, tail = 0, b""
    if attrs:
        flags, tail = HAS_ATTRS, LENGTH.pack(len(attrs)) + attrs
    if vectors:
        block = pack_vectors(vectors)
        flags, tail = flags | HAS_VECTORS, b"".join((tail, LENGTH.pack(len(block)), block))
    if samples:
        flags, tail = flags | HAS_SAMPLES, tail + samples_block(samples)
    return flags, tail


def compact_json(value: Any) -> bytes:
    """Encode strict JSON without blanks, as UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
