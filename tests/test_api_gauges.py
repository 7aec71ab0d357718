"""A scrape of ``/metrics`` shows how running runs get on, and which of them are stalled."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from command_line import call
from waiting import until

from api_serving import begin, finish, served, step
from steptape.api.endpoints import service
from steptape.store.events import Event
from steptape.store.journal.writer import JournalWriter
from steptape.store.run_info import Attempt, RunInfo, write_run_info

Sample: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

#: A line of Prometheus' text format: a name, labels with escaped values, and a number.
LINE = re.compile(r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (?P<value>\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\n"])*)"')

#: A recorder that steps until it reads a line, and then holds its run without another step. Its clock is ``argv[2]``
#: seconds behind that of the server, which therefore sees a longer silence.
LOOP = """
import sys, threading, time
now_ns = time.time_ns
time.time_ns = lambda: now_ns() - int(sys.argv[2]) * 10**9
from steptape import Recorder

asked = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), asked.set()), daemon=True).start()
with Recorder(sys.argv[1], run_id="loop", name='a "b"\\\\', quiet=True) as rec:
    while not asked.wait(0.01):
        rec.step({"loss": float("inf"), "lr": 0.5})
    print("waiting", flush=True)
    time.sleep(3600)
"""


def parsed(text: str) -> dict[Sample, float]:
    """Parse Prometheus' text format strictly: each family has help and type before its samples, each sample is once."""
    found: dict[Sample, float] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, family, _ = line.split(" ", 3)
            assert word in ("HELP", "TYPE"), line
            continue
        match = LINE.fullmatch(line)
        assert match is not None, line
        assert match["name"] == family, line
        labels = [
            (key, re.sub(r"\\(.)", lambda one: {"n": "\n"}.get(one[1], one[1]), raw))
            for key, raw in LABEL.findall(match["labels"] or "")
        ]
        sample = match["name"], tuple(labels)
        assert sample not in found, line
        found[sample] = float(match["value"])
    return found


def gauges_of(text: str, run: str) -> dict[str, float]:
    """Return the gauges of a run, by their names without prefix; those of metrics by the metric."""
    mine = {sample: value for sample, value in parsed(text).items() if ("run_id", run) in sample[1]}
    return {
        dict(labels).get("metric", name.removeprefix("steptape_run_")): value for (name, labels), value in mine.items()
    }


@contextmanager
def loop(store: Path, *, behind_s: int) -> Iterator[subprocess.Popen[str]]:
    """Run a recorder in a process of its own."""
    command = [sys.executable, "-c", LOOP, str(store), str(behind_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_scrape_shows_a_run_that_stops_stepping(tmp_path: Path) -> None:
    """While it steps it has a speed; once it is silent its age grows, its steps stand, and it is stalled."""
    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs", gauges=["loss"]) as client, loop(tmp_path / "runs", behind_s=120) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        until(lambda: gauges_of(client.get("/metrics").text, "loop").get("steps", 0) > 3)
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()

        until(lambda: _has_settled(lambda: gauges_of(client.get("/metrics").text, "loop")))
        first = gauges_of(client.get("/metrics").text, "loop")
        time.sleep(0.1)
        later = gauges_of(client.get("/metrics").text, "loop")

    assert first["last_event_age_seconds"] >= 120
    assert later["last_event_age_seconds"] > first["last_event_age_seconds"]
    assert (later["steps"], later["stalled"], later["steps_per_second"]) == (first["steps"], 1, 0)


def _has_settled(look: Callable[[], dict[str, float]]) -> bool:
    """Whether two looks in a row see the same number of steps."""
    return look()["steps"] == look()["steps"]


def test_a_run_that_steps_is_not_stalled_and_has_its_chosen_metrics(tmp_path: Path) -> None:
    """A value that is not finite and a name with quotes are written as Prometheus reads them."""
    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs", gauges=["loss", "none"]) as client, loop(tmp_path / "runs", behind_s=0):
        until(lambda: "steps_per_second" in gauges_of(client.get("/metrics").text, "loop"))
        gauges = gauges_of(client.get("/metrics").text, "loop")
        samples = parsed(client.get("/metrics").text)

    assert gauges["stalled"] == 0
    assert gauges["steps_per_second"] > 0
    assert gauges["loss"] == float("inf")
    assert "lr" not in gauges
    assert {dict(labels)["name"] for name, labels in samples if name.startswith("steptape_run_")} == {'a "b"\\'}


def test_a_run_that_ended_has_no_gauge(tmp_path: Path) -> None:
    """It is counted by its status."""
    writer = begin(tmp_path)
    step(writer, 1)
    finish(tmp_path, writer, steps=1)

    with served(tmp_path, gauges=["loss"]) as client:
        samples = parsed(client.get("/metrics").text)

    assert [name for name, labels in samples if name.startswith("steptape_run_")] == []
    assert samples["steptape_runs", (("status", "completed"),)] == 1


def test_gauges_are_limited_to_some_runs_and_the_stalled_ones_come_first(
    tmp_path: Path, store_append: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric counts the others."""
    monkeypatch.setattr(service, "MOST_GAUGED", 2)
    writers = [_written(tmp_path, store_append, number, silent_s=120 if number == 0 else 0) for number in range(4)]

    with served(tmp_path) as client:
        samples = parsed(client.get("/metrics").text)

    for writer in writers:
        writer.close()
    shown = [dict(labels)["run_id"] for name, labels in samples if name == "steptape_run_stalled"]
    assert shown == ["run-0", "run-3"]
    assert samples["steptape_runs_without_gauges", ()] == 2


def _written(store: Path, append: Callable[..., int], number: int, *, silent_s: int) -> JournalWriter:
    """Write a live run whose only event is some seconds old."""
    run_id, event_ns = f"run-{number}", time.time_ns() - silent_s * 10**9
    (store / run_id).mkdir()
    write_run_info(store / run_id, RunInfo(run_id, run_id, (Attempt(0, "running", event_ns - 10**9),)))
    writer = JournalWriter(store / run_id, run_id=run_id, attempt=0, rank=0)
    append(writer, Event("step_end", step=1, time_ns=event_ns))
    return writer


def test_the_command_takes_the_metrics_to_show() -> None:
    """The option can be given several times."""
    assert "--gauge METRIC" in re.sub(r"\s+", " ", call("serve", "--help").stdout)
