"""Samples the machine, a training process and its GPU, in a process of its own, because a thread would stall the loop.

``SystemSampling`` starts it: ``python -m steptape.recorder.process.sampling_service PID INTERVAL_S FOLDER``. It writes
a frame to stdout for each sample: its time on the monotonic clock, the metrics, and why others are absent. It ends
with its parent.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ...store.child_protocol import write_frame
from ...store.own_process import claim_stdout, end_with_parent, limit_process

#: Metrics, and the reasons for those that are absent, by name or pattern.
Sample = tuple[dict[str, float], dict[str, str]]

#: Length limit of a reason: a frame of the pipe is written whole only below 4 KiB.
_MOST_CHARACTERS: Final = 160

_MIB: Final = 1 << 20
_MEMORY_BYTES: Final = 1 << 31
_NICENESS: Final = 10

_NO_PSUTIL: Final = "psutil is not installed: pip install psutil"
_NO_NVML: Final = "nvidia-ml-py is not installed: pip install nvidia-ml-py"


class Rates:
    """Turns counters into rates since the sample before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def since_before(self, name: str, count: float, now_s: float) -> float | None:
        """Return the growth of a counter per second; None at its first sample, and after it was reset."""
        before, self._before[name] = self._before.get(name), (count, now_s)
        if before is None or count < before[0] or now_s <= before[1]:
            return None
        return (count - before[0]) / (now_s - before[1])


class Gauges:
    """Reads named values. One that fails is absent from then on."""

    def __init__(self, readers: Mapping[str, Callable[[], float | None]]) -> None:
        self._readers = dict(readers)

    def read(self) -> Sample:
        """Return the values, and why those that fail for the first time are absent. None is left out."""
        metrics: dict[str, float] = {}
        absent: dict[str, str] = {}
        for name, reader in list(self._readers.items()):
            try:
                value = reader()
            except Exception as error:  # Each source fails in ways of its own: containers, drivers, permissions.
                del self._readers[name]
                absent[name] = reason_of(error)
                continue
            if value is not None:
                metrics[name] = float(value)
        return metrics, absent


class Machine(Gauges):
    """The machine and the training process, by psutil.

    Args:
        psutil: The module.
        pid: The training process.
        folder: A folder on the disk that is watched.
    """

    def __init__(self, psutil: Any, pid: int, folder: str) -> None:
        process, rates = psutil.Process(pid), Rates()

        def rate(name: str, count: float) -> float | None:
            return rates.since_before(name, count, time.monotonic())

        def busy() -> float | None:
            times = psutil.cpu_times()
            idle = times.idle + getattr(times, "iowait", 0.0)
            counted = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            total, rest = rate("total", counted), rate("idle", idle)
            return None if not total or rest is None else min(1.0, max(0.0, 1 - rest / total))

        def cores() -> float | None:
            times = process.cpu_times()
            return rate("process", times.user + times.system)

        def memory() -> float:
            held = psutil.virtual_memory()
            return 1 - float(held.available) / float(held.total)

        def mib_per_s(counters: Callable[[], Any], field: str) -> Callable[[], float | None]:
            def read() -> float | None:
                found = counters()
                if found is None:
                    raise LookupError("the machine shows no such counters")
                per_s = rate(field, getattr(found, field))
                return None if per_s is None else per_s / _MIB

            return read

        super().__init__(
            {
                "System/cpu_frac": busy,
                "System/process_cpu_cores": cores,
                "System/rss_mb": lambda: process.memory_info().rss / _MIB,
                "System/memory_used_frac": memory,
                "System/disk_used_frac": lambda: psutil.disk_usage(folder).percent / 100,
                "System/disk_read_mb_per_s": mib_per_s(psutil.disk_io_counters, "read_bytes"),
                "System/disk_write_mb_per_s": mib_per_s(psutil.disk_io_counters, "write_bytes"),
                "System/net_sent_mb_per_s": mib_per_s(psutil.net_io_counters, "bytes_sent"),
                "System/net_received_mb_per_s": mib_per_s(psutil.net_io_counters, "bytes_recv"),
            }
        )


class Gpus(Gauges):
    """The GPU of the training process, by NVML: of several visible ones, that with the greatest share of used memory.

    Args:
        nvml: The module ``pynvml``, initialised.
        visible: The value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.

    Raises:
        LookupError: No GPU is visible to the training process.
    """

    def __init__(self, nvml: Any, visible: str | None) -> None:
        self._nvml = nvml
        self._handles = _handles(nvml, visible)
        self._handle: Any = self._handles[0]
        self._memory: Any = None

        super().__init__(
            {
                "GPU/memory_used_mb": lambda: self._memory.used / _MIB,
                "GPU/memory_used_frac": lambda: self._memory.used / self._memory.total,
                "GPU/utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu,
                "GPU/temperature_c": lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
                "GPU/power_w": lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            }
        )

    def read(self) -> Sample:
        """Choose the GPU, and read it."""
        held = [(self._nvml.nvmlDeviceGetMemoryInfo(handle), handle) for handle in self._handles]
        self._memory, self._handle = max(held, key=lambda pair: float(pair[0].used / pair[0].total))
        return super().read()


def visible_devices(visible: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the indices of the GPUs that CUDA shows a process, in its order.

    Args:
        visible: The value of ``CUDA_VISIBLE_DEVICES``: indices, or UUIDs that may be cut short. As in CUDA, the first
            entry that names no GPU, or one twice, ends the list. None shows all.
        uuids: The UUIDs of all GPUs, by NVML's index. CUDA counts so with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and on
            machines whose GPUs are all alike.

    >>> visible_devices("1,GPU-a", ["GPU-a1", "GPU-b2"])
    [1, 0]
    """
    if visible is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in map(str.strip, visible.split(",")):
        if re.fullmatch(r"\d+", entry):
            named = [int(entry)] if int(entry) < len(uuids) else []
        else:
            named = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(named) != 1 or named[0] in found:
            break
        found += named
    return found


def reason_of(error: BaseException) -> str:
    """Return the text of an error, for an absent metric."""
    text = " ".join(f"{type(error).__name__}: {error}".encode("ascii", "replace").decode().split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


def main(arguments: Sequence[str]) -> None:
    """Sample until the parent ends, or until nothing is left to sample."""
    # A terminal sends Ctrl-C to the whole process group; it is meant for the training.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = claim_stdout()
    # A loop that reads nothing for a long time loses samples, and the samples that it finds then are not late.
    os.set_blocking(pipe, False)
    limit_process(_MEMORY_BYTES, writes_files=False, niceness=_NICENESS)
    end_with_parent()
    pid, interval_s, folder = int(arguments[0]), float(arguments[1]), arguments[2]
    sources, absent = _sources(pid, folder)
    due_s = time.monotonic()
    while True:
        sampled_ns = time.monotonic_ns()
        metrics: dict[str, float] = {}
        for source in list(sources):
            try:
                found, failed = source.read()
            except Exception as error:  # A GPU that falls off the bus must not end the samples of the machine.
                sources.remove(source)
                found, failed = {}, {"GPU/*" if isinstance(source, Gpus) else "System/*": reason_of(error)}
            metrics |= found
            absent |= failed
        with suppress(TimeoutError):
            write_frame(pipe, {"sampled_ns": sampled_ns, "metrics": metrics, "absent": absent}, until_s=0)
            absent = {}
        if not sources:
            return
        due_s = max(due_s + interval_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))


def _sources(pid: int, folder: str) -> tuple[list[Gauges], dict[str, str]]:
    """Return what can be read here, and why the rest cannot."""
    sources: list[Gauges] = []
    absent: dict[str, str] = {}
    for make, pattern in ((lambda: _machine(pid, folder), "System/*"), (_gpus, "GPU/*")):
        try:
            sources.append(make())
        except Exception as error:  # A broken installation or driver may raise anything.
            absent[pattern] = str(error) if isinstance(error, LookupError) else reason_of(error)
    return sources, absent


def _machine(pid: int, folder: str) -> Machine:
    try:
        import psutil
    except ImportError:
        raise LookupError(_NO_PSUTIL) from None
    return Machine(psutil, pid, folder)


def _gpus() -> Gpus:
    try:
        import pynvml
    except ImportError:
        raise LookupError(_NO_NVML) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise LookupError(f"no NVIDIA GPU: {error}") from None
    return Gpus(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    """Return NVML's handles of the visible GPUs, or of the first slice of one (MIG)."""
    if visible is not None and visible.strip().startswith("MIG-"):
        return [nvml.nvmlDeviceGetHandleByUUID(visible.split(",")[0].strip().encode())]
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    shown = visible_devices(visible, [*_texts(map(nvml.nvmlDeviceGetUUID, handles))])
    if not shown:
        raise LookupError(f"no NVIDIA GPU is visible to the process; CUDA_VISIBLE_DEVICES is {visible!r}")
    return [handles[index] for index in shown]


def _texts(values: Iterable[str | bytes]) -> Iterable[str]:
    """Yield texts. Older versions of nvidia-ml-py return bytes."""
    return (value.decode() if isinstance(value, bytes) else value for value in values)


if __name__ == "__main__":
    main(sys.argv[1:])
