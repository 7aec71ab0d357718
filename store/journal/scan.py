"""Parses a journal segment in one pass: takes its bytes, returns its header, layouts and the offsets of its events."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .checksum import FRAME
from .format import EVENT, LAYOUT, LENGTH, PREAMBLE, TAG_EVENT, TAG_HEADER, TAG_LAYOUT
from .segment import NOTHING, Codes, EventLayout, Flags, Integers, Segment, field_offset, readable, require
from .whole_frames import LONG_RUN, runs_of_frames


def segment_of(data: bytes, where: str, *, checks: bool = True) -> Segment:
    """Parse a segment whose preamble has been verified.

    Args:
        data: The segment's bytes.
        where: The file, for messages.
        checks: As for ``runs_of_frames``.

    Raises:
        DamagedLog: A record cannot be parsed although its checksum is right.
    """
    with readable(where):
        return _Scan(data).to_segment(where, checks)


#: The first bytes of an event record. The dtype is also a plain u64, because numpy copies those in an eighth of the
#: time.
_HEAD: Final = np.dtype(("<u8", [("tag", "u1"), ("flags", "u1"), ("layout_id", "<u4"), ("begin_of_seq", "<u2")]))


class _Scan:
    """One pass over a segment's frames."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._header: dict[str, Any] = {}
        self._layouts: list[EventLayout] = []
        self._known: dict[int, int] = {}
        self._few: list[tuple[int, int, int, int]] = []
        self._parts: list[tuple[Codes, Flags, Integers, Integers]] = []

    def to_segment(self, where: str, checks: bool) -> Segment:
        whole = PREAMBLE.size
        for start, length, count in runs_of_frames(self._data, checks=checks):
            stride = FRAME.size + length
            if count < LONG_RUN or length < _HEAD.itemsize:
                for index in range(count):
                    self._frame(start + index * stride, length)
            else:
                self._run(start, length, count)
            whole = start - FRAME.size + count * stride
        self._flush()
        layout, flags, starts, ends = (_joined(column) for column in zip(*(self._parts or [NOTHING]), strict=True))
        if len(layout) and not all(isinstance(self._header[name], int) for name in ("attempt", "rank")):
            raise TypeError("its header does not name the attempt and rank of its events")
        torn = len(self._data) - whole
        return Segment(self._header, torn, where, self._data, tuple(self._layouts), layout, flags, starts, ends)

    def _frame(self, start: int, length: int) -> None:
        tag, end = self._data[start], start + length
        if tag == TAG_EVENT:
            (layout_id,) = LENGTH.unpack_from(self._data, start + field_offset("layout_id"))
            self._few.append((self._known[layout_id], self._data[start + field_offset("flags")], start, end))
        elif tag == TAG_LAYOUT:
            layout_id = LAYOUT.unpack_from(self._data, start)[1]
            kind, *names = json.loads(self._data[start + LAYOUT.size : end])
            "".join((kind, *names)).encode()  # All must be text, without lone surrogates.
            self._known[layout_id] = len(self._layouts)
            self._layouts.append(EventLayout(kind, tuple(names)))
        elif tag == TAG_HEADER:
            self._header = json.loads(self._data[start + 1 : end])
            if not isinstance(self._header, dict) or not isinstance(self._header.get("writer") or {}, dict):
                raise TypeError("its header, or the writer in it, is not a JSON object")

    def _run(self, start: int, length: int, count: int) -> None:
        """Parse frames of one length: nearly always events."""
        stride = FRAME.size + length
        # Copied once, because reading each field separately would walk through the whole segment.
        heads = np.ndarray((count,), _HEAD, self._data, start, (stride,)).copy()
        first = 0
        for other in [*np.flatnonzero(heads["tag"] != TAG_EVENT).tolist(), count]:
            if other > first:
                self._events(heads[first:other], start + first * stride, length)
            if other < count:
                self._frame(start + other * stride, length)
            first = other + 1

    def _events(self, heads: npt.NDArray[np.void], start: int, length: int) -> None:
        self._flush()
        starts = start + (FRAME.size + length) * np.arange(len(heads), dtype=np.int64)
        self._take(self._layout_of(heads["layout_id"]), heads["flags"], starts, starts + length)

    def _layout_of(self, ids: npt.NDArray[np.uint32]) -> Codes:
        if (ids == ids[0]).all():
            return np.full(len(ids), self._known[int(ids[0])], np.int32)
        distinct, which = np.unique(ids, return_inverse=True)
        return np.array([self._known[layout_id] for layout_id in distinct.tolist()], np.int32)[which]

    def _take(self, layout: Codes, flags: Flags, start: Integers, end: Integers) -> None:
        """Add events; their payloads must be long enough for their layouts."""
        sizes = np.array([EVENT.size + 8 * len(known.names) for known in self._layouts], np.int64)
        require(end - start >= sizes[layout], "it is shorter than its layout requires")
        self._parts.append((layout, flags, start, end))

    def _flush(self) -> None:
        if self._few:
            layout, flags, starts, ends = np.array(self._few, np.int64).T
            self._take(layout.astype(np.int32), flags.astype(np.uint8), starts, ends)
            self._few = []


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
