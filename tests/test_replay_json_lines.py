"""A run's JSON lines replay like the run itself: they begin with what the loop declared at its start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import call
from hypothesis import given, settings
from hypothesis import strategies as st

from api_serving import served
from steptape import Plan, Recorder, open_run
from steptape.replay.runs.replaying import replay
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import InvalidEvent
from steptape.store.event_json import events_from_lines
from steptape.store.events import BEFORE_STREAM, Event
from steptape.store.run import Run

RULES = """
controllers:
  - {name: half, triggers: [on_step_end], rule: milestone(at=0.5), operations: []}
  - {name: late, triggers: [on_step_end], rule: progress > 0.5, operations: []}
  - {name: near_end, triggers: [on_step_end], rule: step == max_steps - 1, operations: []}
  - {name: budget, triggers: [on_step_end], rule: step * tokens_per_param > 5, operations: []}
  - {name: alone, triggers: [on_step_end], rule: world_size == 1 and any_rank(loss > 2), operations: []}
  - {name: epochs, triggers: [on_step_end], rule: epoch >= 1.5, operations: []}
  - {name: batches, triggers: [on_step_end], rule: "sum(loss, samples=8) > 0", operations: []}
"""
POLICY = parse_policy(RULES, source="facts.yaml")

counts = st.none() | st.integers(1, 8)
plans = st.builds(
    Plan,
    total_epochs=counts,
    steps_per_epoch=counts,
    constants=st.dictionaries(st.sampled_from(["tokens_per_param", "loss_limit"]), st.floats(0, 9), max_size=2),
)


def exported(run: Run) -> str:
    """Return what ``steptape export`` prints."""
    return call("export", run.folder).stdout


def decided(source: Run | list[Event]) -> list[object]:
    """Return the decisions of the rules above, as JSON."""
    return [judged.to_json() for judged in replay(POLICY, source).outcomes]


def recorded(folder: Path, plan: Plan, total_steps: int | None) -> Run:
    """Record six updates, resume at the fourth under another plan, and declare more of it."""
    with Recorder(folder, rules=POLICY, total_steps=total_steps, plan=plan, quiet=True) as rec:
        for loss in (1.0, 3.0, 1.0, 3.0):
            rec.step(loss=loss, batch_size=4)
        rec.save("checkpoint-4")
        rec.step(loss=3.0, batch_size=4)
    with Recorder(folder, resume=(rec.run_id, 4), rules=POLICY, total_steps=9, quiet=True) as again:
        again.step(loss=3.0, batch_size=4)
        again.declare(steps_per_epoch=3, constants={"tokens_per_param": 2.0})
        again.step(loss=3.0, batch_size=4)
    return open_run(again.folder)


@settings(max_examples=20)
@given(plan=plans, total_steps=counts)
def test_json_lines_replay_like_the_run(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, total_steps: int | None
) -> None:
    """Whatever each attempt declared, at its start or later, and whichever facts rules read."""
    run = recorded(tmp_path_factory.mktemp("lines"), plan, total_steps)
    lines = exported(run).splitlines()

    assert decided(list(events_from_lines(lines, source="x"))) == decided(run)


def test_the_documented_pipe_gives_the_decisions_of_the_run(run: Run, tmp_path: Path) -> None:
    """``steptape export RUN | steptape replay FILE -``."""
    (tmp_path / "facts.yaml").write_text(RULES)
    piped = call("replay", tmp_path / "facts.yaml", "-", "--json", given=exported(run)).stdout

    assert piped == call("replay", tmp_path / "facts.yaml", run.folder, "--json").stdout
    assert {json.loads(line)["controller"] for line in piped.splitlines()} >= {"half", "late", "budget", "alone"}


def test_json_lines_begin_with_the_plan_of_each_attempt(tmp_path: Path) -> None:
    """An attempt that declares nothing has such a line, too."""
    run = recorded(tmp_path, Plan(total_epochs=2, constants={"tokens_per_param": 1.0}), None)
    first, second, third = map(json.loads, exported(run).splitlines()[:3])

    assert first["event"] == second["event"] == "plan"
    assert (first["attempt"], second["attempt"], first["seq"]) == (0, 1, BEFORE_STREAM)
    assert first["attrs"] == {"total_epochs": 2, "world_size": 1, "constants": {"tokens_per_param": 1.0}}
    assert second["attrs"] == {"total_steps": 9, "world_size": 1}
    assert third["event"] == "train_begin"


def test_learning_rates_over_json_lines_are_those_of_the_run(tmp_path: Path) -> None:
    """The plan is no event: what is exact stays exact."""
    rules = tmp_path / "cut.yaml"
    rules.write_text("controllers: [{name: c, triggers: [on_step_end], rule: loss > 2, operations: [lr.reduce(0.5)]}]")
    with Recorder(tmp_path / "runs", total_steps=4, quiet=True) as rec:
        for loss in (1.0, 3.0, 1.0, 1.0):
            rec.step(loss=loss, lr=0.1)
    piped = call("replay", rules, "-", "--lr", "--json", given=exported(open_run(rec.folder))).stdout

    assert piped == call("replay", rules, rec.folder, "--lr", "--json").stdout
    assert [json.loads(line)["validity"] for line in piped.splitlines()] == ["exact", "exact", "censored", "censored"]


def test_a_plan_line_before_all_events_is_what_the_loop_declared_at_its_start() -> None:
    """One that was written by hand needs no ``seq``; events keep their index."""
    lines = ['{"event": "plan", "attrs": {"total_steps": 2}}', '{"event": "train_begin"}', '{"event": "step_end"}']
    events = list(events_from_lines(lines, source="x"))

    assert [event.seq for event in events] == [BEFORE_STREAM, 0, 1]
    assert [judged.outcome.controller for judged in replay(POLICY, events).decisions] == ["half", "near_end"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that a resume has rolled back, with a plan for each attempt."""
    return recorded(tmp_path_factory.mktemp("runs"), Plan(constants={"tokens_per_param": 1.0}), 10)


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[httpx.Client]:
    """A client of a server over that run."""
    with served(run.folder.parent) as client:
        yield client


@pytest.mark.parametrize("more", ["", "&limit=3", "&attempts=all"])
def test_the_ndjson_of_http_replays_like_the_run(client: httpx.Client, run: Run, more: str) -> None:
    """Its pages, one after the other, are such lines."""
    lines = ndjson(client, run.run_id, more)

    assert decided(list(events_from_lines(lines, source="x"))) == decided(run)


def test_a_page_that_another_follows_is_no_whole_log(client: httpx.Client, run: Run) -> None:
    """Its decisions would silently lack what follows."""
    page = client.get(f"/api/v1/runs/{run.run_id}/events", params={"format": "ndjson", "limit": 3})

    with pytest.raises(InvalidEvent, match=r"x:6: the log goes on; got 'next: .*'. Add the pages that follow"):
        list(events_from_lines(page.text.splitlines(), source="x"))


def ndjson(client: httpx.Client, run_id: str, more: str) -> list[str]:
    """Return the lines of all pages of a log."""
    address: str | None = f"/api/v1/runs/{run_id}/events?format=ndjson{more}"
    lines: list[str] = []
    while address is not None:
        page = client.get(address).raise_for_status()
        lines += page.text.splitlines()
        address = page.links.get("next", {}).get("url")
    return lines
