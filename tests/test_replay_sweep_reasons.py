"""A sweep says in one sentence why a controller goes to the event engine, and names the key or the function."""

from __future__ import annotations

import re

import pytest
from example_words import CONTROLLER_KEYS, EXAMPLE_FUNCTIONS, ROOT_KEYS, WINDOW_WORDS
from typer.testing import CliRunner

from steptape.cli.app import app
from steptape.recorder.recorder import Recorder
from steptape.replay.backtests.backtesting import backtest
from steptape.replay.sweeps.sweeping import sweep
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run
from steptape.store.store import open_run

TOP = """\
params: {at: 1, word: "on"}
define:
  is_high: loss > at
  kept: {value: loss, admit: not fired_now("plain")}
states:
  phase: [{high: is_high}, {low: 'True'}]
  lasting: [{long: 'age("lasting") > 1'}, {short: loss > at}]
record: [phase]
controllers:
- {name: plain, triggers: [on_step_end], rule: loss > at, operations: []}
"""

#: By key, function or word: a rule, the other lines of its controller, and the reason.
BY_EVENTS = {
    "at_point": ("loss > at_point(loss) + at", "", "it reads the restore points of the run"),
    "for_each": ('series("loss*") > at', "for_each: loss*", "it has the key 'for_each'"),
    "family": ('any(series("loss*") > at)', "", 'it calls any(series("loss*") > at) (a family of series)'),
    "admit": ("loss > at * mean(kept, 3)", "", "it reads the admitted values 'kept'"),
    "state of itself": (
        'lasting == "long" and at > 0',
        "",
        "it reads the state 'lasting', where it reads the state 'lasting' as it was",
    ),
}

#: What columns decide: a rule, and the other lines of its controller.
BY_COLUMNS = {
    "record": ('phase == "low" and at > 0', ""),
    "clear": ("loss > at", "clear: loss < 2"),
    "escalate": ("loss > at", "escalate: {stages: [{operations: []}, {operations: []}], cap: 3}"),
    "states": ('phase == "high" and at > 0', ""),
    "on_state": ("at > 0", "triggers: ['on_state:phase']"),
    "age of a state": ('age("phase") == 0 and at > 0', ""),
    "previous": ('previous("phase") == "high"', ""),
    "milestone": ("milestone(every=0.5) and loss > at", ""),
    "text": ('word == "on" and loss > at', ""),
    "every value of an expression": ("mean(abs(delta(loss)), 2) > at", "every: value"),
    "define": ("is_high and loss < 9", ""),
    "series of define": ("mean(is_high, 3) > 0", ""),
    "streak": ("streak(loss > at) > 2", ""),
    "series of an expression": ("peak(mean(abs(delta(loss)), 3)) > at", ""),
    "ranges": ("loss_aux > at", ""),
    "mad": ("mad(loss, 3) > at", ""),
    "trough": ("trough(loss) > at", ""),
    "initial": ("initial(loss) > at", ""),
    "improved": ("at > 0 and not improved(loss)", ""),
    "requires": ("loss > at", "requires: [loss]"),
    "every": ("loss > at", "every: value"),
    "fired_now": ('fired_now("plain") and at > 0', ""),
    "asks": ('streak("clear") > 0 and at > 0', ""),
    "streak of a rule": ('streak("plain") > 0 and at > 0', ""),
    "min": ("mean(loss, 3, min=2) > at", ""),
    "seconds": ("mean(loss, seconds=3) > at", ""),
    "samples": ("mean(loss, samples=3) > at", ""),
    "tokens": ("mean(loss, tokens=3) > at", ""),
    "per": ('slope(loss, 3, per="step") > at', ""),
    "rate": ("rate(loss) > at", ""),
    "age": ("age(loss) > at", ""),
    "absent": ("absent(loss, steps=2)", ""),
    "zscore": ("zscore(loss, 3) > at", ""),
    "finite": ("finite(loss) > at", ""),
    "sign": ("sign(loss) >= at", ""),
    "cos": ("cos(loss) > at", ""),
    "tanh": ("tanh(loss) > at", ""),
    "undefined": ("undefined > at", ""),
    "steering": ("loss > at", "operations: [lr.reduce(0.5)]"),
    "adjusting": ("loss > at", "operations: [detail.set(2)]"),
    "tokens_seen": ("tokens_seen > at", ""),
}


def controller(name: str, rule: str, lines: str = "") -> str:
    """Return a controller of a policy."""
    triggers = "" if "triggers:" in lines else "  triggers: [on_step_end]\n"
    more = f"  {lines}\n" if lines else ""
    orders = "" if "escalate:" in lines or "operations:" in lines else "  operations: []\n"
    return f"- name: {name}\n{triggers}  rule: |-\n    {rule}\n{orders}{more}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a few steps."""
    with Recorder(tmp_path_factory.mktemp("reasons") / "runs", quiet=True) as recorder:
        for loss in (1.0, 2.0, 3.0, 2.0, 1.0, 3.0):
            recorder.step(loss=loss, loss_aux=3.0 - loss, batch_size=2, num_tokens=8)
        recorder.evaluate(eval_loss=1.0)
    return open_run(recorder.folder)


@pytest.fixture(scope="module")
def reasons(run: Run) -> dict[str, str]:
    """The reasons that ``steptape sweep`` prints, by controller."""
    rules = [controller(name, rule, lines) for name, (rule, lines, _) in BY_EVENTS.items()]
    rules += [controller(name, *given) for name, given in BY_COLUMNS.items()]
    store = run.folder.parent
    policy = store.with_name("policy.yaml")
    policy.write_text(TOP + "".join(rules))
    arguments = ["sweep", str(policy), "--store", str(store), "--set", "at=1,2"]

    printed = CliRunner().invoke(app, arguments, catch_exceptions=False).output

    return dict(
        re.findall(r"^Evaluated event by event, which is slower: (.*?), because (.*)\.$", printed, re.MULTILINE)
    )


@pytest.mark.parametrize("name", BY_EVENTS)
def test_the_sweep_names_what_sends_a_controller_to_the_event_engine(name: str, reasons: dict[str, str]) -> None:
    """One sentence for each controller."""
    assert reasons[name] == BY_EVENTS[name][2]


@pytest.mark.parametrize("name", [*BY_EVENTS, *BY_COLUMNS])
def test_the_decisions_of_each_variant_are_those_of_a_backtest(name: str, run: Run) -> None:
    """Variants differ in a param that the rule, a name or a state reads."""
    rule, lines = BY_EVENTS[name][:2] if name in BY_EVENTS else BY_COLUMNS[name]
    others = controller("clear", *BY_COLUMNS["clear"]) if name == "asks" else ""
    swept = sweep(parse_policy(TOP + others + controller(name, rule, lines)), {"at": [1, 2, 9]}, [run])
    singles = [backtest(variant.policy(), [run]).results[0].decisions for variant in swept.variants]

    assert swept.totals["decisions"].tolist() == list(map(len, singles))


def test_columns_decide_the_rest_without_a_word(reasons: dict[str, str]) -> None:
    """But for a controller that another one asks about."""
    word = "a controller that needs the event engine asks about it or shares its cooldown"

    assert {name: reason for name, reason in reasons.items() if name not in BY_EVENTS} == {"plain": word}


def test_each_key_and_function_but_the_plainest_is_among_these() -> None:
    """A key that joins the language needs a line above."""
    words = ROOT_KEYS | CONTROLLER_KEYS | EXAMPLE_FUNCTIONS | WINDOW_WORDS

    assert sorted(words - BY_EVENTS.keys() - BY_COLUMNS.keys()) == []
