"""Encodes the outcomes of many variants on one run: variants with equal outcomes share a row.

Takes outcomes, returns codes and rows, and the outcomes again, equal to the bit. A variant costs two bytes in place of
about 80 on runs where the variants have at most 65,536 different outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .outcomes import Outcomes

_NAMES: Final = tuple(field.name for field in fields(Outcomes))


@dataclass(frozen=True, eq=False)
class CompactOutcomes:
    """The outcomes of variants on one run, each distinct one once.

    Attributes:
        codes: The row of each variant. Shape (variants,).
        rows: The distinct outcomes.
    """

    codes: npt.NDArray[np.unsignedinteger[Any]]
    rows: Outcomes

    @property
    def size_bytes(self) -> int:
        """Size of the arrays."""
        return int(self.codes.nbytes + sum(getattr(self.rows, name).nbytes for name in _NAMES))

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one outcome of each variant, by its name in ``Outcomes``. Shape (variants,)."""
        found: npt.NDArray[Any] = getattr(self.rows, name)[self.codes]
        return found

    def expanded(self) -> Outcomes:
        """Return the outcomes of each variant."""
        return Outcomes(*map(self.column, _NAMES))


def compact(outcomes: Outcomes) -> CompactOutcomes:
    """Encode outcomes. Floats count as equal if their bits are."""
    columns = [np.ascontiguousarray(getattr(outcomes, name)) for name in _NAMES]
    codes, firsts = np.zeros(len(outcomes.stop_step), np.int64), np.zeros(1, np.int64)
    for column in columns:
        bits = column.view(np.int64 if column.dtype.itemsize == 8 else np.uint8)
        # Most columns follow from the step of the stop: comparing them takes a tenth of the time of sorting them.
        if np.array_equal(bits, bits[firsts][codes]):
            continue
        distinct, values = np.unique(bits, return_inverse=True)
        _, firsts, codes = np.unique(codes * len(distinct) + values, return_index=True, return_inverse=True)
    rows = Outcomes(*(column[firsts] for column in columns))
    return CompactOutcomes(codes.astype(np.min_scalar_type(len(firsts) - 1)), rows)
