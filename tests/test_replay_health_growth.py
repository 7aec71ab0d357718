"""The health of a run that grows is that of a whole replay, but only what is new in the run is replayed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import call
from waiting import until

from api_serving import PATIENT, served
from steptape import Recorder, open_run
from steptape.api.limits import Limits
from steptape.replay.health import alarms as alarms_module
from steptape.replay.health.health import HealthReplay, health_of
from steptape.replay.health.health_summary import DEFAULT_POLICY, HealthSummary
from steptape.rules.policy_file.policy import Policy, load_policy, parse_policy
from steptape.store.reading.catalog import Catalog
from steptape.store.reading.summary import KEPT_HEALTH

RULES = """
controllers:
  - name: loss_high
    triggers: [on_step_end]
    rule: loss > 10
    for: 3
    message: "the loss is {loss:g}, and was {mean(loss, 20):.3f}"
    operations: []
  - name: loss_rises
    triggers: [on_step_end]
    rule: mean(loss, 20) > mean(loss, 40)
    cooldown: 30
    operations: []
  - name: again
    triggers: [on_step_end]
    rule: times_fired("loss_high") > 0 and loss > 10
    operations: []
  - name: eval_high
    triggers: [on_evaluate]
    rule: eval_loss > 10
    operations: []
"""

#: Updates between two looks at whether an answer is due.
PART = 64


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Rules with windows, patience, a cooldown and a question about another rule's decisions."""
    return parse_policy(RULES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of the user's cache."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def rec(tmp_path: Path) -> Iterator[Recorder]:
    """A run that is being recorded."""
    with Recorder(tmp_path, quiet=True) as recorder:
        yield recorder


class Looks:
    """Counts how often a replay asks whether its answer is due; it is from the given time on."""

    def __init__(self, due_at: int | None = None) -> None:
        self.count = 0
        self._due_at = due_at

    def __call__(self) -> bool:
        """Return whether it is due."""
        self.count += 1
        return self._due_at is not None and self.count >= self._due_at


def loss_at(step: int) -> float:
    """Return a loss that spikes now and then."""
    return 20.0 if step % 50 < 5 else 1.0 + step % 7


def train(rec: Recorder, first: int, last: int) -> None:
    """Finish these updates."""
    for step in range(first, last + 1):
        rec.step(loss=loss_at(step))


def look(replay: HealthReplay, rec: Recorder, is_due: Callable[[], bool] = lambda: False) -> HealthSummary:
    """Return the health of a run now."""
    return open_run(rec.folder).read(lambda snapshot: replay.health(snapshot, is_due))


def health_workers() -> list[int]:
    """Return the ids of this process's children that replay rules for health."""
    listed = [pid for children in Path("/proc/self/task").glob("*/children") for pid in children.read_text().split()]
    return [int(pid) for pid in listed if b"health_worker" in Path("/proc", pid, "cmdline").read_bytes()]


def sealed(folder: Path) -> Recorder:
    """Record a run of three parts, and wait until it is sealed."""
    with Recorder(folder, quiet=True) as rec:
        train(rec, 1, 3 * PART)
    until(lambda: open_run(rec.folder).log_digest)
    return rec


def listed_health(store: Path) -> str | None:
    """Return the health of the only run of a store, as a new process lists it."""
    (entry,) = Catalog(store).look().entries
    return entry.health


def alarms(found: HealthSummary, name: str) -> list[tuple[int, int | None]]:
    """Return the first and the last step of each alarm of a rule."""
    rules = (rule for group in found.groups for rule in group.rules if rule.controller == name)
    return [(alarm.step, alarm.cleared_step) for rule in rules for alarm in rule.alarms]


def test_only_what_is_new_is_replayed(rec: Recorder, policy: Policy) -> None:
    """And the answer is that of a replay of the whole run."""
    replay, first, second, third = HealthReplay(policy), Looks(), Looks(), Looks()
    train(rec, 1, 10 * PART)
    look(replay, rec, first)
    train(rec, 10 * PART + 1, 11 * PART)
    found = look(replay, rec, second)
    look(replay, rec, third)

    assert (first.count, second.count, third.count) == (10, 1, 0)
    assert found == health_of(open_run(rec.folder), policy)


def test_an_answer_that_is_due_says_how_far_it_has_come_and_the_next_continues(rec: Recorder, policy: Policy) -> None:
    """So a run of any length is answered in turns."""
    replay = HealthReplay(policy)
    train(rec, 1, 5 * PART)
    parts = [look(replay, rec, Looks(2)) for _ in range(3)]

    assert [(part.as_of_step, part.step) for part in parts] == [(2 * PART - 1, 320), (4 * PART - 1, 320), (320, 320)]
    assert parts[-1] == health_of(open_run(rec.folder), policy)


def test_a_metric_that_appears_later_is_judged_from_the_beginning(rec: Recorder, policy: Policy) -> None:
    """The rules that read it were not replayed before."""
    replay = HealthReplay(policy)
    train(rec, 1, PART)
    look(replay, rec)
    rec.evaluate(eval_loss=20.0)
    found = look(replay, rec)

    assert found == health_of(open_run(rec.folder), policy)
    assert alarms(found, "eval_high") == [(64, None)]


def test_events_that_a_resume_rolled_back_are_forgotten(tmp_path: Path, policy: Policy) -> None:
    """The alarm after the checkpoint never was."""
    replay = HealthReplay(policy)
    first = Recorder(tmp_path, quiet=True)
    train(first, 1, 40)
    first.save("40.pt")
    train(first, 41, 60)
    first.close()
    assert alarms(look(replay, first), "loss_high") == [(3, 5), (52, 55)]

    with Recorder(tmp_path, resume=(first.run_id, 40), quiet=True) as rec:
        for _ in range(5):
            rec.step(loss=1.0)
        found = look(replay, rec)

    assert found == health_of(open_run(rec.folder), policy)
    assert alarms(found, "loss_high") == [(3, 5)]


def kept(policy: Policy) -> HealthReplay:
    """Return a replay whose conclusions are kept, as of another process."""
    return HealthReplay(policy, is_cached=True)


def test_the_alarms_of_an_ended_run_are_kept_in_the_cache(tmp_path: Path, policy: Policy) -> None:
    """Another process does not replay it again."""
    rec, looks = sealed(tmp_path / "runs"), Looks()
    first = look(kept(policy), rec)
    again = look(kept(policy), rec, looks)

    assert again == first == health_of(open_run(rec.folder), policy)
    assert looks.count == 0


def test_another_rule_file_has_its_own_alarms(tmp_path: Path, policy: Policy) -> None:
    """The cache does not give the alarms of one rule file for another."""
    other = parse_policy(RULES.replace("loss > 10", "loss > 30"))
    rec = sealed(tmp_path / "runs")
    look(kept(policy), rec)

    assert look(kept(other), rec) == health_of(open_run(rec.folder), other)


@pytest.mark.parametrize("number", ["_FORMAT", "SEMANTICS_VERSION"])
def test_alarms_that_another_version_kept_are_replayed(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    """Of another format, or under another meaning of the rules."""
    rec, looks = sealed(tmp_path / "runs"), Looks()
    look(kept(policy), rec)
    monkeypatch.setattr(alarms_module, number, 99)
    look(kept(policy), rec, looks)

    assert looks.count > 0


def test_kept_alarms_that_are_torn_or_foreign_are_replayed(tmp_path: Path, policy: Policy, cache: Path) -> None:
    """The cache may be damaged at any time."""
    rec = sealed(tmp_path / "runs")
    expected = look(kept(policy), rec)
    (file,) = (cache / "conclusions").iterdir()
    whole = file.read_bytes()
    for damage in (b"", b"{}", whole[:-1], whole[:32] + b"{}", bytes(32) + whole[32:]):
        file.write_bytes(damage)

        assert look(kept(policy), rec) == expected


def test_lists_show_the_health_that_was_last_judged(tmp_path: Path) -> None:
    """A list judges nothing: the health is unknown before, and again from the next attempt on."""
    with Recorder(tmp_path, name="run", quiet=True) as rec:
        rec.step(loss=float("nan"))
        before = listed_health(tmp_path)
        call("health", "run", "--store", tmp_path, "--json")
        rec.save("1.pt")
    judged = listed_health(tmp_path)
    Recorder(tmp_path, resume=(rec.run_id, 1), quiet=True).close()

    assert (before, judged, listed_health(tmp_path)) == (None, "critical", None)


@pytest.mark.parametrize("changed", [["--rules", "loss_spike"], ["--set", "norm_high=1"]])
def test_lists_show_no_health_by_other_rules(tmp_path: Path, changed: list[str]) -> None:
    """A column has one meaning."""
    with Recorder(tmp_path, name="run", quiet=True) as rec:
        rec.step(loss=1.0)
    call("health", "run", "--store", tmp_path, *changed)

    assert listed_health(tmp_path) is None


def test_the_number_of_kept_health_is_that_of_these_rules() -> None:
    """A change of the default rules needs a new number, so that lists forget what the old rules judged."""
    assert (KEPT_HEALTH, load_policy(DEFAULT_POLICY).digest[:16]) == (5, "d54c0156915673b9")


def test_a_server_that_cannot_look_again_answers_with_what_it_knows_and_its_age(tmp_path: Path) -> None:
    """The process that replays rules was killed, as for its memory."""
    with Recorder(tmp_path, name="run", quiet=True) as rec, served(tmp_path, limits=PATIENT) as client:
        train(rec, 1, 10)
        fresh = client.get("/api/v1/runs/run/health").raise_for_status().json()
        for pid in health_workers():
            os.kill(pid, signal.SIGKILL)
        stale = client.get("/api/v1/runs/run/health").raise_for_status().json()

    assert fresh["age_s"] == 0 < stale.pop("age_s")
    assert stale == {name: value for name, value in fresh.items() if name != "age_s"}


def test_a_server_that_never_looked_asks_to_come_again(tmp_path: Path) -> None:
    """It is no fault of the client."""
    with Recorder(tmp_path, name="run", quiet=True) as rec, served(tmp_path, limits=Limits(rules_s=0.001)) as client:
        train(rec, 1, 10)
        answer = client.get("/api/v1/runs/run/health")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
