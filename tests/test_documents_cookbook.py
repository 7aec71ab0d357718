"""Each sentence of the cookbook fires where its page says, live and in a backtest, and nowhere else."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from steptape import Recorder, backtest, load_policy, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision
from steptape.store.run import Run

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "cookbook.md"

#: The sentences of the page, by their headings.
SENTENCES = dict(
    re.findall(r"^## (.*?)\n\n```rule\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
)

#: The length of each training, and the steps between its evaluations.
STEPS, EVERY = 200, 10

#: The value of a metric at a step.
Curve = Callable[[int], float]


class Case(NamedTuple):
    """What a loop reports, by metric, and the steps at which the rule then fires."""

    fires: Mapping[str, Curve]
    at: list[int]
    is_silent_on: Mapping[str, Curve]


def falling(step: int) -> float:
    """A loss that falls from 3 towards 1."""
    return 1 + 2 / (1 + step / 50)


def jump(before: float, after: float, at: int) -> Curve:
    """A value that changes at a step."""
    return lambda step: before if step < at else after


CASES: Mapping[str, Case] = {
    # The best is at 50; the evaluations at 60 to 100 are five without improvement.
    "Stop early": Case({"eval_loss": lambda step: abs(step - 50) + 1}, [100], {"eval_loss": falling}),
    "Keep the best checkpoint": Case({"eval_loss": jump(2, 1, 100)}, [10, 100], {"loss": falling}),
    # The third loss in a row that is not finite; two are too few.
    "Give up on NaN": Case(
        {"loss": lambda step: math.nan if step in (20, 21, 40, 41, 42) else 1.0},
        [42],
        {"loss": lambda step: math.nan if step in (20, 21) else 1.0},
    ),
    "Note a spike": Case({"loss": lambda step: 9.0 if step in (60, 61, 165) else 2.0}, [60, 165], {"loss": falling}),
    # The average over 50 rises by 2 / 51 of the distance: 1 + 5 * (1 - (49 / 51) ** n) exceeds 3 at n = 13.
    "Stop a divergence": Case({"loss": jump(1, 6, 121)}, [133], {"loss": falling}),
    # Never better than the first one, at 10: cuts at 50, 90, 130 and 170.
    "Cut the learning rate on a plateau": Case(
        {"eval_loss": lambda _: 1.0}, [50, 90, 130, 170], {"eval_loss": falling}
    ),
    # An hour a step by the clock of the test.
    "Stay within a time budget": Case({"loss": falling}, [], {}),
    "Ignore the warm-up": Case({"loss": jump(9, 8.5, 30)}, [39], {"loss": jump(9, 2, 19)}),
    "Watch the gradient norm": Case(
        {"grad_norm": lambda step: 6.0 if step in (10, 30, 40, 90) else 1.0}, [30, 90], {"grad_norm": lambda _: 4.0}
    ),
    # The median of 20 changes with the eleventh slow step.
    "Notice that throughput falls": Case(
        {"tokens_per_s": jump(1000, 600, 101)}, [111], {"tokens_per_s": jump(1000, 800, 101)}
    ),
    "Stop a growing gap": Case(
        {"loss": lambda _: 1.0, "eval_loss": jump(1.0, 1.3, 100)}, [120], {"loss": falling, "eval_loss": falling}
    ),
    "Stop hopeless runs": Case({"eval_loss": lambda _: 3.0}, [100], {"eval_loss": falling}),
    "Evaluate at milestones": Case({"loss": falling}, [*range(20, 201, 20)], {}),
    # The event before the update of step n is at step n - 1.
    "Skip a bad update": Case(
        {"grad_norm": lambda step: {50: 101.0, 60: math.nan}.get(step, 1.0)}, [49, 59], {"grad_norm": lambda _: 100.0}
    ),
    # 100 MB and 1 more each step: the first 20 have the median 110.5, and 166 exceeds 1.5 times that.
    "Find a memory leak": Case({"memory_mb": lambda step: 100.0 + step}, [66], {"memory_mb": jump(110, 160, 100)}),
}


def trained(folder: Path, curves: Mapping[str, Curve], rules: list[str] | None) -> Run:
    """Train until a rule stops the loop: before each update, after it, and at each tenth an evaluation."""
    with Recorder(folder, rules=rules, total_steps=STEPS, quiet=True) as rec:
        for step in range(1, STEPS + 1):
            values: dict[str, Any] = {name: curve(step) for name, curve in curves.items()}
            evaluated = {name: values.pop(name) for name in [*values] if name.startswith("eval")}
            rec.event("pre_optimizer_step", **values)
            control = rec.step(values)
            if evaluated and step % EVERY == 0:
                control = rec.evaluate(evaluated)
            if control.should_stop:
                break
    return open_run(rec.folder)


def fired(sentence: str, run: Run) -> list[int]:
    """Return the steps at which a sentence decides in a replay of a run."""
    made = replay(load_policy(sentence), run).decisions
    return [each.outcome.step for each in made if isinstance(each.outcome, Decision)]


def test_the_page_has_a_case_for_each_sentence() -> None:
    """Fifteen wishes."""
    assert list(SENTENCES) == list(CASES)
    assert len(CASES) == 15


@pytest.mark.parametrize("wish", [wish for wish in CASES if wish != "Stay within a time budget"])
def test_a_sentence_of_the_cookbook_fires_at_its_steps(wish: str, tmp_path: Path) -> None:
    """Live, in a replay of that run, and in one of a run that was recorded without rules."""
    sentence, case = SENTENCES[wish], CASES[wish]
    live = trained(tmp_path / "live", case.fires, [sentence])
    past = trained(tmp_path / "past", case.fires, None)

    decided = fired(sentence, past)
    assert verify(live).identical
    assert fired(sentence, live) == (decided[:1] if "stop" in sentence else decided) == case.at


@pytest.mark.parametrize("wish", [wish for wish, case in CASES.items() if case.is_silent_on])
def test_a_sentence_of_the_cookbook_leaves_a_good_training_alone(wish: str, tmp_path: Path) -> None:
    """It decides nothing live, and nothing in a backtest."""
    sentence, curves = SENTENCES[wish], CASES[wish].is_silent_on
    live = trained(tmp_path / "live", curves, [sentence])
    (result,) = backtest(load_policy(sentence), [trained(tmp_path / "past", curves, None)]).results

    assert fired(sentence, live) == []
    assert (verify(live).outcomes, result.fired) == (0, False)


def test_the_time_budget_of_the_cookbook_ends_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that advances by a minute at each look."""
    sentence = SENTENCES["Stay within a time budget"]
    clock = itertools.count(0, 60 * 10**9)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(clock))
    live = trained(tmp_path / "live", {"loss": falling}, [sentence])
    monkeypatch.undo()

    (step,) = fired(sentence, live)

    assert verify(live).identical
    assert step < STEPS
