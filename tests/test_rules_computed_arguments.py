"""Arguments of operations are expressions: computed at the decision, written into it, left out with a reason."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from steptape import Recorder, backtest, load_policy, open_run, sweep, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan
from steptape.store.run import Run


def policy(operation: str, more: str = "") -> str:
    """Return a policy whose one controller orders an operation at a loss above 2."""
    return f"""
params: {{half: 0.5, word: fast}}
define: {{target: "mean(loss, 2) / 10", usual: "median(loss, 3)"}}
{more}
controllers:
  - name: cut
    triggers: [on_step_end]
    rule: loss > 2
    operations:
      - {operation}
"""


def decided(text: str, *steps: dict[str, float], plan: Plan = Plan()) -> list[Decision]:  # noqa: B008 - immutable
    """Return the decisions of a policy over steps with these metrics."""
    engine = Engine(parse_policy(text), plan)
    events = [Event("step_end", seq=i, step=i + 1, metrics=metrics) for i, metrics in enumerate(steps)]
    outcomes = [outcome for event in events for outcome in engine.observe(event)]
    return [outcome for outcome in outcomes if isinstance(outcome, Decision)]


@pytest.mark.parametrize(
    ("operation", "ordered"),
    [
        ("lr.scale(target / lr)", "lr.scale(0.625)"),
        ('"lr.scale(half * 2, over=step * 5)"', "lr.scale(1.0, over=10)"),
        ('"lr.scale(series(\\"lr\\") * 2, over=len(loss), blend=none)"', "lr.scale(1.0, over=2, blend=none)"),
        ("lr.reduce(min(loss, 2) / 10)", "lr.reduce(0.25)"),
        ("lr.reduce(target)", "lr.reduce(0.3125)"),
        ("epochs.set(max([1, math_ceil(loss)]))", "epochs.set(4)"),
        ("detail.set(1 if lr < 1 else 2)", "detail.set(1)"),
    ],
)
def test_a_decision_holds_the_value_that_an_argument_has_at_it(operation: str, ordered: str) -> None:
    """Arguments read definitions, params, facts and series."""
    decision = decided(policy(operation), {"loss": 2.5, "lr": 0.1}, {"loss": 3.75, "lr": 0.5})[-1]

    assert decision.operations == (ordered,)


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ("lr.scale(lag(loss, 5))", "lag(loss, 5) is undefined"),
        ("lr.scale(target / (lr - lr))", "target / (lr - lr) fails: ZeroDivisionError: float division by zero"),
        ("lr.scale(lr - lr)", "'factor' must be above 0; got 0.0"),
        ("epochs.set(target * 1.1)", "'n' takes a whole number; got"),
        ('"lr.scale(half, over=step - 1)"', "a blend over 1 update changes no update"),
    ],
)
def test_an_operation_without_a_valid_argument_is_left_out_of_a_decision_with_the_reason(
    operation: str, why: str
) -> None:
    """The decision is made all the same, with its other operations."""
    text = policy(operation) + "      - stop\n"
    decision = decided(text, {"loss": 2.5, "lr": 0.1}, {"loss": 3.75, "lr": 0.1})[-1]

    assert decision.operations == ("hfcontrols.should_training_stop",)
    assert [why in reason for reason in decision.not_ordered.values()] == [True]


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (
            "lr.scale(haf)",
            "8:18: controller 'cut', operations: not one of the params and definitions; got 'haf'. Did you",
        ),
        ("lr.scale(budget)", "got 'budget'. Write series(\"budget\") for the metric."),
        ("lr.scale(half > 0.1)", "'factor' takes a number; this gives a truth value"),
        ("lr.scale(word)", "'factor' takes a number; got 'fast'"),
        ("lr.scale(0)", "'factor' must be above 0; got 0"),
        ("lr.scale(target / meen(loss, 3))", "10:27: controller 'cut', operations: unknown function; got 'meen'"),
        ("rollback.to(target)", "'save' takes the word 'last' alone; got 'target'"),
        ("lr.scale(*target)", "not an expression"),
    ],
)
def test_an_argument_that_cannot_be_computed_is_refused_at_load(operation: str, message: str) -> None:
    """Numbers and params are checked as before; a mistake within an expression is shown at its place."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(policy(operation))

    assert message.replace("8:18", "10:18") in str(caught.value)


def test_a_definition_that_an_argument_reads_is_part_of_the_digest() -> None:
    """The same text of an operation means another order."""
    text = policy("lr.scale(target)")

    assert parse_policy(text).digest != parse_policy(text.replace("/ 10", "/ 20")).digest


def test_a_stage_of_an_escalation_computes_its_arguments() -> None:
    """The stage itself is a name there."""
    stages = "escalate: {stages: [{operations: [lr.scale(1 / (stage + 1))]}, {operations: [lr.reduce(target)]}]}"
    text = policy("").replace("operations:\n      - ", stages)

    assert [each.operations for each in decided(text, {"loss": 4.0}, {"loss": 4.0})] == [
        ("lr.scale(0.5)",),
        ("lr.reduce(0.4)",),
    ]


def test_each_member_of_a_family_computes_its_own_argument() -> None:
    """The pattern means the member in the argument, too."""
    text = policy('lr.reduce(series("norm/*") / 10)').replace(
        "rule: loss > 2", 'for_each: norm/*\n    rule: series("norm/*") > 2'
    )
    decisions = decided(text, {"norm/a": 3.0, "norm/b": 1.0, "norm/c": 4.0})

    assert [(each.member, each.operations) for each in decisions] == [
        ("norm/a", ("lr.reduce(0.3)",)),
        ("norm/c", ("lr.reduce(0.4)",)),
    ]


def test_a_sentence_orders_a_computed_operation() -> None:
    """By the form of a call, and by the words."""
    for sentence in ("lr.reduce(mean(loss, 2) / 10) if loss > 2", "lr x (mean(loss, 2) / 10) if loss > 2"):
        text = f"controllers: [{sentence!r}]"
        assert decided(text, {"loss": 3.0}, {"loss": 5.0})[-1].operations == ("lr.reduce(0.4)",)


STEERED = (
    policy("lr.scale(target * lr.scheduled / usual)")
    + """      - epochs.set(math_ceil(loss * 2))
      - lr.reduce(1 / (loss - 4))
"""
)


def recorded(folder: Path, text: str) -> Run:
    """Record a run that rules steer, resumed once."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    state: Any = None
    for losses in ((1.0, 2.5, 3.0, 1.0), (2.5, 4.0, 1.0)):
        with Recorder(folder, rules=parse_policy(text), resume=state, quiet=True) as rec:
            rec.learning_rate(optimizer)
            rec.handle("epochs.set", lambda request: {"epochs": request.arguments["n"]})
            for loss in losses:
                optimizer.step()
                rec.step(loss=loss)
            state = rec.state_dict()
    return open_run(folder / state["run_id"])


def test_what_a_run_ordered_is_what_its_replay_orders(tmp_path: Path) -> None:
    """Over a resume: the log holds the values, and what was left out."""
    run = recorded(tmp_path, STEERED)
    orders = [
        (event.attrs["operations"], event.attrs.get("not_ordered", {}))
        for event in run.events()
        if event.kind == "decision"
    ]
    replayed = [
        each.outcome for each in replay(parse_policy(STEERED), run).decisions if isinstance(each.outcome, Decision)
    ]

    assert verify(run).identical
    assert orders == [(list(each.operations), each.not_ordered) for each in replayed]
    assert orders[-1] == (
        ["lr.scale(0.013000000000000001)", "epochs.set(8)"],
        {"lr.reduce(1 / (loss - 4))": "1 / (loss - 4) fails: ZeroDivisionError: float division by zero"},
    )


def test_the_loop_is_asked_with_the_values(tmp_path: Path) -> None:
    """The receipts hold them."""
    receipts = [event.attrs for event in recorded(tmp_path, STEERED).events() if event.kind == "operation_applied"]

    assert [each["operation"] for each in receipts if "epochs" in each["operation"]] == [
        f"epochs.set({n})" for n in (5, 6, 5, 8)
    ]


def test_an_operation_that_is_left_out_is_refused_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log of the run and in Python's. The loop is not asked for it."""
    with caplog.at_level(logging.WARNING, "steptape.rules"):
        run = recorded(tmp_path, policy("lr.scale(usual - 2.5)"))
    receipts = [event for event in run.events() if event.kind.startswith("operation")]
    first = receipts[0].step, receipts[0].attrs["operation"], receipts[0].attrs["reason"]

    assert "step 2: lr.scale(usual - 2.5) is refused: 'factor' must be above 0; got -0.75" in caplog.text
    assert {event.kind for event in receipts} == {"operation_refused"}
    assert first == (2, "lr.scale(usual - 2.5)", "'factor' must be above 0; got -0.75")


def test_a_backtest_and_a_sweep_judge_computed_orders(tmp_path: Path) -> None:
    """A decision without an operation changes nothing of the run."""
    run = recorded(tmp_path, policy("lr.scale(half)"))
    text = policy("lr.scale(half * (loss - 100))") + "      - stop\n"
    swept = sweep(parse_policy(text), {"half": [0.25, 0.5]}, [run])

    assert backtest(parse_policy(text), [run]).results[0].stop is not None
    assert len(swept.variants) == 2


def test_surogate_s_rules_set_the_epochs_that_chinchilla_s_budget_asks_for(tmp_path: Path) -> None:
    """Twenty tokens a parameter, of a dataset that is trained on for whole epochs; asked as the training begins."""
    rules = load_policy("surogate", params={"from_scratch": True, "epoch_adjustment": True})
    constants = {"num_params": 600e6, "dataset_tokens": 2.4e9, "tokens_per_step": 1e6}
    asked: list[object] = []
    with Recorder(tmp_path, rules=rules, plan=Plan(total_epochs=3, constants=constants), quiet=True) as rec:
        rec.handle("epochs.set", lambda request: asked.append(request.arguments["n"]))
        rec.step(loss=1.0, grad_norm=1.0)

    assert asked == [5]
