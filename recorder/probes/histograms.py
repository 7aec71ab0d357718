"""Counts the elements of a tensor in equal bins, without a wait for the device."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from .norms import dense, widest

BINS: Final = 64

#: Elements that are sorted into bins at a time, so that their indexes need little memory.
_AT_ONCE: Final = 1 << 22


def histogram(tensor: Tensor) -> Tensor:
    """Return the least and the greatest finite element, and how many elements lie in each bin between them.

    Shape (2 + 64,). The last bin includes the greatest element. Elements that are not finite are not counted; without
    a finite one, least and greatest are infinite with the wrong sign.
    """
    with torch.no_grad():
        values = dense(tensor.detach()).flatten()
        wide, finite = widest(values.device), values.isfinite()
        counts = torch.zeros(BINS, dtype=wide, device=values.device)
        padded = torch.cat([values, values.new_tensor([torch.inf, -torch.inf])])
        is_known = torch.cat([finite, finite.new_zeros(2)])
        least = padded.where(is_known, torch.inf).amin().to(wide)
        most = padded.where(is_known, -torch.inf).amax().to(wide)
        width = (most - least).clamp_min(torch.finfo(torch.float32).tiny)
        for part, counted in zip(torch.split(values, _AT_ONCE), torch.split(finite, _AT_ONCE), strict=True):
            # The difference of two halves may overflow, and has too few digits for 64 bins.
            part = part.to(torch.promote_types(part.dtype, torch.float32))
            places = ((part - least) / width * BINS).nan_to_num(0.0, 0.0, 0.0).clamp_(0, BINS - 1).long()
            # In 32 bits a count ends at 2**24, which a part does not reach.
            counts += torch.zeros(BINS, device=values.device).index_add_(0, places, counted.float())
        return torch.cat([torch.stack([least, most]), counts])
