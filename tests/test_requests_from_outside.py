"""A person asks a running run to stop, save or evaluate: on the command line, over HTTP, on its page."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import call as steptape
from waiting import PATIENCE_S, until

from api_serving import served
from steptape import Policy, Recorder, backtest, open_run, verify
from steptape.api.middleware.gate import Holder, Scope, Tokens
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.annotations import read_annotations
from steptape.store.errors import NotRunning
from steptape.store.events import Event
from steptape.store.run import Run, ask_recorder

NEVER = """
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
"""

RANKS = """
import datetime, sys, time
import torch.distributed as dist
from steptape import Recorder

dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
with Recorder(sys.argv[1], run_id="job") as rec:
    for step in range(1, 100_000):
        rec.step(loss=1.0)
        if step == 1:
            print("begun", flush=True)
        if rec.agree().should_stop:
            break
        time.sleep(0.01)
print(step, flush=True)
dist.destroy_process_group()
"""


def free_port() -> int:
    """Return an unused loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def step_until(rec: Recorder, is_done: Callable[[], bool]) -> None:
    """Train until something has happened."""

    def steps() -> bool:
        rec.step(loss=1.0)
        return is_done()

    until(steps)


def requests_in(run: Run) -> list[Event]:
    """Return the requests that the run recorded."""
    return [event for event in run.events() if "request" in event.attrs]


@pytest.fixture
def policy() -> Policy:
    """A policy that never acts here."""
    return parse_policy(NEVER)


@pytest.mark.parametrize("rules", [True, False])
def test_a_run_stops_on_request_and_records_who_asked(tmp_path: Path, policy: Policy, rules: bool) -> None:
    """The loop sees the flag that rules set; replays take it for a person's stop."""
    with Recorder(tmp_path, name="live", rules=policy if rules else None) as rec:
        rec.step(loss=1.0)
        asked = steptape("ask", "stop", "live", "--store", tmp_path, "--reason", "it has diverged")
        step_until(rec, lambda: rec.control.should_stop)
    run = open_run(rec.folder)

    assert (asked.returncode, asked.stdout[-8:]) == (0, "raining\n")
    (request,) = requests_in(run)
    assert request.attrs["text"].endswith("asked to stop: it has diverged")
    assert "@" in request.attrs["author"]
    assert (run.status, run.info.last.reason) == ("stopped", request.attrs["text"])
    first = steptape("show", str(rec.folder)).stdout.splitlines()[1]
    assert re.fullmatch(rf"Stopped at step [\d,]+: {re.escape(str(run.info.last.reason))}[.] Last .*", first)
    (result,) = backtest(policy, [run]).results
    assert result.human is not None
    assert (result.human.action.what, result.human.action.step) == ("stop", request.step)
    assert not rules or verify(run).identical


@pytest.mark.parametrize("what", ["save", "evaluate"])
def test_what_is_asked_for_sets_its_flag_until_it_is_served(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its callback is called as for a rule's order, once."""
    called: list[str] = []
    with Recorder(tmp_path, callbacks={what: lambda: called.append(what)}) as rec:
        rec.step(loss=1.0)
        ask_recorder(rec.folder, what, author="me")
        step_until(rec, lambda: bool(called))
        asked = rec.control.should_save, rec.control.should_evaluate
        rec.save("a", size_bytes=1)
        rec.evaluate(eval_loss=1.0)
        served_flags = rec.control.should_save, rec.control.should_evaluate

    assert asked == (what == "save", what == "evaluate")
    assert served_flags == (False, False)
    assert called == [what]
    assert "asked for" not in caplog.text
    assert (open_run(rec.folder).status, open_run(rec.folder).info.last.reason) == ("completed", None)


def test_a_request_that_the_loop_does_not_serve_is_named_at_the_end(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop reads no flag; it has no rules that could miss anything."""
    monkeypatch.setenv("STEPTAPE_QUIET", "0")
    with Recorder(tmp_path, name="deaf") as rec:
        rec.step(loss=1.0)
        for what in ("save", "stop"):
            ask_recorder(rec.folder, what, author="Ada")
        step_until(rec, lambda: rec.control.should_stop)
        rec.step(loss=1.0)
    asked = "Ada asked for a checkpoint at step "

    assert [message for message in caplog.messages if message.startswith(asked) and "Save one when" in message]
    assert "1 of them after Ada asked for a stop: " in capsys.readouterr().err


def test_several_requests_at_once_are_carried_out_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """Each is recorded before its callback is called, also where that records more."""
    called: list[str] = []

    def serve(what: str) -> None:
        rec.log(calls=len(called))
        called.append(what)

    callbacks = {what: partial(serve, what) for what in ("stop", "save", "evaluate")}
    with Recorder(tmp_path, callbacks=callbacks) as rec:
        rec.step(loss=1.0)
        for what in ("evaluate", "stop", "save"):
            ask_recorder(rec.folder, what, author="me")
        step_until(rec, lambda: len(called) == 3)

    assert called == ["evaluate", "stop", "save"]
    assert [event.attrs["request"] for event in requests_in(open_run(rec.folder))] == called


def test_a_run_that_has_ended_is_asked_in_vain(tmp_path: Path) -> None:
    """The message says so, nothing is written, and the next attempt does not stop."""
    with Recorder(tmp_path, run_id="over") as rec:
        rec.step(loss=1.0)

    result = steptape("ask", "stop", rec.folder)

    assert result.returncode == 2
    assert "the run is not running on this machine, so it cannot stop" in result.stderr
    with pytest.raises(NotRunning):
        ask_recorder(rec.folder, "save", author="me")
    assert read_annotations(rec.folder) == []


def test_a_request_of_an_earlier_attempt_is_forgotten(tmp_path: Path) -> None:
    """What came too late for one attempt is none of the next."""
    with Recorder(tmp_path, run_id="twice") as rec:
        rec.step(loss=1.0)
        ask_recorder(rec.folder, "stop", author="me")
    with Recorder(tmp_path, resume=("twice", 1)) as rec:
        ask_recorder(rec.folder, "save", author="me")
        step_until(rec, lambda: rec.control.should_save)
        assert not rec.control.should_stop


def test_what_cannot_be_read_is_no_request(tmp_path: Path) -> None:
    """Other notes, and lines that a killed writer left, are none."""
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)
        notes = rec.folder / "annotations.jsonl"
        noise = [{"id": "a", "time_ns": 1, "text": "x", "attrs": {"request": "delete"}}, {"request": "stop"}, [1]]
        notes.write_text("".join(json.dumps(line) + "\n" for line in noise) + '{"id": "torn", "attrs": {"request": "st')
        ask_recorder(rec.folder, "save", author="me")
        step_until(rec, lambda: rec.control.should_save)

    assert not rec.control.should_stop
    assert [event.attrs["request"] for event in requests_in(open_run(rec.folder))] == ["save"]


@contextmanager
def training(store: Path) -> Iterator[Recorder]:
    """Train in a thread until the run is asked to stop."""
    with Recorder(store, run_id="live") as rec:
        rec.step(loss=1.0)
        thread = threading.Thread(target=step_until, args=(rec, lambda: rec.control.should_stop), daemon=True)
        thread.start()
        yield rec
        thread.join(PATIENCE_S)
    assert rec.control.should_stop


def test_http_asks_with_write_scope_and_the_page_offers_it_to_whom_may(tmp_path: Path) -> None:
    """The author is the token's holder. A run that has ended answers 409."""
    tokens = Tokens((f"{scope.name}-token-of-16".lower(), Holder(scope.name, scope)) for scope in Scope)
    with served(tmp_path, tokens=tokens) as client:

        def ask(scope: str, body: dict[str, str]) -> Any:
            headers = {"Authorization": f"Bearer {scope}-token-of-16"}
            return client.post("/api/v1/runs/live/requests", json=body, headers=headers)

        def page(scope: str) -> str:
            headers = {"Authorization": f"Bearer {scope}-token-of-16", "Accept": "text/html"}
            return str(client.get("/runs/live", headers=headers).text)

        with training(tmp_path) as rec:
            refused, wrong = ask("read", {"request": "stop"}), ask("write", {"request": "delete"})
            offered = ['data-request="stop"' in page(scope) for scope in ("read", "write")]
            asked = ask("write", {"request": "stop", "reason": "enough"})
        late, over = ask("write", {"request": "stop"}), 'data-request="stop"' in page("write")

    assert [answer.status_code for answer in (refused, wrong, asked, late)] == [403, 422, 202, 409]
    assert late.json()["code"] == "run-not-running"
    assert (offered, over) == ([False, True], False)
    (request,) = requests_in(open_run(rec.folder))
    assert (request.attrs["author"], asked.json()["author"]) == ("WRITE", "WRITE")
    assert open_run(rec.folder).info.last.reason == "WRITE asked to stop: enough"


@pytest.mark.only_one
def test_all_ranks_stop_at_the_step_that_they_agree_on(tmp_path: Path) -> None:
    """No rule is needed; every rank records when the request took effect."""
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", RANKS, str(tmp_path)]
    ranks = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "begun\n"
        asked = steptape("ask", "stop", tmp_path / "job")
        last_steps = [int(rank.communicate(timeout=PATIENCE_S)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    run = open_run(tmp_path / "job")

    assert (asked.returncode, run.status) == (0, "stopped")
    assert last_steps[0] == last_steps[1]
    agreed = [event for event in run.events(rank=None) if event.kind == "agreement"]
    assert [(event.rank, event.attrs["orders"], event.step) for event in agreed] == [
        (rank, ["stop"], last_steps[0]) for rank in range(2)
    ]


def test_a_request_to_ranks_that_do_not_agree_waits_and_says_so(tmp_path: Path) -> None:
    """The loop goes on: one rank alone must not leave it."""
    script = RANKS.replace("100_000", "300").replace("if rec.agree().should_stop:", "if rec.control.should_stop:")
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", script, str(tmp_path)]
    ranks = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "begun\n"
        ask_recorder(tmp_path / "job", "stop", author="ann", reason="enough")
        ends = [rank.communicate(timeout=PATIENCE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()

    assert [int(printed) for printed, _ in ends] == [299, 299]
    assert "ann asked to stop: enough; this waits for the first rec.agree()" in ends[0][1]
    assert open_run(tmp_path / "job").status == "completed"
