"""Samples of the machine come from another process, which ends with the training and never holds it up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S, until

from steptape import Recorder, TelemetryError, open_run, verify
from steptape.recorder.process.sampling_service import Gpus, Machine, Rates, reason_of, visible_devices
from steptape.rules.metric_catalogue import CATALOGUE, Cadence
from steptape.store.events import Event

#: The shortest interval.
OFTEN_S = 0.1

RULE = """
controllers:
  - name: sampled
    triggers: [on_system]
    rule: series("System/rss_mb") > 1 and count(series("System/rss_mb"), 100) >= 2
    operations: [hfcontrols.should_log]
    once: true
  - name: high
    triggers: [on_step_end]
    rule: series("System/rss_mb") > 1 and loss > 0
    operations: [hfcontrols.should_save]
    once: true
"""

#: What nvidia-ml-py shows of a machine with two GPUs. The second cannot say how busy it is.
TWO_GPUS = '''
from types import SimpleNamespace

NVML_TEMPERATURE_GPU = 0


class NVMLError(Exception):
    """An error of the driver."""


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetUUID(handle):
    return ["GPU-a1", b"GPU-b2"][handle]


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(used=(1 << 30) * (1 + handle), total=4 << 30)


def nvmlDeviceGetUtilizationRates(handle):
    if handle:
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=70)


def nvmlDeviceGetTemperature(handle, sensor):
    return 50 + handle


def nvmlDeviceGetPowerUsage(handle):
    return 250_500
'''


def events(folder: Path, *kinds: str) -> list[Event]:
    """Return the events of some kinds."""
    return [event for event in open_run(folder).events() if event.kind in kinds]


def absent(folder: Path) -> dict[str, str]:
    """Return the reasons of a run's notes on metrics that are absent."""
    found: dict[str, str] = {}
    for event in events(folder, "annotation"):
        found |= event.attrs.get("absent", {})
    return found


def step_until(rec: Recorder, is_true: Callable[[], Any]) -> None:
    """Train until a condition holds."""

    def look() -> Any:
        rec.step(loss=1.0)
        return is_true()

    until(look)


def has(rec: Recorder, kind: str, count: int = 1) -> Callable[[], bool]:
    """Return a condition: the run has so many events of a kind."""
    return lambda: len(events(rec.folder, kind)) >= count


def sampler(rec: Recorder) -> int:
    """Return the id of the sampling process."""
    assert rec._live.system is not None
    assert rec._live.system._process is not None
    return rec._live.system._process.pid


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or nobody has asked for its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def stand_in(folder: Path, module: str, text: str) -> Path:
    """Write a module that precedes an installed one, and return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(text)
    return folder


def test_samples_of_the_machine_become_events(tmp_path: Path) -> None:
    """Their metrics are in the catalogue, and each says when it was taken."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system", 3))
    samples = events(rec.folder, "system")
    known = {entry.name for entry in CATALOGUE if entry.cadence is Cadence.SAMPLE}

    assert {name for event in samples for name in event.metrics} <= known
    assert all(event.metrics["System/rss_mb"] > 1 for event in samples)
    assert all(0 <= event.metrics["System/memory_used_frac"] <= 1 for event in samples)
    assert all(0 <= event.metrics.get("System/cpu_frac", 0) <= 1 for event in samples)
    assert "System/process_cpu_cores" in samples[1].metrics
    taken = [event.attrs["sampled_ns"] for event in samples]
    assert taken == sorted(taken)
    assert all(event.attrs["sampled_ns"] <= event.elapsed_ns for event in samples)


def test_what_is_absent_is_recorded_once_with_its_reason(tmp_path: Path) -> None:
    """This machine has no GPU, or shows it."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system", 3))
        reasons = rec._live.system.absent if rec._live.system else {}
    has_gpu = any(name.startswith("GPU/") for event in events(rec.folder, "system") for name in event.metrics)

    assert absent(rec.folder) == reasons
    assert has_gpu or any(name.startswith("GPU/") and why for name, why in reasons.items())
    assert len([event for event in events(rec.folder, "annotation") if "absent" in event.attrs]) <= 1


@pytest.mark.parametrize("module", ["psutil", "pynvml"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """What the other package shows is recorded all the same."""
    monkeypatch.syspath_prepend(stand_in(tmp_path / "lib", module, "raise ImportError"))
    with Recorder(tmp_path / "runs") as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, lambda: "absent" in {key for event in events(rec.folder, "annotation") for key in event.attrs})
    pattern, command = {"psutil": ("System/*", "psutil"), "pynvml": ("GPU/*", "nvidia-ml-py")}[module]

    assert absent(rec.folder)[pattern].endswith(f"is not installed: pip install {command}")


def test_a_sampler_with_nothing_to_sample_ends_without_a_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both packages are missing: two reasons, no event, no process."""
    lib = stand_in(tmp_path / "lib", "psutil", "raise ImportError")
    monkeypatch.syspath_prepend(stand_in(lib, "pynvml", "raise ImportError"))
    with Recorder(tmp_path / "runs") as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, lambda: rec._live.system is not None and rec._live.system._process is None)
        for _ in range(3):
            rec.step(loss=1.0)

    assert sorted(absent(rec.folder)) == ["GPU/*", "System/*"]
    assert not events(rec.folder, "system")
    assert not any("ended" in event.attrs["text"] for event in events(rec.folder, "annotation"))


def test_the_first_sample_comes_at_once(tmp_path: Path) -> None:
    """It does not wait for an interval; a run that ends takes what has come."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(3600)
        rec.step(loss=1.0)
        process = rec._live.system._process if rec._live.system else None
        assert process is not None
        assert process.has_answered(within_s=PATIENCE_S)

    assert len(events(rec.folder, "system")) == 1
    assert events(rec.folder, "system", "train_end")[-1].kind == "train_end"


def test_the_sampler_ends_when_its_training_is_killed(tmp_path: Path) -> None:
    """A SIGKILL leaves the training no time for anything."""
    program = """
import sys, time
from steptape import Recorder

rec = Recorder(sys.argv[1])
rec.watch_system(0.1)
rec.step(loss=1.0)
print(rec._live.system._process.pid, flush=True)
time.sleep(1000)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as training:
        assert training.stdout is not None
        pid = int(training.stdout.readline())
        was_there = not has_ended(pid)
        training.kill()

    assert was_there
    until(lambda: has_ended(pid))


def test_the_sampler_ends_with_its_run(tmp_path: Path) -> None:
    """Its process is reaped."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(OFTEN_S)
        pid = sampler(rec)

    assert has_ended(pid)
    assert not Path(f"/proc/{pid}").exists()


def test_a_stopped_sampler_is_told_of_once_and_continues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No call of the loop waits for it: a wait would never end."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system"))
        os.kill(sampler(rec), signal.SIGSTOP)
        step_until(rec, lambda: "is stalled" in caplog.text)
        os.kill(sampler(rec), signal.SIGCONT)
        known = len(events(rec.folder, "system"))
        step_until(rec, has(rec, "system", known + 2))

    assert caplog.text.count("is stalled") == 1
    assert len([event for event in events(rec.folder, "annotation") if "is stalled" in event.attrs["text"]]) == 1


def test_a_dead_sampler_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The reason is in the run, too."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system"))
        os.kill(sampler(rec), signal.SIGKILL)
        step_until(rec, lambda: "has ended" in caplog.text)
        for _ in range(100):
            rec.step(loss=1.0)

    assert caplog.text.count("the sampling process has ended with status -9") == 1
    assert sorted(name for name in absent(rec.folder) if name.endswith("*")) == ["GPU/*", "System/*"]


def test_a_sampler_that_cannot_be_started_costs_the_metrics_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The training is recorded."""
    with Recorder(tmp_path) as rec:
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        rec.watch_system(OFTEN_S)
        monkeypatch.undo()
        rec.step(loss=1.0)

    assert "could not be started" in caplog.text
    assert len(events(rec.folder, "step_end")) == 1


def test_a_pipe_that_holds_something_else_ends_the_sampling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A library may print into the pipe before the program claims it."""
    monkeypatch.syspath_prepend(stand_in(tmp_path / "lib", "sitecustomize", "print('hello' * 100, flush=True)"))
    with Recorder(tmp_path / "runs") as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, lambda: "pipe of the sampling process broke" in caplog.text)

    assert not events(rec.folder, "system")


def test_rules_judge_samples_live_as_in_replay(tmp_path: Path) -> None:
    """The trigger is ``on_system``; a rule of a step reads the newest sample."""
    rules = tmp_path / "policy.yaml"
    rules.write_text(RULE)
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, lambda: rec.control.should_save and rec.control.should_log)
        rec.save("one", size_bytes=1)
    run = open_run(rec.folder)

    assert verify(run).identical
    assert sorted(event.attrs["controller"] for event in events(rec.folder, "decision")) == ["high", "sampled"]


def test_a_forked_child_neither_reads_nor_ends_its_parents_sampler(tmp_path: Path) -> None:
    """A worker that lives on does not keep the sampler alive either."""
    program = """
import os, sys, time
from steptape import Recorder

rec = Recorder(sys.argv[1])
rec.watch_system(0.1)
if os.fork() == 0:
    assert rec._live.system._process is None
    rec.step(loss=1.0)
    time.sleep(1000)
rec.step(loss=1.0)
print(rec._live.system._process.pid, flush=True)
time.sleep(1000)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as training:
        assert training.stdout is not None
        pid = int(training.stdout.readline())
        training.kill()
        until(lambda: has_ended(pid))
        os.killpg(training.pid, signal.SIGKILL)


def test_sampling_survives_a_rollback(tmp_path: Path) -> None:
    """The process goes on, and its samples are events of the new attempt."""
    rules = tmp_path / "policy.yaml"
    rules.write_text(
        "controllers:\n  - {name: back, triggers: [on_step_end], rule: loss > 5, once: true, "
        "operations: ['rollback.to(\"last\")']}\n"
    )
    with Recorder(tmp_path / "runs", rules=rules) as rec:
        rec.handle("rollback.to", lambda _: None)
        rec.watch_system(OFTEN_S)
        pid = sampler(rec)
        rec.step(loss=1.0)
        rec.save("one", size_bytes=1)
        rec.step(loss=9.0)
        step_until(rec, lambda: any(event.attempt == 1 for event in events(rec.folder, "system")))

        assert sampler(rec) == pid
    assert has_ended(pid)


def test_a_checkpoint_may_be_loaded_after_sampling_has_begun(tmp_path: Path) -> None:
    """Samples wait until the loop has recorded something."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        state = rec.state_dict()
    with Recorder(tmp_path) as rec:
        rec.watch_system(OFTEN_S)
        process = rec._live.system._process if rec._live.system else None
        assert process is not None
        assert process.has_answered(within_s=PATIENCE_S)
        rec.declare(constants={"k": 1.0})
        rec.load_state_dict(state)
        step_until(rec, has(rec, "system"))

    assert {event.attempt for event in events(rec.folder, "system")} == {1}


def test_of_several_calls_the_shortest_interval_counts(tmp_path: Path) -> None:
    """One process samples."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(3600)
        first = sampler(rec)
        rec.watch_system(3600)
        assert sampler(rec) == first
        rec.watch_system(OFTEN_S)
        second = sampler(rec)
        rec.watch_system(15)

        assert second == sampler(rec) != first
        assert has_ended(first)


@pytest.mark.parametrize("every_s", [0, 0.05, -1, float("nan"), float("inf"), "15", None, True])
def test_a_wrong_interval_is_objected_to(tmp_path: Path, every_s: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is sampled then."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(every_s)

        assert rec._live.system is None
    assert "every_s must be" in caplog.text
    with Recorder(tmp_path, strict=True) as rec, pytest.raises(TelemetryError, match="every_s"):
        rec.watch_system(every_s)


def test_a_recorder_without_a_run_samples_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disabled one says nothing, a closed one that its run has ended."""
    Recorder(tmp_path, mode="disabled").watch_system()
    rec = Recorder(tmp_path)
    rec.close()
    rec.watch_system()

    assert "has ended" in caplog.text
    assert rec._live.system is None


def test_samples_wait_for_no_late_value(tmp_path: Path) -> None:
    """The pipe is read in the middle of a step, and a copy from a device may take arbitrarily long."""
    with Recorder(tmp_path) as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system"))
        rec.step(awaits=["loss"])
        known = len(events(rec.folder, "system"))
        until(lambda: bool(rec.log(other=1.0)) or has(rec, "system", known + 1)())
        rec.late(rec.progress.updates, loss=2.0)
    late = [event for event in events(rec.folder, "step_end") if event.is_late]

    assert [dict(event.metrics) for event in late] == [{"loss": 2.0}]


def test_a_silent_step_leaves_the_pipe_alone(tmp_path: Path) -> None:
    """The fast path of a step is the same with and without sampling."""
    with Recorder(tmp_path) as rec:
        quick = rec.step
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system"))

        assert rec.step is quick


def test_the_program_of_the_process_loads_neither_torch_nor_the_recorder() -> None:
    """It would take memory and time of the training's machine."""
    code = "import sys, steptape.recorder.process.sampling_service; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"torch", "numpy", "pyarrow", "duckdb", "steptape.recorder.recorder"}.isdisjoint(loaded)


# --- what is read ----------------------------------------------------------------------------------------------------


def test_the_gpu_with_the_greatest_share_of_used_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot say is absent with the driver's reason, through process and pipe."""
    monkeypatch.syspath_prepend(stand_in(tmp_path / "lib", "pynvml", TWO_GPUS))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with Recorder(tmp_path / "runs") as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system"))
    (sample, *_) = events(rec.folder, "system")

    assert {name: value for name, value in sample.metrics.items() if name.startswith("GPU/")} == {
        "GPU/memory_used_mb": 2048.0,
        "GPU/memory_used_frac": 0.5,
        "GPU/temperature_c": 51.0,
        "GPU/power_w": 250.5,
    }
    assert absent(rec.folder)["GPU/utilization"] == "NVMLError: Not Supported"


def test_a_real_gpu_is_sampled(tmp_path: Path) -> None:
    """A tensor of 1 GiB shows, with a temperature and a power draw."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    held = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with Recorder(tmp_path / "runs") as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system"))
    (sample, *_) = events(rec.folder, "system")
    used_mb, used_frac = sample.metrics["GPU/memory_used_mb"], sample.metrics["GPU/memory_used_frac"]

    assert held.nbytes / 2**20 <= used_mb
    assert used_mb / used_frac == pytest.approx(torch.cuda.get_device_properties(0).total_memory / 2**20, rel=0.05)
    assert 0 <= sample.metrics["GPU/utilization"] <= 100
    assert 10 < sample.metrics["GPU/temperature_c"] < 100
    assert 10 < sample.metrics["GPU/power_w"] < 1000


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("0,0", [0]),
        ("1,7,0", [1]),
        ("GPU-b", [1]),
        ("GPU-", []),
        ("GPU-c3,GPU-a1", [2, 0]),
    ],
)
def test_visible_gpus_are_those_of_cuda(visible: str | None, shown: list[int]) -> None:
    """An entry that names no GPU, several or one twice ends the list."""
    assert visible_devices(visible, ["GPU-a1", "GPU-b2", "GPU-c3"]) == shown


def test_a_process_that_sees_no_gpu_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason names the environment variable."""
    monkeypatch.syspath_prepend(stand_in(tmp_path / "lib", "pynvml", TWO_GPUS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with Recorder(tmp_path / "runs") as rec:
        rec.watch_system(OFTEN_S)
        step_until(rec, has(rec, "system"))

    assert "CUDA_VISIBLE_DEVICES is '-1'" in absent(rec.folder)["GPU/*"]


def test_a_rate_needs_two_samples_and_survives_a_reset_of_its_counter() -> None:
    """Network counters begin again when a device is replaced."""
    rates = Rates()

    assert [rates.since_before("n", count, now_s) for now_s, count in enumerate([5, 25, 3, 4])] == [None, 20, None, 1]
    assert rates.since_before("n", 9, 3) is None  # The clock has not moved.


def test_busy_cores_of_the_process_are_what_the_kernel_counts(tmp_path: Path) -> None:
    """The bounds hold however long the machine lets this process wait; the kernel counts in ticks of 10 ms."""
    psutil = pytest.importorskip("psutil")
    machine = Machine(psutil, os.getpid(), str(tmp_path))
    outer = time.process_time(), time.monotonic()
    machine.read()
    inner = time.process_time(), time.monotonic()
    while time.process_time() < inner[0] + 0.5:
        pass
    inner_cpu_s, inner_s = time.process_time() - inner[0], time.monotonic() - inner[1]
    metrics, _ = machine.read()
    outer_cpu_s, outer_s = time.process_time() - outer[0], time.monotonic() - outer[1]

    cores = metrics["System/process_cpu_cores"]
    assert (inner_cpu_s - 0.03) / outer_s <= cores <= (outer_cpu_s + 0.03) / inner_s


def test_a_machine_without_counters_lacks_only_their_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may show no disks. The reason comes once."""
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
    machine = Machine(psutil, os.getpid(), str(tmp_path))
    _, absent_at_first = machine.read()
    metrics, absent_then = machine.read()

    assert sorted(absent_at_first) == ["System/disk_read_mb_per_s", "System/disk_write_mb_per_s"]
    assert absent_then == {}
    assert "System/rss_mb" in metrics


def test_a_reason_is_one_short_line() -> None:
    """A frame of the pipe is written whole only below 4 KiB."""
    assert reason_of(OSError("no\n  such " + "x" * 500)) == "OSError: no such " + "x" * 140 + "..."


def test_a_slice_of_a_gpu_is_found_by_its_uuid() -> None:
    """MIG devices have no index of their own."""

    class Driver:
        NVML_TEMPERATURE_GPU = 0

        def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:  # noqa: N802 - NVML's name
            return uuid.decode()

    gpus = Gpus(Driver(), "MIG-1,MIG-2")

    assert gpus._handles == ["MIG-1"]
