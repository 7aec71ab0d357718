"""Defines ``FrozenBatch``: a batch copied to the host, which can show that it has not changed since."""

from __future__ import annotations

import copy
import ctypes
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from ...store.errors import TelemetryError
from ..values import is_distributed

#: Bits of the digest that a float64 holds exactly.
_HASH_BYTES: Final = 6

_LENGTH_BYTES: Final = 8

_FIX: Final = "Give a mapping for model(**batch), a pair (inputs, targets), or a tensor of token ids"


class FrozenBatch:
    """A batch of tensors, and of numbers and texts between them, in mappings and sequences.

    Args:
        batch: The batch. It is copied: later changes of its tensors have no effect.

    Raises:
        TelemetryError: It holds no tensor, or something else.
    """

    def __init__(self, batch: Any) -> None:
        self.content = _frozen(batch)
        if not any(isinstance(leaf, Tensor) for _, leaf in _leaves(self.content)):
            raise TelemetryError("watch: probe_batch holds no tensor", got=type(batch).__name__, fix=f"{_FIX}.")

    def digest(self) -> bytes:
        """Return the SHA-256 of what the batch holds now.

        It covers each tensor, number and text, those of mappings by sorted name and those of sequences by index. Each
        adds four fields: its path of names and indexes joined by ``/``, its type, its shape, and its bytes, or the
        ``repr`` of a number or text. The length of each field precedes it, in 8 bytes, least first.
        """
        digest = hashlib.sha256()
        for path, leaf in _leaves(self.content):
            if isinstance(leaf, Tensor):
                fields = (str(leaf.dtype).encode(), str(tuple(leaf.shape)).encode(), _bytes(leaf))
            else:
                fields = (type(leaf).__name__.encode(), b"", repr(leaf).encode())
            for field in (path.encode(), *fields):
                digest.update(len(field).to_bytes(_LENGTH_BYTES, "little"))
                digest.update(field)
        return digest.digest()

    def on(self, device: torch.device) -> Any:
        """Return a copy on a device. What a model makes of it does not change the batch."""
        return _mapped(self.content, lambda tensor: tensor.to(device, non_blocking=True, copy=True))


def digest_number(digest: bytes) -> float:
    """Return the first 48 bits of a digest as a number."""
    return float(int.from_bytes(digest[:_HASH_BYTES], "big"))


def _frozen(value: Any) -> Any:
    """Copy a batch to the host.

    Raises:
        TelemetryError: It holds a value of another kind.
    """
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.is_meta or value.is_quantized or is_distributed(value):
            raise TelemetryError("watch: probe_batch holds a tensor without plain values", got=value.layout)
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, Mapping):
        return {_name(name): _frozen(value[name]) for name in value}
    if isinstance(value, (tuple, list)):
        frozen = [_frozen(each) for each in value]
        return frozen if isinstance(value, list) else tuple(frozen)
    if value is None or isinstance(value, (bool, int, float, str)):
        return copy.copy(value)
    raise TelemetryError("watch: probe_batch holds a value that is no tensor", got=type(value).__name__, fix=f"{_FIX}.")


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TelemetryError("watch: a name in probe_batch is no text", got=name)
    return name


def _mapped(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(each, change) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(each, change) for each in value)
    return value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a batch holds with its path, in a fixed order."""
    if isinstance(value, dict):
        for name in sorted(value):
            yield from _leaves(value[name], f"{path}/{name}")
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}/{index}")
    else:
        yield path, value


def _bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a contiguous tensor on the host. NumPy may be absent."""
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""
