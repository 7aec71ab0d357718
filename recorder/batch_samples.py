"""Packs the sample losses of one step, from tensors, arrays or lists, into the bytes that the journal holds.

Tensors and arrays are recognised by their attributes; neither torch nor numpy is imported.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from ..store.errors import InvalidEvent
from ..store.events import INTEGER_IDS, NO_IDS, TEXT_IDS, SampleLosses
from ..store.reading.tally import DATA_ORDER, ids_digest
from .values import as_text, described

#: The dtype kinds of numpy arrays that hold text or arbitrary objects.
_TEXT_KINDS: Final = ("U", "S", "O", "T")

#: The element type of each ``array`` type code, in torch and in numpy.
_TORCH_TYPE: Final = {"f": "float32", "d": "float64", "q": "int64", "i": "int32"}
_NUMPY_TYPE: Final = {"f": "<f4", "d": "<f8", "q": "<i8", "i": "<i4"}


def sample_losses(samples: Any, sample_ids: Any = None, sample_tokens: Any = None) -> SampleLosses:
    """Pack the sample losses of a step.

    Args:
        samples: Losses: tensor, array or sequence of numbers. Shape (n,).
        sample_ids: Integers or text, as tensor, array or sequence. Shape (n,). None: a sample is identified by its
            position alone.
        sample_tokens: Token counts. Shape (n,).

    Raises:
        InvalidEvent: Shapes or types do not fit.
    """
    losses = packed_numbers(samples, "f", "samples")
    count = len(losses) // 4
    ids, id_kind = (b"", NO_IDS) if sample_ids is None else _packed_ids(sample_ids, count)
    tokens = b"" if sample_tokens is None else packed_numbers(sample_tokens, "i", "sample_tokens")
    if sample_tokens is not None and len(tokens) != 4 * count:
        raise InvalidEvent(f"{len(tokens) // 4} sample_tokens for {count} samples")
    return SampleLosses(losses, ids, id_kind, tokens)


class Samples(NamedTuple):
    """The selection of sample losses that a run keeps.

    Attributes:
        every: Keep those of every n-th step.
        top: Keep this many of each batch, the highest and NaN first; all when None.
        tokens_over: Keep token losses of samples whose loss is above this, or NaN; of all when None.
    """

    every: int = 1
    top: int | None = None
    tokens_over: float | None = None

    @property
    def is_everything(self) -> bool:
        """Whether all sample losses are kept."""
        return self.every == 1 and self.top is None

    def kept(
        self, step: int, samples: Any, sample_ids: Any = None, sample_tokens: Any = None, token_losses: Any = None
    ) -> SampleLosses | None:
        """Return the sample losses to keep of one step; None if there are none.

        Args:
            step: The step.
            samples, sample_ids, sample_tokens: As for ``sample_losses``.
            token_losses: Loss of each token of each sample: n tensors, arrays or sequences of one dimension, or one of
                shape (n, t). With ``sample_tokens``, only that many leading values of each row count.

        Raises:
            InvalidEvent: Shapes or types do not fit.
        """
        if samples is None or step % self.every:
            return None
        losses = sample_losses(samples, sample_ids, sample_tokens)
        if token_losses is not None:
            losses = self._with_tokens(losses, token_losses)
        if self.top is not None and len(losses) > self.top:
            losses = _only(losses, sorted(_highest(losses, self.top)))
        return losses

    def noted(self, step: int, samples: Any, sample_ids: Any) -> dict[str, Any]:
        """Return the attribute that says what a batch was that is not kept whole; empty for any other.

        Args:
            step, samples, sample_ids: As for ``kept``; ``samples`` may be missing.

        Raises:
            InvalidEvent: Shapes or types do not fit.
        """
        given = sample_ids if samples is None else samples
        if given is None:
            return {}
        count = _length(given)
        if samples is not None and not step % self.every and (self.top is None or count <= self.top):
            return {}
        return {DATA_ORDER: [count, None] if sample_ids is None else order_noted(sample_ids)}

    def _with_tokens(self, losses: SampleLosses, token_losses: Any) -> SampleLosses:
        if len(token_losses) != len(losses):
            raise InvalidEvent(f"token_losses of {len(token_losses)} samples for {len(losses)} samples")
        values, counts = _numbers("f", losses.losses), _numbers("i", losses.tokens)
        over = -math.inf if self.tokens_over is None else self.tokens_over
        flagged = [index for index, loss in enumerate(values) if not loss <= over]
        rows = [packed_numbers(token_losses[index], "f", "token_losses") for index in flagged]
        if counts:
            rows = [row[: 4 * counts[index]] for row, index in zip(rows, flagged, strict=True)]
        return _with_flagged(losses, flagged, rows)


def order_noted(sample_ids: Any) -> list[int]:
    """Return the number of samples in a batch, and the digest of their ids.

    Raises:
        InvalidEvent: They are no integers and no texts.
    """
    count = _length(sample_ids)
    return [count, ids_digest(*_packed_ids(sample_ids, count))]


def _length(values: Any) -> int:
    try:
        return len(values)
    except TypeError:
        raise InvalidEvent("samples and sample_ids must be one-dimensional", got=described(values)) from None


def _highest(losses: SampleLosses, count: int) -> list[int]:
    values = _numbers("f", losses.losses)
    return heapq.nlargest(count, range(len(values)), key=lambda i: math.inf if math.isnan(values[i]) else values[i])


def _only(losses: SampleLosses, chosen: Sequence[int]) -> SampleLosses:
    """Select the samples at these indices, and store their positions in the batch."""
    if losses.id_kind == TEXT_IDS:
        texts = json.loads(losses.ids)
        ids = _text_ids(texts[index] for index in chosen)
    else:
        ids = _taken("q", losses.ids, chosen)
    kept = dataclasses.replace(
        losses,
        losses=_taken("f", losses.losses, chosen),
        ids=ids,
        tokens=_taken("i", losses.tokens, chosen),
        positions=array("i", chosen).tobytes(),
    )
    rows = _rows(losses)
    flagged = [(new, rows[old]) for new, old in enumerate(chosen) if old in rows]
    return _with_flagged(kept, [new for new, _ in flagged], [row for _, row in flagged])


def _rows(losses: SampleLosses) -> dict[int, bytes]:
    """Return the token losses of flagged samples, by index."""
    rows, begin = {}, 0
    for index, count in zip(_numbers("I", losses.flagged), _numbers("I", losses.flagged_tokens), strict=True):
        rows[index] = losses.token_losses[4 * begin : 4 * (begin + count)]
        begin += count
    return rows


def _with_flagged(losses: SampleLosses, flagged: Sequence[int], rows: Sequence[bytes]) -> SampleLosses:
    return dataclasses.replace(
        losses,
        flagged=array("I", flagged).tobytes(),
        flagged_tokens=array("I", (len(row) // 4 for row in rows)).tobytes(),
        token_losses=b"".join(rows),
    )


def _numbers(code: str, packed: bytes) -> array[Any]:
    numbers: array[Any] = array(code)
    numbers.frombytes(packed)
    return numbers


def _taken(code: str, packed: bytes, chosen: Iterable[int]) -> bytes:
    numbers = _numbers(code, packed)
    return array(code, [numbers[index] for index in chosen]).tobytes() if numbers else b""


def _packed_ids(ids: Any, count: int) -> tuple[bytes, int]:
    kind = getattr(getattr(ids, "dtype", None), "kind", "")
    listed = ids.tolist() if kind in _TEXT_KINDS else ids
    try:
        packed = packed_numbers(listed, "q", "sample_ids")
    except InvalidEvent:
        are_many = isinstance(listed, Sequence) and not isinstance(listed, str)
        if not are_many or not any(isinstance(entry, str) for entry in listed):
            raise
        if len(listed) != count:
            raise InvalidEvent(f"{len(listed)} sample_ids for {count} samples") from None
        return _text_ids(listed), TEXT_IDS
    if len(packed) != 8 * count:
        raise InvalidEvent(f"{len(packed) // 8} sample_ids for {count} samples")
    return packed, INTEGER_IDS


def _text_ids(ids: Iterable[Any]) -> bytes:
    return json.dumps([as_text(entry) for entry in ids], ensure_ascii=False).encode()


def packed_numbers(values: Any, code: str, what: str) -> bytes:
    """Pack the values as little-endian bytes of one ``array`` type code: f, d, q or i.

    Raises:
        InvalidEvent: They are no sequence of numbers.
    """
    if isinstance(values, (str, bytes, bytearray)):
        raise InvalidEvent(f"{what} must be a one-dimensional sequence, not one text", got=values)
    try:
        dtype = getattr(values, "dtype", None)
        if dtype is None:
            return array(code, values).tobytes()
        data_ptr = getattr(values, "data_ptr", None)
        if data_ptr is None:
            return _array_bytes(values, dtype, _NUMPY_TYPE[code])
        if dtype is not _as_wanted.get(code) or not values.is_cpu or not values.is_contiguous():
            return _converted_tensor_bytes(values, code)
        return _memory(data_ptr(), values.nbytes)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidEvent(
            f"{what} must be a one-dimensional sequence of numbers ({error})", got=described(values)
        ) from None


def _converted_tensor_bytes(tensor: Any, code: str) -> bytes:
    """Convert a torch tensor with torch itself and copy its memory; numpy may be absent."""
    wanted = _as_wanted[code] = getattr(sys.modules["torch"], _TORCH_TYPE[code])
    tensor = tensor.detach().to(device="cpu", dtype=wanted).contiguous()
    return _memory(tensor.data_ptr(), tensor.nbytes)


def _memory(address: int, size: int) -> bytes:
    import ctypes  # Only tensors need it; importing it takes 3 ms.

    return ctypes.string_at(address, size)


def _array_bytes(values: Any, dtype: Any, wanted: str) -> bytes:
    if (mask := getattr(values, "mask", None)) is not None and mask.any():
        raise ValueError("some are masked")
    if dtype is not _as_wanted.get(wanted):
        if dtype.str != wanted:
            values = values.astype(wanted)
        else:
            _as_wanted[wanted] = dtype
    packed: bytes = values.tobytes()
    return packed


#: Caches dtype objects that need no conversion, by type code for torch and by type name for numpy. Reading the name of
#: an array's dtype takes longer than copying 64 losses.
_as_wanted: Final[dict[str, Any]] = {}
