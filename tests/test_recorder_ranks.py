"""A distributed job writes one run, with one writer per rank."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from shipped_runs import Loop
from waiting import PATIENCE_S

from steptape import Ranks, Recorder, TelemetryError, open_store, verify

LOOP = """
    import os, sys
    import torch.distributed as dist
    from steptape import Recorder

    store, rules, resume = sys.argv[1], sys.argv[2], sys.argv[3] or None
    dist.init_process_group("gloo")
    with Recorder(store, rules=rules, resume=resume) as rec:
        for step in range(20):
            rec.step(loss=float(step) + 100 * dist.get_rank(), samples=[1.0, 2.0])
            control = rec.agree()
            if step == 9:
                rec.save("checkpoint", size_bytes=1)
        print(dist.get_rank(), rec.run_id, control.should_stop)
        dist.barrier()
    dist.destroy_process_group()
"""

RULES = """
controllers:
  - {name: high, triggers: [on_step_end], rule: loss > 15, operations: [hfcontrols.should_training_stop]}
"""


def run_job(store: Path, rules: Path, world_size: int, port: int, resume: str = "") -> list[str]:
    """Run the job and return what each rank printed."""
    environment = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", textwrap.dedent(LOOP), str(store), str(rules), resume]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(world_size)
    ]
    try:
        return [process.communicate(timeout=PATIENCE_S)[0].strip() for process in processes]
    finally:
        for process in processes:
            process.kill()


def free_port() -> int:
    """Return an unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_ranks_of_a_job_write_one_run_side_by_side_and_resume_it_together(tmp_path: Path) -> None:
    """Rank 0 decides for all of them; views merge all ranks by (step, rank)."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    store = tmp_path / "runs"

    printed = run_job(store, rules, 3, free_port())
    (run,) = list(open_store(store))
    first = run.rows("SELECT step, rank, loss FROM steps WHERE step IN (1, 20) ORDER BY step, rank")
    again = run_job(store, rules, 3, free_port(), resume=run.run_id)

    assert [line.split() for line in printed] == [[str(rank), run.run_id, "True"] for rank in range(3)]
    assert [(row["step"], row["rank"], row["loss"]) for row in first] == [
        (step, rank, float(step - 1 + 100 * rank)) for step in (1, 20) for rank in range(3)
    ]
    assert [line.split()[1] for line in again] == [run.run_id] * 3
    assert run.info.last.environment["world_size"] == 3
    assert verify(run).identical
    counts = run.rows("SELECT attempt, rank, count(*) AS n FROM steps GROUP BY ALL ORDER BY ALL")
    assert [tuple(row.values()) for row in counts] == [
        (attempt, rank, 10 + 10 * attempt) for attempt in range(2) for rank in range(3)
    ]


def test_ranks_without_a_process_group_need_to_be_told_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would open its own run; with ``run_id`` they share one."""
    with Recorder(tmp_path, run_id="job-7") as first:
        first.step(loss=1.0)
        monkeypatch.setenv("SLURM_PROCID", "1")
        monkeypatch.setenv("SLURM_NTASKS", "2")
        with pytest.raises(TelemetryError, match="rank 1 does not know the id of its run"):
            Recorder(tmp_path)
        with pytest.raises(TelemetryError, match="process group"):
            Recorder(tmp_path, resume="job-7")
        with Recorder(tmp_path, run_id="job-7") as second:
            second.step(loss=2.0)

    (run,) = list(open_store(tmp_path))

    rows = run.rows("SELECT rank, loss FROM steps ORDER BY rank")
    assert rows == [{"rank": 0, "loss": 1.0}, {"rank": 1, "loss": 2.0}]
    assert run.status == "completed"


def test_a_rank_that_is_no_number_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken launcher sets such an environment."""
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")

    with pytest.raises(TelemetryError, match="do not name a valid rank"):
        Recorder(tmp_path)


@pytest.mark.parametrize(("rank", "world_size"), [("-1", "1"), ("-1", "-1"), ("2", "2")])
def test_a_rank_that_is_none_of_the_job_s_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str
) -> None:
    """Old launchers use -1 for the absence of a job."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)

    with pytest.raises(TelemetryError, match="do not name a valid rank"):
        Recorder(tmp_path, run_id="job-8")

    assert not list(tmp_path.iterdir())


def test_a_rank_records_its_part_of_a_run_once(tmp_path: Path) -> None:
    """A second recording under the same numbers would be skipped as known."""
    for rank in (0, 1):
        with Recorder(tmp_path, run_id="job-9", ranks=Ranks(rank=rank)) as rec:
            rec.step(loss=float(rank))

    with pytest.raises(TelemetryError, match="rank 1 has already recorded part of this run"):
        Recorder(tmp_path, run_id="job-9", ranks=Ranks(rank=1))


def test_a_rank_joins_no_run_that_ended_before_its_process_began(tmp_path: Path) -> None:
    """Its id is used again; rank 0 of the new job is refused as well."""
    loop = Loop(tmp_path)
    loop.end()
    before = sorted(os.listdir(loop.folder))

    with pytest.raises(TelemetryError, match=r"ended before this process began.* Choose another run_id="):
        Recorder(tmp_path, run_id=loop.folder.name, ranks=Ranks(rank=1))
    assert sorted(os.listdir(loop.folder)) == before


BLOCKED = """
    import os, signal, sys, threading, time
    import torch, torch.distributed as dist
    from steptape import Recorder

    def tell_when_blocked():
        main = threading.main_thread().ident
        while sys._current_frames()[main].f_code.co_filename == __file__:
            time.sleep(0.05)
        time.sleep(1.0)
        print("blocked", flush=True)

    __file__ = tell_when_blocked.__code__.co_filename
    dist.init_process_group("gloo")
    with Recorder(sys.argv[1]) as rec:
        for step in range(20):
            rec.step(loss=float(step))
        if dist.get_rank() == 1:
            print("waiting", flush=True)
            time.sleep(3600)
        threading.Thread(target=tell_when_blocked, daemon=True).start()
        dist.all_reduce(torch.zeros(1))
"""


def test_sigterm_ends_a_rank_that_is_blocked_in_a_collective(tmp_path: Path) -> None:
    """It ends by the signal, as without a recorder, and its run says where it was; the other rank unwinds."""
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", textwrap.dedent(BLOCKED), str(tmp_path)]
    processes = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for process, expected in zip(processes, ("blocked\n", "waiting\n"), strict=True):
            assert process.stdout is not None
            assert process.stdout.readline() == expected
        for process in processes:  # One after the other: a rank whose peer has gone is blocked no longer.
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
    finally:
        for process in processes:
            process.kill()

    (run,) = list(open_store(tmp_path))
    last = list(run.events())[-1]

    assert [process.returncode for process in processes] == [-signal.SIGTERM, 143]
    assert run.rows("SELECT rank, count(*) AS n FROM steps GROUP BY rank ORDER BY rank") == [
        {"rank": 0, "n": 20},
        {"rank": 1, "n": 20},
    ]
    assert (run.status, last.kind) == ("interrupted", "failure")
    assert "blocked in" in last.attrs["message"]
    assert "all_reduce" in str(last.attrs["traceback"])
    assert verify(run).identical
