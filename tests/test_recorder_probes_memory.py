"""The counters of the CUDA allocator become metrics; without CUDA the reason is said."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from steptape.recorder.probes.memory import Memory, memory_metrics
from steptape.recorder.probes.probe_values import Readings

MIB = 2**20


def test_counters_are_in_mebibytes_and_shares_of_the_device() -> None:
    """Current and greatest values of all pools."""
    stats = {
        "allocated_bytes": {"all": {"current": 3 * MIB, "peak": 5 * MIB}, "small_pool": {"current": 1}},
        "reserved_bytes": {"all": {"current": 6 * MIB, "peak": 8 * MIB}},
    }

    metrics = memory_metrics(stats, 24 * MIB)

    assert metrics == {
        "Memory/allocated_mb": 3,
        "Memory/reserved_mb": 6,
        "Memory/max_allocated_mb": 5,
        "Memory/max_reserved_mb": 8,
        "Memory/reserved_frac": 0.25,
        "Memory/total_mb": 24,
    }


def test_before_the_first_allocation_nothing_is_in_use() -> None:
    """The allocator has no counters then."""
    metrics = memory_metrics({}, MIB)

    assert metrics.pop("Memory/total_mb") == 1
    assert not any(metrics.values())


def test_a_model_on_the_host_has_no_such_metrics_and_the_reason_is_said() -> None:
    """Whether or not the machine has a GPU."""
    readings, model = Readings(1, is_check=False), nn.Linear(2, 2)

    Memory(model).read(readings)

    reason = "the model is not on" if torch.cuda.is_available() else "no CUDA device"
    assert reason in readings.absent["Memory/*"]
    assert not readings.numbers


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_counters_of_a_device_agree_with_torch() -> None:
    """Read without a synchronisation."""
    readings, model = Readings(1, is_check=False), nn.Linear(1024, 1024, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        Memory(model).read(readings)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    total = torch.cuda.get_device_properties(0).total_memory
    assert readings.numbers == {
        "Memory/allocated_mb": torch.cuda.memory_allocated() / MIB,
        "Memory/reserved_mb": torch.cuda.memory_reserved() / MIB,
        "Memory/max_allocated_mb": torch.cuda.max_memory_allocated() / MIB,
        "Memory/max_reserved_mb": torch.cuda.max_memory_reserved() / MIB,
        "Memory/reserved_frac": torch.cuda.memory_reserved() / total,
        "Memory/total_mb": total / MIB,
    }
