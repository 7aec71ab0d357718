"""Compares other recorders with steptape: the time of a step of ten floats, and the loss after SIGKILL.

    .venv/bin/python benchmarks/record.py --peers      # those that are installed: one JSON line each
    python benchmarks/peers.py                         # the same, where torch is missing

None of them is a dependency; install the wanted ones with ``pip install trackio wandb tensorboard mlflow aim``. Each
runs in its own processes, offline and with its telemetry off, in the form that its documentation shows for a loop.

A loop to be killed calls once a millisecond and counts, in shared memory, the calls that returned. Only the loop is
killed, helper processes have time to finish, and then the peer's own reader counts the steps.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Log = Callable[[int, dict[str, float]], object]
Close = Callable[[], object]

METRICS: Final = 10
ACKS_BYTES: Final = 8
KILLS: Final = 3
#: Seconds that a loop lives after its first call.
LIFE_S: Final = (1.5, 4.0)
#: Seconds that helper processes have to write what they hold.
HELPERS_S: Final = 2.0
#: A peer is timed over this many rounds of this many calls, or for this long.
ROUNDS: Final = 40
CALLS: Final = 100
TIMED_S: Final = 15.0
TIMEOUT_S: Final = 120.0

ENVIRONMENT: Final = {
    "AIM_UI_TELEMETRY_ENABLED": "0",
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
}


def open_steptape(folder: Path) -> tuple[Log, Close]:
    """Open a recorder."""
    from steptape import Recorder

    recorder = Recorder(folder / "runs", quiet=True)
    return lambda _step, metrics: recorder.step(metrics), recorder.close


def count_steptape(folder: Path) -> int:
    """Count the steps of the one run there."""
    from steptape import open_store

    (run,) = open_store(folder / "runs")
    return int(run.series("metric_9").num_rows)


def open_trackio(folder: Path) -> tuple[Log, Close]:
    """Open a run in a local database."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    trackio.init(project="peers", name="run", embed=False, auto_log_gpu=False, auto_log_cpu=False)
    return lambda step, metrics: trackio.log(metrics, step=step), trackio.finish


def count_trackio(folder: Path) -> int:
    """Count the rows with the reader of its dashboard."""
    os.environ["TRACKIO_DIR"] = str(folder)
    from trackio.sqlite_storage import SQLiteStorage

    return sum("metric_9" in row for row in SQLiteStorage.get_logs("peers", "run"))


def open_wandb(folder: Path) -> tuple[Log, Close]:
    """Open an offline run."""
    import wandb

    run = wandb.init(project="peers", dir=str(folder), mode="offline")
    return lambda step, metrics: run.log(metrics, step=step), run.finish


def count_wandb(folder: Path) -> int:
    """Count the history records in the file of the offline run, which has no public reader."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    steps = 0
    for data in log_records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        steps += record.WhichOneof("record_type") == "history"
    return steps


def log_records(data: bytes) -> Iterator[bytes]:
    """Yield the whole records of a file of wandb's: LevelDB's log format after a preamble of seven bytes."""
    head = struct.Struct("<IHB")
    block_bytes, full, first, last = 32_768, 1, 2, 4
    position, pending = head.size, b""
    while position + head.size <= len(data):
        if block_bytes - position % block_bytes < head.size:
            position += block_bytes - position % block_bytes
            continue
        checksum, length, kind = head.unpack_from(data, position)
        piece = data[position + head.size : position + head.size + length]
        if len(piece) < length or zlib.crc32(piece, zlib.crc32(bytes((kind,)))) != checksum:
            return
        position += head.size + length
        pending = piece if kind in (full, first) else pending + piece
        if kind in (full, last):
            yield pending


def open_tensorboard(folder: Path) -> tuple[Log, Close]:
    """Open its event file writer, one event a step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))

    def log(step: int, metrics: dict[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    return log, writer.close


def count_tensorboard(folder: Path) -> int:
    """Count the points of the last of the ten."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return len(accumulator.Scalars("metric_9")) if "metric_9" in accumulator.Tags()["scalars"] else 0


def open_mlflow(folder: Path) -> tuple[Log, Close]:
    """Open a run in a local SQLite database, logged to synchronously as by default."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.create_experiment("peers", artifact_location=str(folder / "artifacts"))
    mlflow.set_experiment("peers")
    mlflow.start_run()
    return lambda step, metrics: mlflow.log_metrics(metrics, step=step), mlflow.end_run


def count_mlflow(folder: Path) -> int:
    """Count the points of the last of the ten."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("peers")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return len(client.get_metric_history(run.info.run_id, "metric_9"))


def open_aim(folder: Path) -> tuple[Log, Close]:
    """Open a run in a local repository."""
    import aim

    run = aim.Run(repo=str(folder), system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False)
    return lambda step, metrics: run.track(metrics, step=step), run.close


def count_aim(folder: Path) -> int:
    """Count the points of the last of the ten, once its index has the run, which its server normally adds."""
    from aim import Repo
    from aim.sdk.index_manager import RepoIndexManager
    from aim.sdk.types import QueryReportMode

    repo = Repo.from_path(str(folder))
    (run_hash,) = repo.list_all_runs()
    RepoIndexManager.get_index_manager(repo).index(run_hash)
    found = repo.query_metrics("metric.name == 'metric_9'", report_mode=QueryReportMode.DISABLED)
    return sum(len(metric.values.sparse_list()[0]) for run in found.iter_runs() for metric in run)


@dataclass(frozen=True, slots=True)
class Peer:
    """One recorder: its package, functions that open a run in a folder and count its steps, and the form chosen."""

    package: str
    open: Callable[[Path], tuple[Log, Close]]
    count: Callable[[Path], int]
    form: str = ""


PEERS: Final = (
    Peer("steptape", open_steptape, count_steptape),
    Peer("trackio", open_trackio, count_trackio),
    Peer("wandb", open_wandb, count_wandb, "offline"),
    Peer("tensorboard", open_tensorboard, count_tensorboard, "EventFileWriter, one event a step"),
    Peer("mlflow", open_mlflow, count_mlflow, "sqlite, synchronous"),
    Peer("aim", open_aim, count_aim),
)


def steps_of_floats() -> Iterator[dict[str, float]]:
    """Yield ten random floats a step, endlessly."""
    draw = random.Random(0)
    while True:
        yield {f"metric_{index}": draw.random() for index in range(METRICS)}


def time_calls(peer: Peer, folder: Path) -> dict[str, float]:
    """Time the calls of a loop that does nothing else, against a bare ``os.write`` of ten floats."""
    log, close = peer.open(folder)
    clock = time.perf_counter_ns
    fd = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    record = bytes(8 * METRICS)
    floors: list[float] = []
    medians: list[float] = []
    taken: list[int] = []
    steps = steps_of_floats()
    until = time.monotonic() + TIMED_S
    step = 0
    while len(medians) < ROUNDS and time.monotonic() < until:
        costs, floor = [], []
        for _ in range(CALLS):
            start = clock()
            os.write(fd, record)
            floor.append(clock() - start)
        for _ in range(CALLS):
            metrics = next(steps)
            step += 1
            start = clock()
            log(step, metrics)
            costs.append(clock() - start)
        floors.append(statistics.median(floor))
        medians.append(statistics.median(costs))
        taken += costs
    close()
    taken.sort()
    ratios = [cost / bare for cost, bare in zip(medians, floors, strict=True)]
    return {
        "calls": step,
        "median_us": round(statistics.median(medians) / 1e3, 2),
        "p99_us": round(taken[int(len(taken) * 0.99)] / 1e3, 1),
        "floor_us": round(statistics.median(floors) / 1e3, 2),
        "ratio": round(statistics.median(ratios), 1),
    }


def train(peer: Peer, folder: Path, acks: Path) -> None:
    """Log until killed, once a millisecond."""
    with open(acks, "r+b") as file:
        counter = memoryview(mmap.mmap(file.fileno(), ACKS_BYTES)).cast("q")
    log, _ = peer.open(folder)
    for step, metrics in enumerate(steps_of_floats(), start=1):
        log(step, metrics)
        counter[0] = step
        time.sleep(0.001)


def in_process(peer: Peer, what: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start one of the above in its own process and process group."""
    command = [sys.executable, __file__, peer.package, what, str(folder), *more]
    environment = {**os.environ, **ENVIRONMENT, "HOME": str(folder)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        cwd=folder,
    )  # fmt: skip


def answer(process: subprocess.Popen[str]) -> Any:
    """Wait for a process and return the JSON of its last line.

    Raises:
        RuntimeError: It failed, or took too long.
    """
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
        if process.returncode:
            raise RuntimeError(errors.strip().splitlines()[-1:])
        return json.loads(output.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it took more than {TIMEOUT_S} s") from None
    finally:
        kill_group(process)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and its helpers."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def kill_once(peer: Peer, place: Path, draw: random.Random) -> tuple[int, int]:
    """Return the calls that had returned when a loop was killed, and how many of them cannot be read."""
    acks = place / "acks"
    acks.write_bytes(bytes(ACKS_BYTES))
    folder = place / "folder"
    folder.mkdir()
    with open(acks, "r+b") as file, mmap.mmap(file.fileno(), ACKS_BYTES) as shared:
        loop = in_process(peer, "train", folder, str(acks))
        until = time.monotonic() + TIMEOUT_S
        while not any(shared[:]) and loop.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(draw.uniform(*LIFE_S))
        loop.send_signal(signal.SIGKILL)
        loop.wait()
        acked = int.from_bytes(shared[:], sys.byteorder)
        time.sleep(HELPERS_S)
        kill_group(loop)
    # A step whose call had not returned may be there too.
    return acked, max(0, acked - int(answer(in_process(peer, "count", folder))))


def measure(peer: Peer, draw: random.Random) -> dict[str, Any]:
    """Return the line of one peer."""
    line: dict[str, Any] = {"peer": peer.package, "version": importlib.metadata.version(peer.package)}
    if peer.form:
        line["form"] = peer.form
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            line |= answer(in_process(peer, "time", Path(place)))
        kills = []
        for _ in range(KILLS):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                kills.append(kill_once(peer, Path(place), draw))
        line |= {"acked": [acked for acked, _ in kills], "lost": [lost for _, lost in kills]}
    except RuntimeError as error:
        line["failed"] = str(error)
    return line


def print_peers() -> None:
    """Print a line for each installed recorder."""
    draw = random.Random()
    for peer in PEERS:
        if importlib.util.find_spec(peer.package):
            print(json.dumps(measure(peer, draw)), flush=True)


def main() -> None:
    """Without arguments, print a line for each peer; with arguments, run what the processes above need."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", choices=[peer.package for peer in PEERS])
    parser.add_argument("what", nargs="?", choices=("time", "train", "count"))
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("acks", nargs="?", type=Path)
    arguments = parser.parse_args()
    if arguments.package is None:
        print_peers()
        return
    (peer,) = (peer for peer in PEERS if peer.package == arguments.package)
    if arguments.what == "train":
        train(peer, arguments.folder, arguments.acks)
    elif arguments.what == "time":
        print(json.dumps(time_calls(peer, arguments.folder)))
    else:
        print(json.dumps(peer.count(arguments.folder)))


if __name__ == "__main__":
    main()
