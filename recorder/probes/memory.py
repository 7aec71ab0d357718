"""Reads the counters of the CUDA allocator, which it keeps on the host: no metric waits for the device."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from .probe_values import ProbeGroup, Readings

_MIB: Final = 2**20

_ALL: Final = "Memory/*"


class Memory(ProbeGroup):
    """The memory of the device that holds the model's first parameter.

    Args:
        model: The watched module. It is referenced weakly.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)

    def read(self, readings: Readings) -> None:
        """Add the counters of now."""
        model = self._model()
        parameter = None if model is None else next(model.parameters(), None)
        if not torch.cuda.is_available():
            readings.absent[_ALL] = "no CUDA device is available"
        elif parameter is None or not parameter.is_cuda:
            readings.absent[_ALL] = "the model is not on a CUDA device"
        else:
            device = parameter.device
            total = torch.cuda.get_device_properties(device).total_memory
            metrics = memory_metrics(torch.cuda.memory_stats_as_nested_dict(device), total)
            for name, value in metrics.items():
                readings.number(name, value)


def memory_metrics(stats: Mapping[str, Any], total_bytes: int) -> dict[str, float]:
    """Compute the metrics of the group ``memory``.

    Args:
        stats: As ``torch.cuda.memory_stats_as_nested_dict`` returns it; empty before the first allocation.
        total_bytes: The memory of the device.
    """
    allocated, reserved = (stats.get(f"{kind}_bytes", {}).get("all", {}) for kind in ("allocated", "reserved"))
    in_use = reserved.get("current", 0)
    return {
        "Memory/allocated_mb": allocated.get("current", 0) / _MIB,
        "Memory/reserved_mb": in_use / _MIB,
        "Memory/max_allocated_mb": allocated.get("peak", 0) / _MIB,
        "Memory/max_reserved_mb": reserved.get("peak", 0) / _MIB,
        "Memory/reserved_frac": in_use / total_bytes,
        "Memory/total_mb": total_bytes / _MIB,
    }
