"""Measures norms, sums and histograms of tensors where they are; numbers come to the host in one copy for each device.

Tensors go in by name; numbers come out under the same names. A parameter that ranks share in parts (a DTensor) is
measured in its local part, and the parts are added up over the ranks in one reduction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..device_values import Bundle
from ..loop_values import is_distributed

#: The numbers of one emission: by what was measured, then by the name of the tensor.
Numbers: TypeAlias = Mapping[str, Mapping[str, float]]

#: The most elements of a tensor that are measured at once on a CPU. The error is then about 2e-7.
_PIECE: Final = 1 << 16
_BINS: Final = 64

#: The ends of a distribution, in its root mean squares.
_FAR: Final = 10
_NEAR: Final = 1e-3

#: Elements that are sorted into bins at a time, so that their indexes need little memory.
_AT_ONCE: Final = 1 << 22


class Measurements:
    """The results of one emission, on their devices. A measurement replaces an earlier one of the same name."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str], list[_Results]] = {}

    def norms(self, what: str, tensors: Mapping[str, Tensor], part: str = "") -> None:
        """Measure the L2 norm of each tensor, with one call for each device and type.

        Args:
            what: Names the measurement.
            tensors: By name.
            part: Tells measurements apart that add to each other.
        """
        self._columns[what, part] = [
            _Results(what, group.names, _squares(group), are_squares=True, groups=group.shards)
            for group in _groups(tensors)
        ]

    def finiteness(self, what: str, tensors: Mapping[str, Tensor]) -> None:
        """Measure how many parts of each tensor hold a value that is not finite: 0 where all are finite."""
        self._columns[what, ""] = [
            _Results(
                what,
                group.names,
                _wide(~_foreach_norm(group, math.inf).isfinite()),
                are_squares=False,
                groups=group.shards,
            )
            for group in _groups(tensors)
        ]

    def sums(self, what: str, tensors: Mapping[str, Tensor], part: str = "") -> None:
        """Measure the sum of the elements of each tensor; arguments as for ``norms``."""
        self._columns[what, part] = [
            _Results(
                what,
                group.names,
                _wide(torch.stack([each.sum(dtype=group.dtype) for each in group.tensors])),
                are_squares=False,
                groups=group.shards,
            )
            for group in _groups(tensors)
        ]

    def scalars(self, what: str, values: Mapping[str, Tensor]) -> None:
        """Take tensors with one element each, by name. They add to those taken before."""
        for device in dict.fromkeys(value.device for value in values.values()):
            own = {name: value.detach().reshape(()) for name, value in values.items() if value.device == device}
            results = torch.stack([value.to(widest(device)) for value in own.values()])
            column = _Results(what, [*own], results, are_squares=False, groups=())
            self._columns.setdefault((what, "scalars"), []).append(column)

    def has(self, what: str) -> bool:
        """Whether something of this kind was measured."""
        return any(kind == what and columns for (kind, _), columns in self._columns.items())

    def rename(self, what: str, new: str) -> bool:
        """Let a measurement replace one of another name. Return whether there is one."""
        moved = {part: columns for (kind, part), columns in self._columns.items() if kind == what}
        self.drop(what)
        for part, columns in moved.items():
            self._columns[new, part] = [column._replace(what=new) for column in columns]
        return bool(moved)

    def drop(self, what: str) -> None:
        """Forget what was measured under a name."""
        self._columns = {key: columns for key, columns in self._columns.items() if key[0] != what}

    def bundle(self, compute: Callable[[Numbers], Mapping[str, float]]) -> Bundle | None:
        """Join all results, one vector for each device, and return them with the computation; None without any.

        In a job whose ranks share parameters in parts, this is collective.

        Args:
            compute: Computes metrics from the numbers. Which metrics depends on the names alone.
        """
        joined: dict[tuple[Any, Any], list[_Results]] = {}
        for columns in self._columns.values():
            for column in columns:
                joined.setdefault((column.results.device, column.groups), []).append(column)
        if not joined:
            return None
        vectors = []
        for (_, groups), columns in joined.items():
            vector = torch.cat([column.results for column in columns])
            for group in groups:
                torch.distributed.all_reduce(vector, group=group)
            vectors.append(vector)
        # The results stay behind: a bundle that waits for its copy holds no more than names.
        listed = [[(each.what, each.names, each.are_squares) for each in columns] for columns in joined.values()]
        dummies: dict[str, dict[str, float]] = {}
        for what, named, _ in (each for columns in listed for each in columns):
            dummies.setdefault(what, {}).update(dict.fromkeys(named, 1.0))
        names = tuple(compute(dummies))

        def derive(host: Sequence[Any]) -> dict[str, float]:
            numbers: dict[str, dict[str, float]] = {}
            for columns, vector in zip(listed, host, strict=True):
                results = iter(vector.tolist())
                for what, named, are_squares in columns:
                    found = itertools.islice(results, len(named))
                    numbers.setdefault(what, {}).update(
                        zip(named, map(math.sqrt, found) if are_squares else found, strict=True)
                    )
            metrics = compute(numbers)
            return {name: metrics.get(name, math.nan) for name in names}

        return Bundle(names, vectors, derive)


class _Results(NamedTuple):
    """Results of one measurement that lie on one device.

    Attributes:
        what: What was measured.
        names: Of the tensors.
        results: Norms as squares, so that results are additive over parts of a tensor. Shape (n,).
        are_squares: Whether these are squares of norms.
        groups: The process groups over which the parts add up; empty for whole tensors.
    """

    what: str
    names: Sequence[str]
    results: Tensor
    are_squares: bool
    groups: tuple[Any, ...]


class _Alike(NamedTuple):
    """Tensors of one device and type, in the parts that this rank holds.

    Attributes:
        dtype: The type to reduce in.
        shards: The process groups over which the parts add up.
    """

    dtype: torch.dtype
    shards: tuple[Any, ...]
    names: list[str]
    tensors: list[Tensor]


def _groups(tensors: Mapping[str, Tensor]) -> list[_Alike]:
    groups: dict[Hashable, _Alike] = {}
    for name, tensor in tensors.items():
        local, shards = _local(tensor.detach())
        local = dense(local)
        if _is_freed(local):
            continue
        wide = torch.float64 if local.dtype is torch.float64 else torch.float32
        key = (local.device, local.dtype, shards)
        group = groups.get(key) or groups.setdefault(key, _Alike(wide, shards, [], []))
        group.names.append(name)
        group.tensors.append(local if local.numel() else local.new_zeros(1))
    return [*groups.values()]


def _local(tensor: Any) -> tuple[Tensor, tuple[Any, ...]]:
    """Return this rank's part of a tensor, and the process groups over which the parts add up."""
    if not is_distributed(tensor):
        return tensor, ()
    mesh = tensor.device_mesh
    shards = tuple(mesh.get_group(index) for index, placement in enumerate(tensor.placements) if placement.is_shard())
    return tensor.to_local(), shards


def _is_freed(tensor: Tensor) -> bool:
    """Whether FSDP has freed the memory of a tensor. Reading it would end the process."""
    return type(tensor) is Tensor and tensor.numel() > 0 and not tensor.untyped_storage().size()


def _squares(group: _Alike) -> Tensor:
    """Return the squared L2 norm of each tensor.

    On a CPU, torch adds up all elements one after the other in 32 bits: a norm of 38 million is 0.3 % off. So large
    tensors are measured in pieces there.
    """
    if not any(each.is_cpu and each.numel() > _PIECE for each in group.tensors):
        return _wide(_foreach_norm(group, 2.0)).square_()
    pieces = [torch.split(each.flatten(), _PIECE) for each in group.tensors]
    listed = group._replace(tensors=[piece for each in pieces for piece in each])
    owners = torch.arange(len(pieces)).repeat_interleave(torch.tensor([len(each) for each in pieces]))
    squares = _wide(_foreach_norm(listed, 2.0)).square_()
    return squares.new_zeros(len(pieces)).index_add_(0, owners, squares)


def _foreach_norm(group: _Alike, order: float) -> Tensor:
    # torch's clip_grad_norm_ measures with the same function.
    return torch.stack(torch._foreach_norm(group.tensors, order, dtype=group.dtype))


def _wide(results: Tensor) -> Tensor:
    return results.to(widest(results.device))


def histogram(tensor: Tensor) -> Tensor:
    """Return the least and the greatest finite element, and how many elements lie in each bin between them.

    Shape (2 + 64,). The last bin includes the greatest element. Elements that are not finite are not counted; without
    a finite one, least and greatest are infinite with the wrong sign.
    """
    with torch.no_grad():
        values = dense(tensor.detach()).flatten()
        wide, finite = widest(values.device), values.isfinite()
        counts = torch.zeros(_BINS, dtype=wide, device=values.device)
        padded = torch.cat([values, values.new_tensor([torch.inf, -torch.inf])])
        is_known = torch.cat([finite, finite.new_zeros(2)])
        least = padded.where(is_known, torch.inf).amin().to(wide)
        most = padded.where(is_known, -torch.inf).amax().to(wide)
        width = (most - least).clamp_min(torch.finfo(torch.float32).tiny)
        for part, counted in zip(torch.split(values, _AT_ONCE), torch.split(finite, _AT_ONCE), strict=True):
            # The difference of two halves may overflow, and has too few digits for 64 bins.
            part = part.to(torch.promote_types(part.dtype, torch.float32))
            places = ((part - least) / width * _BINS).nan_to_num(0.0, 0.0, 0.0).clamp_(0, _BINS - 1).long()
            # In 32 bits a count ends at 2**24, which a part does not reach.
            counts += torch.zeros(_BINS, device=values.device).index_add_(0, places, counted.float())
        return torch.cat([torch.stack([least, most]), counts])


def tails(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of the elements beyond ten root mean squares, and of those within a thousandth of one.

    Without an element, and where one is not finite, both are NaN.
    """
    with torch.no_grad():
        values = dense(tensor.detach()).flatten()
        wide = widest(values.device)
        parts = torch.split(values, _AT_ONCE)
        norm: Tensor = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(part, dtype=wide) for part in parts])
        )
        rms = (norm / math.sqrt(max(values.numel(), 1))).reshape(1)  # Without a dimension it would be rounded.
        far = torch.stack([(part.abs() > _FAR * rms).sum() for part in parts]).sum()
        near = torch.stack([(part.abs() <= _NEAR * rms).sum() for part in parts]).sum()
        is_known = rms.isfinite().reshape(()) & (values.numel() > 0)
        shares = torch.stack([far, near]).to(wide) / max(values.numel(), 1)
        outliers, zeros = shares.where(is_known, math.nan).unbind()
        return outliers, zeros


def is_measurable(tensor: Tensor) -> bool:
    """Whether a tensor has values of its own that sums and norms can be taken of."""
    if isinstance(tensor, torch.nn.parameter.UninitializedParameter) or tensor.is_meta:
        return False
    if is_distributed(tensor) and any(placement.is_partial() for placement in getattr(tensor, "placements", ())):
        return False
    return tensor.is_floating_point() or tensor.is_complex()


def dense(tensor: Tensor) -> Tensor:
    """Return the elements that a tensor stores: values of a sparse one, real and imaginary parts of a complex one.

    Those of eight bits come as bfloat16, which holds them exactly: torch computes no norm of them.
    """
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    if tensor.dtype.itemsize == 1:
        return tensor.to(torch.bfloat16)
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def widest(device: torch.device) -> torch.dtype:
    """Return the widest type that a device computes in. Squares of large norms overflow in 32 bits."""
    return torch.float32 if device.type == "mps" else torch.float64
