"""Operations have effects, and LogControl renders bounded messages from names without reaching attributes."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.effects import Effect
from steptape.rules.engine.decisions import Decision, LogMessage
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.functions.undefined import UNAVAILABLE, Undefined
from steptape.rules.policy_file.operations import LogControl
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import TelemetryError
from steptape.store.events import Event

NAMES = {
    "step": 7,
    "epoch": None,
    "w": {"training_loss": {"loss": [3.0, 2.5]}, "a b": 1, "0": "zero"},
    "m": UNAVAILABLE,
    "big": "x" * 50_000,
    "flag": True,
}


def rendered(template: str) -> str:
    """Render a message over the names above."""
    return LogControl({"log_format": template, "log_level": "INFO"}).text(NAMES)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("{step} {epoch} {flag}", "7 None True"),
        ("{{{step:>4}}}", "{   7}"),
        ("{w[training_loss][loss][-1]:.2f}", "2.50"),
        ("{w.training_loss.loss[0]}", "3.0"),
        ("{w[a b]} {w[0]}", "1 zero"),
        ("{w}", "{'training_loss': {'loss': [3.0, 2.5]}, 'a b': 1, '0': 'zero'}"),
        ("{step!s}", "7"),
        ("{nothing}", "<missing nothing>"),
        (
            "{w[none]} {w.training_loss.loss[9]} {step[0]}",
            "<missing w[none]> <missing w.training_loss.loss[9]> <missing step[0]>",
        ),
        ("{m} {m.loss}", "<missing m> <missing m.loss>"),
        ("{epoch:.2f}", "<not .2f: None>"),
        ("{w:>10}", "<not >10: a dict>"),
        ("{step.real} {w.keys} {w.__class__}", "<missing step.real> <missing w.keys> <missing w.__class__>"),
    ],
)
def test_a_message_looks_keys_up_and_says_what_is_missing(template: str, expected: str) -> None:
    """It never fails."""
    assert rendered(template) == expected


def test_a_message_is_bounded() -> None:
    """A huge text is cut and keeps its ends."""
    assert len(rendered("{big}{big}")) <= 10_000


@pytest.mark.parametrize(
    "template",
    [
        "{",
        "}",
        "{}",
        "{0}",
        "{step!r}",
        "{step!x}",
        "{step:{step}}",
        "{step:9999}",
        "{step:.9999f}",
        "{w[}",
        "{ step }",
        "{w..a}",
    ],
)
def test_a_malformed_message_is_refused_at_load(template: str) -> None:
    """Positional, nested and oversized formats are included."""
    with pytest.raises(PolicyError, match="operation 'n', log_format: "):
        parse_policy(
            f"operations: [{{name: n, class: LogControl, arguments: {{log_format: '{template}', log_level: INFO}}}}]"
        )


@pytest.mark.parametrize(
    "escape",
    [
        "{step.__class__.__init__.__globals__[os].environ[STEPTAPE_SECRET]}",
        "{w.__class__.__mro__[1].__subclasses__}",
        "{w[__class__]}",
        "{args.__class__.__init__.__globals__[os].environ[STEPTAPE_SECRET]}",
        "{m.__class__}",
    ],
)
def test_a_message_cannot_reach_attributes(escape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TrAC's messages can print an environment secret this way."""
    monkeypatch.setenv("STEPTAPE_SECRET", "hidden")
    assert os.environ["STEPTAPE_SECRET"] == "hidden"

    assert rendered(escape) == f"<missing {escape[1:-1]}>"


@given(st.text(alphabet="{}[].!:w0s<>=-_f x", max_size=30))
def test_a_template_is_refused_or_renders(template: str) -> None:
    """Neither a template nor a value makes a message fail."""
    try:
        operation = LogControl({"log_format": template, "log_level": "INFO"})
    except ValueError:
        return

    assert isinstance(operation.text(NAMES), str)


POLICY = """
params: {spike: 2.0}
controller_metrics: [{name: l, class: Loss}]
operations:
  - name: note
    class: LogControl
    arguments:
      log_format: "{event_name} {control_name} {step} {epoch} {l[loss]} {spike} {logs[lr]} {path}"
      log_level: warning
controllers:
  - name: c
    triggers: [on_log, on_save]
    rule: "True"
    operations: [hfcontrols.should_save, note.should_log]
"""


def test_a_decision_carries_its_rendered_messages_in_order() -> None:
    """The level is in capitals, and the event's own attributes are available."""
    engine = Engine(parse_policy(POLICY))

    (logged,) = engine.observe(Event("log", step=3, epoch=0.5, metrics={"loss": 1.5, "lr": 0.1}))
    (saved,) = engine.observe(Event("save", step=4, attrs={"path": "ckpt-4"}))

    assert isinstance(logged, Decision)
    assert isinstance(saved, Decision)
    assert logged.messages == (LogMessage("note.should_log", "WARNING", "on_log c 3 0.5 1.5 2.0 0.1 <missing path>"),)
    assert saved.messages[0].text == "on_save c 4 None 1.5 2.0 <missing logs[lr]> ckpt-4"


@pytest.mark.parametrize(
    ("operation", "effect"),
    [
        ("hfcontrols.should_training_stop", Effect.STOP),
        ("hfcontrols.should_epoch_stop", Effect.STOP_EPOCH),
        ("hfcontrols.should_save", Effect.SAVE),
        ("hfcontrols.should_evaluate", Effect.EVALUATE),
        ("hfcontrols.should_log", Effect.LOG),
        ("note.should_log", Effect.MESSAGE),
    ],
)
def test_each_action_has_its_effect(operation: str, effect: Effect) -> None:
    """The effect is the recorder's instruction."""
    assert parse_policy(POLICY).effects(operation) is effect


@pytest.mark.parametrize("operation", ["hfcontrols.should_stop", "other.should_log", "note", ""])
def test_an_action_that_is_not_there_has_no_effect(operation: str) -> None:
    """The request is an error."""
    with pytest.raises(TelemetryError, match="no such operation"):
        parse_policy(POLICY).effects(operation)


def test_a_policy_can_give_the_default_operations_name_to_its_own() -> None:
    """There is no other hfcontrols then."""
    text = "operations: [{name: hfcontrols, class: LogControl, arguments: {log_format: x, log_level: INFO}}]\n"

    assert parse_policy(text).effects("hfcontrols.should_log") is Effect.MESSAGE
    with pytest.raises(PolicyError, match=r"unknown action; got 'hfcontrols\.should_save'"):
        parse_policy(
            f"{text}controllers: [{{name: c, triggers: [], rule: 'True', operations: [hfcontrols.should_save]}}]"
        )


@pytest.mark.parametrize("compare", [operator.eq, operator.ne])
def test_a_metric_without_a_value_compares_with_none_alone(compare: Callable[[object, object], bool]) -> None:
    """With anything else the comparison is undefined, whichever side it is on."""
    assert compare(UNAVAILABLE, None) == compare(None, None)
    with pytest.raises(Undefined, match="metric not available"):
        compare(UNAVAILABLE, 3)
