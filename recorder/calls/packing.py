"""Packs the sample losses and vectors of a call, from tensors, arrays or lists, into the bytes that the journal holds.

What does not fit costs a warning, and is alone left out. Tensors and arrays are recognised by their attributes; neither
torch nor numpy is imported.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ...store.errors import InvalidEvent, TelemetryError
from ...store.events import (
    INTEGER_IDS,
    MOST_VALUES,
    MOST_VALUES_OF_EVENT,
    NO_IDS,
    TEXT_IDS,
    SampleLosses,
    Vectors,
    vector_of,
)
from ...store.reading.tally import DATA_ORDER, ids_digest
from ..loop_values import as_text, described, is_distributed, is_exact

if TYPE_CHECKING:
    from ..arguments import Samples
    from .call_warnings import CallWarnings

#: The number of samples in a batch, and the digest of their ids; None without ids.
DataOrder: TypeAlias = Sequence[int | None]

#: The dtype kinds of numpy arrays that hold text or arbitrary objects.
_TEXT_KINDS: Final = ("U", "S", "O", "T")

#: The element type of each ``array`` type code, in torch and in numpy.
_TORCH_TYPE: Final = {"f": "float32", "d": "float64", "q": "int64", "i": "int32"}
_NUMPY_TYPE: Final = {"f": "<f4", "d": "<f8", "q": "<i8", "i": "<i4"}

_FIX: Final = "Write vectors={'expert_tokens/layer0': counts}"
_LONGER: Final = "Record fewer values, or a summary of them"


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
    losses = _packed_numbers(samples, "f", "samples")
    count = len(losses) // 4
    ids, id_kind = (b"", NO_IDS) if sample_ids is None else _packed_ids(sample_ids, count)
    tokens = b"" if sample_tokens is None else _packed_numbers(sample_tokens, "i", "sample_tokens")
    if sample_tokens is not None and len(tokens) != 4 * count:
        raise InvalidEvent(f"{len(tokens) // 4} sample_tokens for {count} samples")
    return SampleLosses(losses, ids, id_kind, tokens)


def samples_to_record(
    selection: Samples, step: int, arguments: Mapping[str, Any], warnings: CallWarnings
) -> tuple[SampleLosses | None, Mapping[str, DataOrder]]:
    """Return the sample losses to record, and the attribute in place of those that are not kept whole.

    Losses that do not fit are warned of, and leave the step itself recorded.

    Args:
        selection: What is kept.
        step: The step.
        arguments: The sample arguments of a step, by name.
        warnings: Take what is wrong.

    Raises:
        TelemetryError: With ``strict``, if losses do not fit.
    """
    try:
        kept = _kept_losses(selection, step, **arguments)
        return kept, _order_of_others(selection, step, arguments.get("samples"), arguments.get("sample_ids"))
    except TelemetryError as error:
        if warnings.is_strict:
            raise
        warnings.once(f"sample losses were not recorded: {error}", about=error.what)
        return None, {}


def _kept_losses(
    selection: Samples,
    step: int,
    samples: Any,
    sample_ids: Any = None,
    sample_tokens: Any = None,
    token_losses: Any = None,
) -> SampleLosses | None:
    """Return the sample losses to keep of one step; None if there are none.

    Args:
        selection: What is kept.
        step: The step.
        samples, sample_ids, sample_tokens: As for ``sample_losses``.
        token_losses: Loss of each token of each sample: n tensors, arrays or sequences of one dimension, or one of
            shape (n, t). With ``sample_tokens``, only that many leading values of each row count.

    Raises:
        InvalidEvent: Shapes or types do not fit.
    """
    if samples is None or step % selection.every:
        return None
    losses = sample_losses(samples, sample_ids, sample_tokens)
    if token_losses is not None:
        losses = _with_tokens(losses, token_losses, selection.tokens_over)
    if selection.top is not None and len(losses) > selection.top:
        losses = _only(losses, sorted(_highest(losses, selection.top)))
    return losses


def _order_of_others(selection: Samples, step: int, samples: Any, sample_ids: Any) -> Mapping[str, DataOrder]:
    """Return the attribute that says what a batch was that is not kept whole; empty for any other.

    Raises:
        InvalidEvent: Shapes or types do not fit.
    """
    given = sample_ids if samples is None else samples
    if given is None:
        return {}
    count = _length(given)
    if samples is not None and not step % selection.every and (selection.top is None or count <= selection.top):
        return {}
    return {DATA_ORDER: [count, None] if sample_ids is None else data_order(sample_ids)}


def _with_tokens(losses: SampleLosses, token_losses: Any, tokens_over: float | None) -> SampleLosses:
    if len(token_losses) != len(losses):
        raise InvalidEvent(f"token_losses of {len(token_losses)} samples for {len(losses)} samples")
    values, counts = _numbers("f", losses.losses), _numbers("i", losses.tokens)
    over = -math.inf if tokens_over is None else tokens_over
    flagged = [index for index, loss in enumerate(values) if not loss <= over]
    rows = [_packed_numbers(token_losses[index], "f", "token_losses") for index in flagged]
    if counts:
        rows = [row[: 4 * counts[index]] for row, index in zip(rows, flagged, strict=True)]
    return _with_flagged(losses, flagged, rows)


def data_order(sample_ids: Any) -> list[int]:
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
        ids = _chosen("q", losses.ids, chosen)
    kept = dataclasses.replace(
        losses,
        losses=_chosen("f", losses.losses, chosen),
        ids=ids,
        tokens=_chosen("i", losses.tokens, chosen),
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


def _chosen(code: str, packed: bytes, chosen: Iterable[int]) -> bytes:
    numbers = _numbers(code, packed)
    return array(code, [numbers[index] for index in chosen]).tobytes() if numbers else b""


def _packed_ids(ids: Any, count: int) -> tuple[bytes, int]:
    kind = getattr(getattr(ids, "dtype", None), "kind", "")
    listed = ids.tolist() if kind in _TEXT_KINDS else ids
    try:
        packed = _packed_numbers(listed, "q", "sample_ids")
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


def fitting_vectors(given: Any, warnings: CallWarnings) -> dict[str, object]:
    """Return the vectors of a call that have a vector's shape, by name, without a look at their values.

    Args:
        given: The argument of the call: names and tensors, arrays or sequences. A None among them is left out.
        warnings: Take each fault.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        what = "vectors must be a mapping of names to vectors, so none is recorded"
        warnings.object_to(what, got=described(given), fix=_FIX)
        return {}
    fit: dict[str, object] = {}
    total = 0
    for key, values in given.items():
        name = as_text(key)
        if values is None:
            continue
        fault, fix = _misshapen(values)
        if not fault and total + len(values) > MOST_VALUES_OF_EVENT:
            fault, fix = f"exceeds the {MOST_VALUES_OF_EVENT:,} values that the vectors of one event may have", _LONGER
        if fault:
            warnings.object_to(f"vector {name!r} {fault}; not recorded", got=described(values), fix=fix)
        else:
            fit[name] = values
            total += len(values)
    return fit


def packed_vectors(given: Mapping[str, Any], warnings: CallWarnings) -> Vectors:
    """Convert vectors of a fitting shape to arrays of doubles. The host waits for those on a device.

    Args:
        given: The result of ``fitting_vectors``.
        warnings: Take each fault.
    """
    vectors: dict[str, Sequence[float]] = {}
    for name, values in given.items():
        try:
            vectors[name] = vector_of(_packed_numbers(_exact(values), "d", f"vector {name!r}"))
        except InvalidEvent as error:
            warnings.object_to(f"{error.what}; not recorded", got=error.got, fix="Give numbers")
    return vectors


def _misshapen(values: Any) -> tuple[str, str]:
    """Return why this is no vector, and what to do; empty texts for a vector."""
    if isinstance(values, (str, bytes, bytearray)):
        return "is text", "Give numbers"
    if is_distributed(values):
        return "is a DTensor, of which this rank has only a part", "Give .full_tensor(). Call it on all ranks"
    if isinstance(values, (Mapping, set, frozenset)) or (dimensions := _dimensions(values)) is None:
        return "is not a sequence", "Give a sequence, an array or a tensor"
    if "complex" in str(getattr(values, "dtype", "")):
        return "is complex", "Give its real numbers"
    if dimensions == 0:
        return "is a single number", "Record it as a metric"
    if dimensions > 1:
        return f"has {dimensions} dimensions where a vector has one", "Flatten it, or record one vector a row"
    if len(values) > MOST_VALUES:
        return f"is longer than {MOST_VALUES:,} values", _LONGER
    return "", ""


def _dimensions(values: Any) -> int | None:
    """Return the number of dimensions, as far as shapes say; None for what has no length."""
    dimensions = getattr(values, "ndim", None)
    if isinstance(dimensions, int):
        return dimensions
    try:
        first = next(iter(values), 0.0) if len(values) else 0.0
    except TypeError:
        return None if not hasattr(values, "__float__") else 0
    return 2 if hasattr(first, "__len__") and not isinstance(first, (str, bytes)) else 1


def _exact(values: Any) -> Any:
    """Return the values if doubles hold them exactly.

    Raises:
        InvalidEvent: One is an integer that no double holds.
    """
    if not hasattr(values, "dtype"):
        if not all(is_exact(value) for value in values if isinstance(value, int)):
            raise _inexact(values)
    elif "int64" in str(values.dtype) and not all(map(is_exact, values.tolist())):
        raise _inexact(values)
    return values


def _inexact(values: Any) -> InvalidEvent:
    return InvalidEvent("a vector holds an integer that no double holds exactly", got=described(values))


def _packed_numbers(values: Any, code: str, what: str) -> bytes:
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
_as_wanted: Final[dict[str, object]] = {}
