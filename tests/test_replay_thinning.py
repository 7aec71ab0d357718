"""Decisions that count training steps are approximate where the log holds only every n-th step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from steptape import Policy, backtest, load_policy, open_run
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.sentences import summary_lines
from steptape.replay.reports.summary import summarize
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.judging import RunBackground, judge_stream
from steptape.replay.runs.replaying import replay_events
from steptape.replay.runs.run_result import Replay
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.events import Event
from steptape.store.plan import Plan

LAST = 6_000
EVALUATED_EVERY = 100


def training(logged_every: int, *, also_at: tuple[int, ...] = ()) -> list[Event]:
    """Return one training, evaluated every 100 steps, of which every n-th step is logged."""
    events = []
    for step in range(1, LAST + 1):
        if step % logged_every == 0 or step in also_at:
            events.append(Event("step_end", step, metrics={"loss": 2.0 + step / LAST}))
        if step % EVALUATED_EVERY == 0:
            events.append(Event("evaluate", step, metrics={"eval_loss": 1.0 + step / LAST}))
    return [event._replace(seq=seq) for seq, event in enumerate(events)]


def stopping(rule: str, keys: str = "", trigger: str = "on_step_end", others: str = "") -> Policy:
    """Return a policy whose controller ``stop`` has this rule."""
    return parse_policy(f"""
controllers:
{others}
  - {{name: stop, triggers: [{trigger}], rule: '{rule}', {keys} operations: [hfcontrols.should_training_stop]}}
""")


def replayed(policy: Policy, logged_every: int) -> Replay:
    """Replay a policy over the training."""
    return replay_events(policy, training(logged_every), Plan())


def test_one_training_logged_at_every_step_is_exact_and_logged_at_every_hundredth_approximate() -> None:
    """TrAC's Fig. 4 stops 21 logged steps after the tenth evaluation: 21 steps, or 2,100."""
    policy = load_policy(shipped_policies()["trac_fig4"])
    each, thinned = replayed(policy, 1).stop, replayed(policy, 100).stop

    assert each is not None
    assert thinned is not None
    assert (each.outcome.step, str(each.validity)) == (1_021, "prefix-exact")
    assert (thinned.outcome.step, str(thinned.validity)) == (3_100, "approximate")


WARNED = "  - {name: warned, triggers: [on_step_end], rule: 'loss > lag(loss, 2)', operations: []}"
AT_STEPS = "  - {name: warned, triggers: [on_step_end], rule: loss > 2.1, operations: []}"


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        (stopping("loss > 2.1", "for: 2,"), "approximate"),
        (stopping("eval_loss > 1.1", "for: 2,"), "approximate"),
        (stopping("loss > mean(loss, 5)"), "approximate"),
        (stopping("loss > lag(loss, 1)"), "approximate"),
        (stopping("loss > ema(loss, 5)"), "approximate"),
        (stopping("delta(loss) > 0"), "approximate"),
        (stopping("len(loss) > 5"), "approximate"),
        (stopping("loss > mean(loss, steps=500)"), "approximate"),
        (stopping("mean(abs(delta(loss)), 3) > 0"), "approximate"),
        (stopping("eval_loss > mean(loss, 5) - 9", trigger="on_evaluate"), "approximate"),
        (stopping('times_fired("warned") > 0', others=WARNED), "approximate"),
        (stopping('times_fired("warned") > 2', others=AT_STEPS), "approximate"),
        (stopping('times_fired("warned") > 0', others=AT_STEPS), "prefix-exact"),
        (stopping("loss > 2.1"), "prefix-exact"),
        (stopping("loss > 2.1", "for: 1,"), "prefix-exact"),
        (stopping("loss > 2.1", "for: 3,"), "approximate"),
        (stopping("loss > last(loss, 1) - 1"), "prefix-exact"),
        (stopping("eval_loss > lag(eval_loss, 1)"), "prefix-exact"),
        (stopping("eval_loss > 1.1", "for: 4,", "on_evaluate"), "prefix-exact"),
    ],
)
def test_only_controllers_that_count_training_steps_are_approximate(policy: Policy, label: str) -> None:
    """The newest value of a series and whatever counts evaluations stay as they were."""
    thinned, each = replayed(policy, 50).stop, replayed(policy, 1).stop

    assert thinned is not None
    assert each is not None
    assert (str(thinned.validity), str(each.validity)) == (label, "prefix-exact")


@pytest.mark.parametrize(
    ("events", "interval"),
    [
        (training(1), 1),
        (training(2), 2),
        (training(100, also_at=(1, 7)), 100),
        ([event for event in training(1) if not 500 < event.step < 900], 1),
        ([event for event in training(1) if event.kind == "evaluate"], 1),
        (training(1)[:1], 1),
        ([Event("step_end", step) for step in (10, 20)], 10),
        ([], 1),
    ],
)
def test_the_interval_is_the_typical_one(events: list[Event], interval: int) -> None:
    """A gap in a log of every step, or a first step of its own, does not change it."""
    policy = stopping("eval_loss > 9")

    (judged,) = judge_stream([policy], RunBackground(), event_stream(events), None)

    assert judged.log_interval_steps == interval


def test_the_report_gives_the_interval(store_record: Callable[..., Path]) -> None:
    """In a sentence, a note and the JSON; a policy that counts no training step needs no note."""
    run = open_run(store_record(training(100), sealed=True))
    counts = backtest(stopping("loss > mean(loss, 5)"), [run])
    stays = backtest(stopping("eval_loss > 1.1", trigger="on_evaluate"), [run])
    note = "logged every 100 steps: patience and windows count logged values"

    assert "1 run logged every 100 steps: patience and windows count logged values, so live they end earlier." in (
        summary_lines(summarize(counts))
    )
    assert note in report_json(summarize(counts))["runs"][0]["notes"]
    assert report_json(summarize(counts))["runs"][0]["log_interval_steps"] == 100
    assert report_json(summarize(counts))["runs"][0]["stop"]["validity"] == "approximate"
    assert not any("logged every" in line for line in summary_lines(summarize(stays)))
