"""The bytes of a journal, version 2: constants and records, for its writer and its reader. FORMAT.md is the promise.

A journal segment is an 8-byte preamble (magic and version) and then frames: u32 length, u32 CRC-32 of the payload,
payload. The first byte of a payload is its tag: a header (JSON), a layout (a kind and its metric names, once per
segment) or an event. All numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .checksum import crc32

MAGIC: Final = b"STPJ"
VERSION: Final = 2
PREAMBLE: Final = struct.Struct("<4sI")
FRAME: Final = struct.Struct("<II")

TAG_HEADER: Final = 0
TAG_LAYOUT: Final = 1
TAG_EVENT: Final = 2

HAS_ATTRS: Final = 1
HAS_SAMPLES: Final = 2

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
#: number of samples, kind of ids, what else follows
SAMPLES_HEAD: Final = "<IBB"
SAMPLES: Final = struct.Struct(SAMPLES_HEAD)
SAMPLES_FIELDS: Final = ("count", "id_kind", "holds")

#: What a block of samples holds beside losses and ids. Version 1 knew token counts alone.
HOLDS_TOKENS: Final = 1
HOLDS_POSITIONS: Final = 2
HOLDS_TOKEN_LOSSES: Final = 4

NO_IDS: Final = 0
INTEGER_IDS: Final = 1
TEXT_IDS: Final = 2


@dataclass(slots=True, unsafe_hash=True)
class SampleLosses:
    """The per-sample losses of one step, packed as they lie in the journal. Nobody changes one.

    Not frozen, because there is one for every training step: 0.4 us against 0.9 us.

    Attributes:
        losses: float32, little-endian. Shape (n,).
        ids: int64 (``INTEGER_IDS``), or a JSON array of text (``TEXT_IDS``), or empty (``NO_IDS``). Shape (n,).
        id_kind: Which of the three.
        tokens: int32 token counts, or empty. Shape (n,).
        positions: int32 places in the batch, or empty when every sample of it was kept. Shape (n,).
        flagged: uint32 indexes into this block of the samples whose tokens' losses are kept, each at most once, in any
            order. Shape (k,).
        flagged_tokens: uint32 numbers of tokens of each of them. Shape (k,).
        token_losses: float32, all tokens of the first flagged sample, then of the next. Shape (sum of the above,).
    """

    losses: bytes
    ids: bytes = b""
    id_kind: int = NO_IDS
    tokens: bytes = b""
    positions: bytes = b""
    flagged: bytes = b""
    flagged_tokens: bytes = b""
    token_losses: bytes = b""

    def __len__(self) -> int:
        return len(self.losses) // 4

    def to_bytes(self) -> bytes:
        """The block as it stands in an event record."""
        ids = LENGTH.pack(len(self.ids)) + self.ids if self.id_kind == TEXT_IDS else self.ids
        holds, more = HOLDS_TOKENS if self.tokens else 0, b""
        if self.positions:
            holds, more = holds | HOLDS_POSITIONS, self.positions
        if self.flagged:
            flagged = (LENGTH.pack(len(self.flagged) // 4), self.flagged, self.flagged_tokens, self.token_losses)
            holds, more = holds | HOLDS_TOKEN_LOSSES, b"".join((more, *flagged))
        return b"".join((SAMPLES.pack(len(self), self.id_kind, holds), self.losses, ids, self.tokens, more))


def framed(payload: bytes) -> bytes:
    """The payload behind its length and checksum."""
    return FRAME.pack(len(payload), crc32(payload)) + payload


def header_record(header: dict[str, Any]) -> bytes:
    """The first record of a segment: whose events it holds, and who writes it."""
    return framed(bytes((TAG_HEADER,)) + compact_json(header))


def layout_record(layout_id: int, kind: str, names: Sequence[str]) -> bytes:
    """The kind and the metric names that events refer to by ``layout_id``."""
    return framed(LAYOUT.pack(TAG_LAYOUT, layout_id) + compact_json([kind, *names]))


def compact_json(value: Any) -> bytes:
    """Strict JSON without blanks, UTF-8."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
