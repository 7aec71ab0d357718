"""One sentence says a run's state, why and since when, and what to do, from its log and its recorded decisions."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api_serving import begin
from steptape import Recorder, open_run
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.store.plan import Plan
from steptape.store.reading.headline import Headline, headline_of
from steptape.store.run_info import write_run_info

NAN = math.nan
NS_PER_S = 10**9
START_NS = 1_750_000_000 * NS_PER_S

STOP = "operations: [hfcontrols.should_training_stop]"
GUARD = f"{{name: guard, triggers: [on_step_end], rule: streak(not isfinite(loss)) > 3, {STOP}}}"
SPIKE = "{name: spike, triggers: [on_step_end], rule: loss > 5, operations: [hfcontrols.should_log]}"
CAP = f"{{name: cap, triggers: [on_step_end], rule: loss > 5, {STOP}}}"

#: A loop in its own process that is killed by its own hand after its last step.
KILLED = """
import os, signal, sys
from steptape import Recorder
rec = Recorder(sys.argv[1], name="killed", total_steps=100, quiet=True, run_id="killed")
for step in range(1, 71):
    rec.step(loss=1.0)
    if step in map(int, sys.argv[2:]):
        rec.save(f"{step}.pt")
os.kill(os.getpid(), signal.SIGKILL)
"""


def rules(*controllers: str) -> Policy:
    """Return a policy of these controllers."""
    return parse_policy(f"controllers: [{', '.join(controllers)}]")


def headline(folder: Path, *, later_s: float = 0.0) -> Headline:
    """Return the headline of a run, as seen so many seconds from now."""
    now_ns = time.time_ns() + int(later_s * NS_PER_S)
    return open_run(folder).read(lambda snapshot: headline_of(replace(snapshot, read_ns=now_ns), now_ns))


def train(rec: Recorder, loss: Callable[[int], float], steps: int, *, saves: int = 0, obeys: bool = True) -> None:
    """Train; every so many steps, save."""
    for step in range(1, steps + 1):
        rec.step(loss=loss(step))
        if saves and step % saves == 0:
            rec.save(f"{step}.pt")
        if obeys and rec.control.should_stop:
            break


def recorded(store: Path, loss: Callable[[int], float], steps: int, **about: Any) -> Path:
    """Record a whole run."""
    how = {name: about.pop(name) for name in ("saves", "obeys") if name in about}
    with Recorder(store, quiet=True, **about) as rec:
        train(rec, loss, steps, **how)
    return rec.folder


def test_a_stop_by_a_rule_says_since_when_the_loss_that_it_read_was_not_finite(tmp_path: Path) -> None:
    """The first checkpoint to resume from is before that step, not the last."""
    folder = recorded(tmp_path, lambda step: NAN if step > 1499 else 1.0, 3000, rules=rules(GUARD), saves=501)

    found = headline(folder)

    assert found.text == (
        "Stopped by guard at step 1,503: loss was not finite from step 1,500 on. "
        "Last checkpoint before that at step 1,002: resume from there."
    )
    assert (found.stopped_by, found.not_finite, found.not_finite_since) == ("guard", "loss", 1500)
    assert [part["step"] for part in found.parts() if part["step"] is not None] == [1503, 1500, 1002]


def test_the_series_that_the_rule_read_is_the_one_that_is_searched(tmp_path: Path) -> None:
    """A loss that is not finite as well, from an earlier step on, did not make this rule fire."""
    norm = GUARD.replace("isfinite(loss)", "isfinite(grad_norm)")
    with Recorder(tmp_path, rules=rules(norm), quiet=True) as rec:
        for step in range(1, 100):
            rec.step(loss=NAN if step > 10 else 1.0, grad_norm=NAN if step > 30 or step == 20 else 1.0)
            if rec.control.should_stop:
                break

    assert headline(rec.folder).text.startswith(
        "Stopped by guard at step 34: grad_norm was not finite from step 31 on."
    )


def test_a_stop_by_finite_values_names_them(tmp_path: Path) -> None:
    """A rule without a message has its values; one of a metric comes first."""
    folder = recorded(tmp_path, lambda step: 9.5 if step == 7 else 1.0, 20, rules=rules(CAP))

    assert headline(folder).text == "Stopped by cap at step 7: loss = 9.5. Last checkpoint: none."


def test_a_stop_that_the_loop_did_not_follow_is_no_reason_for_the_end(tmp_path: Path) -> None:
    """The status says stopped; the loop trained to the end of its plan."""
    folder = recorded(
        tmp_path, lambda step: 9.0 if step == 7 else 1.0, 20, rules=rules(CAP), obeys=False, total_steps=20
    )

    found = headline(folder)

    assert (found.state, found.stopped_by) == ("stopped", None)
    assert found.text == (
        "Stopped at step 20 of 20. Last checkpoint: none. "
        "Rule cap asked for a stop at step 7; the loop made 13 more steps."
    )


def test_a_shadow_stop_is_no_reason_for_the_end(tmp_path: Path) -> None:
    """Its operations were not to be carried out."""
    shadow = CAP.replace("name: cap", "name: cap, mode: shadow")
    folder = recorded(tmp_path, lambda step: 9.0 if step == 5 else 1.0, 5, rules=rules(shadow))

    assert headline(folder).text.endswith(". Rule cap fired in shadow mode at step 5.")


def test_a_stop_by_the_loop_has_the_loop_s_reason(tmp_path: Path) -> None:
    """Without one, the sentence says that the log does not say why."""
    texts = []
    for reason in ("EarlyStoppingCallback", None):
        rec = Recorder(tmp_path, quiet=True)
        train(rec, lambda _: 1.0, 3)
        rec.close(status="stopped", reason=reason)
        texts.append(headline(rec.folder).text)

    assert texts == [
        "Stopped at step 3: EarlyStoppingCallback. Last checkpoint: none.",
        "Stopped at step 3: the log does not say why. Last checkpoint: none.",
    ]


def test_a_failure_has_its_exception_and_the_last_checkpoint(tmp_path: Path) -> None:
    """A message of several lines becomes one."""
    rec = Recorder(tmp_path, quiet=True)
    train(rec, lambda _: 1.0, 312, saves=100)
    rec.fail(RuntimeError("no\n data."))

    assert headline(rec.folder).text == (
        "Failed at step 312: RuntimeError: no data. Last checkpoint at step 300: resume from there."
    )


@pytest.mark.parametrize(
    ("saves", "said"), [((), "Last checkpoint: none."), ((40, 60), "Last checkpoint at step 60: resume from there.")]
)
def test_a_killed_run_has_crashed_and_says_how_long_ago(tmp_path: Path, saves: tuple[int, ...], said: str) -> None:
    """Its process is gone."""
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *map(str, saves)], check=False)

    found = headline(tmp_path / "killed", later_s=3 * 3600)

    assert found.text == f"Crashed at step 70 of 100: its process is gone; last event 3 h ago. {said}"


def test_a_live_run_says_how_fast_it_is_and_how_long_it_takes(tmp_path: Path) -> None:
    """The speed is that of the newest updates by their own clock."""
    with Recorder(tmp_path, total_steps=1000, quiet=True) as rec:
        train(rec, lambda _: 1.0, 600)
        found = headline(rec.folder)

    assert found.state == "running"
    assert found.text.startswith("Running at step 600 of 1,000, ")
    assert found.text.endswith(" left.")
    assert " steps/s, about " in found.text


def test_a_live_run_without_a_step_says_so(tmp_path: Path) -> None:
    """No speed is made up."""
    with Recorder(tmp_path, total_steps=1000, quiet=True) as rec:
        assert headline(rec.folder).text == "Running before its first step."


def test_a_live_run_that_writes_nothing_is_stalled(tmp_path: Path) -> None:
    """A minute without an event is long where a step takes milliseconds."""
    with Recorder(tmp_path, quiet=True) as rec:
        train(rec, lambda _: 1.0, 30)
        texts = [headline(rec.folder, later_s=later_s).text for later_s in (20, 3000)]

    assert ", last event 20 s ago" in texts[0]
    assert texts[1].startswith("Stalled at step 30: no event for 50 min; a step took ")
    assert texts[1].endswith(". Last checkpoint: none.")


def test_the_time_that_is_left_is_that_of_the_plan_at_the_speed_of_the_clock(tmp_path: Path) -> None:
    """400 steps of half a second are 3.3 minutes."""
    writer = begin(tmp_path, "r")
    (attempt,) = (info := open_run(tmp_path / "r").info).attempts
    write_run_info(tmp_path / "r", replace(info, attempts=(replace(attempt, plan=Plan(total_steps=1000)),)))
    for step in range(1, 601):
        now_ns = step * NS_PER_S // 2
        writer.append("step_end", ("loss",), (1.0,), step=step, time_ns=START_NS + now_ns, elapsed_ns=now_ns)
    text = open_run(tmp_path / "r").read(lambda snapshot: headline_of(snapshot, START_NS + 300 * NS_PER_S)).text
    writer.close()

    assert text == "Running at step 600 of 1,000, 2 steps/s, about 3.3 min left."


def test_a_completed_run_says_how_long_it_took_and_its_lowest_evaluation(tmp_path: Path) -> None:
    """The duration is that of ``run.json``."""
    with Recorder(tmp_path, quiet=True) as rec:
        for step in range(1, 1001):
            rec.step(loss=1.0)
            if step % 100 == 0:
                rec.evaluate(eval_loss=0.41 if step == 900 else 0.5)

    found = headline(rec.folder)

    assert found.text.startswith("Completed after 1,000 steps in ")
    assert found.text.endswith("; lowest eval_loss 0.41 at step 900.")


def test_a_run_that_completed_with_a_loss_that_is_not_finite_says_so(tmp_path: Path) -> None:
    """An end without a rule is no good end."""
    folder = recorded(tmp_path, lambda step: NAN if step > 6 else 1.0, 10, saves=3)

    assert headline(folder).text.endswith(
        "; loss was not finite from step 7 on. Last checkpoint before that at step 6: resume from there."
    )


def test_one_value_that_is_not_finite_is_none_at_the_end(tmp_path: Path) -> None:
    """The loss recovered."""
    folder = recorded(tmp_path, lambda step: NAN if step == 6 else 1.0, 10)

    assert headline(folder).not_finite is None


def test_a_run_that_ended_before_its_plan_says_so(tmp_path: Path) -> None:
    """Both numbers are shown."""
    folder = recorded(tmp_path, lambda _: 1.0, 5, total_steps=20)

    assert headline(folder).text.startswith("Completed after 5 of 20 planned steps in ")


def test_a_run_without_steps_claims_none(tmp_path: Path) -> None:
    """Neither when it completes nor when it fails."""
    with Recorder(tmp_path, quiet=True) as done:
        pass
    failed = Recorder(tmp_path, quiet=True)
    failed.fail(ValueError("x"))

    assert headline(done.folder).text.startswith("Completed without a step in ")
    assert headline(failed.folder).text == "Failed before its first step: ValueError: x. Last checkpoint: none."


def test_rules_that_fired_in_a_run_that_went_on_are_counted_in_episodes(tmp_path: Path) -> None:
    """An episode is a series of firings at consecutive events."""
    high = {*range(701, 709), *range(1201, 1204)}
    folder = recorded(tmp_path, lambda step: 9.0 if step in high else 1.0, 1300, rules=rules(SPIKE))

    found = headline(folder)

    assert found.text.endswith(". Rule spike fired in 2 episodes, from step 701 to 1,203.")
    assert found.firings[0].episodes == 2


def test_firings_at_each_of_a_row_of_evaluations_are_one_episode(tmp_path: Path) -> None:
    """A rule on evaluations cannot fire at the steps between."""
    rule = "{name: flat, triggers: [on_evaluate], rule: eval_loss > 1, operations: []}"
    with Recorder(tmp_path, rules=rules(rule), quiet=True) as rec:
        for step in range(1, 60):
            rec.step(loss=1.0)
            if step % 10 == 0:
                rec.evaluate(eval_loss=2.0 if step in (20, 30) else 0.5)

    assert headline(rec.folder).text.endswith(". Rule flat fired from step 20 to 30.")


def test_a_resumed_run_says_where_it_continues_and_leaves_out_what_was_rolled_back(tmp_path: Path) -> None:
    """The stop of the first attempt came after the checkpoint, so it never was."""
    first = Recorder(tmp_path, rules=rules(CAP), quiet=True)
    train(first, lambda step: 9.0 if step == 8 else 1.0, 20, saves=5)
    first.close()
    with Recorder(tmp_path, resume=(first.run_id, 5), rules=rules(CAP), quiet=True) as rec:
        train(rec, lambda _: 1.0, 4)

    text = headline(rec.folder).text

    assert text.startswith("Completed after 9 steps in ")
    assert text.endswith(". Attempt 1 continues from step 5.")


def test_a_stop_that_a_first_attempt_obeyed_is_not_said_to_be_ignored_by_the_next(tmp_path: Path) -> None:
    """The checkpoint came after the order, and a person resumed from it."""
    first = Recorder(tmp_path, rules=rules(CAP), quiet=True)
    train(first, lambda step: 9.0 if step == 5 else 1.0, 20, saves=5)
    first.close()
    with Recorder(tmp_path, resume=(first.run_id, 5), rules=rules(CAP), quiet=True) as rec:
        train(rec, lambda _: 1.0, 4)

    assert headline(rec.folder).text.endswith("Attempt 1 continues from step 5. Rule cap fired at step 5.")


def test_names_with_any_characters_stay_on_one_line(tmp_path: Path) -> None:
    """Neither a regular expression nor a line break is read into a metric's or an exception's name."""
    metric = 'a (b)[0] "loss"\n<b>%s{x}'
    rec = Recorder(tmp_path, quiet=True)
    for step in range(1, 5):
        rec.step({metric: NAN if step > 2 else 1.0})
    rec.fail(ValueError("x\n\ty"))

    assert headline(rec.folder).text == (
        'Failed at step 4: ValueError: x y; a (b)[0] "loss" <b>%s{x} was not finite from step 3 on. '
        "Last checkpoint before that: none."
    )


def test_a_rule_that_could_not_be_evaluated_is_named(tmp_path: Path) -> None:
    """A rule that fails is silent otherwise."""
    wrong = "{name: wrong, triggers: [on_step_end], rule: 1 / (loss - loss) > 1, operations: []}"
    folder = recorded(tmp_path, lambda _: 1.0, 3, rules=rules(wrong))

    assert headline(folder).text.endswith(". Rule wrong could not be evaluated, first at step 1.")
