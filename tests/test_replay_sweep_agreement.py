"""Columns and event engine agree on every decision and number of every variant, for drawn policies and streams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import fields

import pytest
from drawing import examples
from drawn_readings import EXPRESSION_FORMS, EXPRESSIONS, FACTS, FORMS, PLAN, REDUCTIONS, streams
from hypothesis import given, settings
from hypothesis import strategies as st

from steptape.replay.columns.column_replay import by_columns, is_columnar
from steptape.replay.columns.variant_firings import RunFirings, batches_of
from steptape.replay.columns.variants import Variant, variants_of
from steptape.replay.runs.event_stream import event_stream
from steptape.replay.runs.judging import RunBackground, judge_stream
from steptape.replay.runs.objective import Objective, Saves
from steptape.replay.runs.replaying import replay_events, replay_stream
from steptape.replay.runs.run_result import BacktestSettings
from steptape.replay.sweeps.outcomes import Outcomes, outcomes_of_results
from steptape.replay.sweeps.variant_outcomes import sweep_stream
from steptape.rules.engine.decisions import Decision
from steptape.rules.policy_file.policy import load_policy, parse_policy, shipped_policies
from steptape.store.events import Event
from steptape.store.metric_words import Mode
from streams_of_events import stream_of_events

SERIES = st.sampled_from(
    ["loss", "norm", "eval_loss", "lr", "declared", 'series("loss", kind="log")', 'series("loss", kind="custom:x")']
)
WINDOWED = st.sampled_from(REDUCTIONS)
OBJECTIVE = Objective("eval_loss", Mode.MIN)


WINDOWS = st.sampled_from(FORMS)
PLAIN = st.sampled_from(FACTS)
#: Numbers that rules read of past decisions, and of controller metrics.
OF_PAST = st.sampled_from(['times_fired("a")', 'steps_since("a")', 'streak("a")', 'streak("b")', 'steps_since("b")'])
LISTS = st.sampled_from(
    [
        'held["metrics"]["eval_loss"]',
        'held["metrics"]["eval_loss"][-2:]',
        'held["training_loss"]["loss"]',
        'held["training_loss"]["loss"][1:3]',
        'held["training_loss"]["steps"]',
        'held["metrics"]["epoch"]',
        'all_of.metrics["steps"]',
    ]
)
OF_LISTS = st.builds(
    lambda form, values: form.format(values=values),
    st.sampled_from(
        [
            "len({values})",
            "{values}[-1]",
            "{values}[0]",
            "{values}[-2]",
            "{values}[2]",
            "sum({values}) / len({values})",
            "mean({values})",
            "max({values})",
            "std({values})",
            "slope({values})",
            "quantile({values}, 0.25)",
            "sum([x for x in {values}])",
        ]
    ),
    LISTS,
)
OF_METRICS = st.one_of(
    OF_LISTS,
    OF_LISTS,
    st.sampled_from(
        ["held.window_size", "newest.eval_loss", "newest.epoch", "logged.loss", "state.global_step", "batch.loss"]
    ),
)
OF_EXPRESSIONS = st.builds(
    lambda form, function, expression, series: form.format(
        function=function,
        expression=expression.format(series=series),
        last="last=" if function in ("min", "max", "sum") else "",
    ),
    st.sampled_from(EXPRESSION_FORMS),
    WINDOWED.filter(lambda name: name != "argmax"),
    st.sampled_from(EXPRESSIONS),
    SERIES,
)
READINGS = st.one_of(
    OF_EXPRESSIONS,
    st.builds(lambda form, function, series: form.format(function=function, series=series), WINDOWS, WINDOWED, SERIES),
    st.builds(lambda form, function, series: form.format(function=function, series=series), WINDOWS, WINDOWED, SERIES),
    OF_PAST,
    OF_METRICS,
)
#: Truth values of past decisions and of controller metrics.
TRUTHS = st.sampled_from(
    [
        'times_fired("a") > 0',
        'times_fired("b") > 0',
        'streak("a") > 0',
        'streak("b") > 0',
        "absent(loss, steps=2)",
        "absent(eval_loss, epochs=0.3)",
        "batch.is_bad",
        "batch.spiking <= factor * batch.samples and batch.is_bad",
        "held",
        'mode == "fast"',
        'mode != "slow" and loss > 1',
    ]
)
#: Truth values of states.
OF_STATES = st.sampled_from(
    [
        'phase == "high"',
        'phase != previous("phase")',
        'age("phase") == 0',
        'age("phase") > 1',
        'calm == "yes" and loss < factor',
    ]
)
STATES = """
states:
  phase:
    - high: loss > threshold
    - low: norm < 1
    - late: step > 6
  calm:
    triggers: CALM
    classes:
      - "yes": phase == "low" or eval_loss < 1
      - "no": 'age("phase") > 1 or CALM_RULE'
"""
#: What may be asked of a controller above.
OF_ABOVE = st.sampled_from(['fired_now("a")', 'streak("a") > 0', 'streak("a") > 0 and loss > threshold'])
METRICS = """
controller_metrics:
  - {name: held, class: HistoryBasedMetric, arguments: {window_size: WINDOW}}
  - {name: all_of, class: HistoryBasedMetric, arguments: {window_size: -1}}
  - {name: newest, class: EvalMetrics}
  - {name: logged, class: Loss}
  - {name: state, class: TrainingState}
  - {name: batch, class: DataBatchInspector, arguments: {spike: factor, window_size: 3}}
"""


def _formed(forms: Sequence[str], *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draw one of the forms and fill its places."""
    return st.builds(lambda form, *texts: form.format(*texts), st.sampled_from(forms), *parts)


def numbers(depth: int = 2) -> st.SearchStrategy[str]:
    """Draw texts of numeric expressions."""
    if not depth:
        return st.one_of(READINGS, PLAIN)
    operators = [f"({{0}} {operator} {{1}})" for operator in ("+", "-", "*", "/", "//", "%")]
    functions = ("abs", "-", "sqrt", "exp", "log", "round", "math_floor", "math_ceil", "int", "float", "finite", "tanh")
    others = [*(f"{function}({{0}})" for function in functions), "({0} if {1} > 1 else {1})", "clamp({0}, 0.5, {1})"]
    inner = numbers(depth - 1)
    return st.one_of(READINGS, PLAIN, _formed(operators, inner, inner), _formed(others, inner, inner))


def conditions(depth: int = 2) -> st.SearchStrategy[str]:
    """Draw texts of rules."""
    compared = [f"{{0}} {sign} {{1}}" for sign in ("<", "<=", ">", ">=", "==", "!=")]
    tests = _formed([*compared, "0.5 < {0} <= {1}", "not isfinite({0})", "isfinite({0})"], numbers(), numbers())
    if not depth:
        return tests
    forms = ["({0}) and ({1})", "({0}) or ({1})", "not ({0})", "({0}) and flag", "({0}) if ({1}) else ({2})"]
    inner = conditions(depth - 1)
    return st.one_of(tests, TRUTHS, _formed(forms, inner, inner, inner))


TRIGGERS = ["[on_step_end]", "[on_evaluate]", "[on_log, on_custom:x]", "[on_step_begin]"]
OPERATIONS = [
    "[]",
    "[hfcontrols.should_training_stop]",
    "[hfcontrols.should_save]",
    "[hfcontrols.should_save, hfcontrols.should_training_stop]",
    "[hfcontrols.should_log]",
    "[hfcontrols.should_evaluate]",
    "[hfcontrols.should_evaluate, hfcontrols.should_training_stop]",
    "[hfcontrols.should_epoch_stop]",
    "[lr.reduce(0.5), hfcontrols.should_save]",
    "[detail.set(2)]",
]


@st.composite
def controllers(draw: st.DrawFn, name: str, *, is_plain: bool = False) -> str:
    """Draw the text of a controller; those after the first may ask what it does at the same event.

    A plain one mostly has a columnar form.
    """
    span = st.sampled_from(["3", "{steps: 2}", "{evaluations: 1}", "{seconds: 2.5}"])
    rule = draw(conditions(1) if is_plain else rules(name))
    # Changes of a state count no milestones.
    others = [] if is_plain or "milestone" in rule else ["['on_state:phase']"]
    triggers = draw(st.sampled_from([TRIGGERS[0], *TRIGGERS, *others]))
    operations = draw(st.sampled_from(OPERATIONS))
    keys = {
        "patience": st.sampled_from(
            [
                "{patience_threshold: tolerated}",
                "{patience_threshold: 2}",
                "{patience_threshold: tolerated, mode: no_reset_on_failure}",
            ]
        ),
        "for": st.sampled_from(["3", "{seconds: 2.5}"]),
        "cooldown": st.one_of(span, st.just("shared")),
        "once": st.just("true"),
        "between": st.sampled_from(["[3, 9]", "[null, 8]", "[4, null]"]),
        "mode": st.just("shadow"),
        "requires": st.sampled_from(["[eval_loss]", "[lr, norm]"]),
        "every": st.just("value"),
        "message": st.just("'step {step}: {loss:.2f}, mean {mean(loss, window)}, {lr} of {len(norm)}'"),
        "clear": st.sampled_from(
            ["loss < threshold", "step % 4 == 3", 'age("phase") == 0', "norm > 1 or times_fired('a') > 1"]
        ),
        "escalate": st.sampled_from(ESCALATIONS),
    }
    # One key in four.
    chances = dict.fromkeys(keys, 3)
    if is_plain:
        del chances["clear"], chances["escalate"]
    chosen = {key: draw(keys[key]) for key, most in chances.items() if draw(st.integers(0, most)) == most}
    if "patience" in chosen and "for" in chosen:
        chosen["for"] = "{seconds: 2.5}"
    # A series has to drive the rule.
    rule = f"loss > -5 and ({rule})" if "every" in chosen else rule
    lines = [f"  - name: {name}", f"    triggers: {triggers}", f"    rule: '{rule}'"]
    lines += [] if "escalate" in chosen else [f"    operations: {operations}"]
    lines += [f"    {key}: {value}" for key, value in chosen.items()]
    return "\n".join(lines)


ESCALATIONS = [
    "{stages: [{operations: [hfcontrols.should_save], times: 2}, {operations: [hfcontrols.should_training_stop]}]}",
    "{stages: [{operations: []}, {operations: [lr.reduce(0.5)]}], cycle: true, cap: 3}",
    "{stages: [{operations: []}, {operations: [hfcontrols.should_evaluate]}], forget_after: {seconds: 3}}",
]
#: Milestones, and a rule that waits for the values of an expression where its controller has ``every``.
OTHERS = (
    "milestone(every=0.25)",
    'loss > 1 and milestone(at=[0.1, 0.6], of="epochs")',
    'milestone(every=0.1, of="epochs") or loss > 2',
    "mean(abs(delta(loss)), 2) > 0.5",
)


def rules(name: str = "a") -> st.SearchStrategy[str]:
    """Draw rules."""
    of_above = conditions() if name == "a" else OF_ABOVE
    of_states = _formed(["{0}", "({0}) and ({1})", "({1}) or ({0})", "not ({0})"], OF_STATES, conditions(0))
    return st.one_of(conditions(), conditions(), of_states, of_above, st.sampled_from(OTHERS))


@st.composite
def policies(draw: st.DrawFn, *, is_plain: bool = False) -> str:
    """Draw the text of a policy."""
    names = ("a", "b", "c")[: 2 if is_plain else draw(st.integers(2, 3))]
    head = "params: {threshold: 1.5, factor: 2, window: 3, tolerated: 1, flag: true, mode: fast}\n"
    head += "cooldowns: {shared: {steps: 3}}\n"
    bodies = [draw(controllers(name, is_plain=is_plain)) for name in names]
    head += METRICS.replace("WINDOW", draw(st.sampled_from(["window", "2", "0", "-1"])))
    if not is_plain:
        calm = draw(st.sampled_from(["[on_step_end]", "[on_evaluate, on_step_end]", "[on_log]"]))
        rule = draw(
            st.sampled_from(["loss > threshold", 'times_fired("a") > 0', 'streak("b") > 0', "milestone(every=0.2)"])
        )
        head += STATES.replace("CALM_RULE", rule).replace("CALM", calm)
    return head + "controllers:\n" + "\n".join(bodies) + "\n"


def engine_firings(variant: Variant, events: Sequence[Event]) -> list[tuple[int, str, str]]:
    """Return the event engine's decisions under the rules of a variant."""
    replayed = replay_events(variant.policy(), events, PLAN)
    return sorted((j.event_index, j.outcome.controller, j.outcome.trigger) for j in replayed.decisions)


def column_firings(swept: RunFirings, variant: Variant) -> list[tuple[int, str, str]]:
    """Return the columns' decisions."""
    return sorted((event, f.controller, f.trigger) for f in swept.firings(variant) for event in f.events.tolist())


@given(policies(), streams())
@examples(10)
def test_every_decision_of_every_variant_is_that_of_the_event_engine(text: str, events: list[Event]) -> None:
    """This holds for any rules, gates, values and gaps."""
    axes: dict[str, list[float]] = {"threshold": [0.3, 2], "window": [1, 4], "tolerated": [0, 3]}
    variants = variants_of(parse_policy(text), axes)
    swept = RunFirings(stream_of_events(events, PLAN), lambda: event_stream(events))

    assert [column_firings(swept, variant) for variant in variants] == [
        engine_firings(variant, events) for variant in variants
    ]


@given(
    policies(),
    streams(late_plans=True),
    st.sampled_from(["completed", "stopped", "running", "crashed"]),
    st.sampled_from(Saves),
)
@examples(10)
def test_every_number_of_a_sweep_is_that_of_a_backtest(
    text: str, events: list[Event], status: str, saves: Saves
) -> None:
    """Stops, decisions, savings, checkpoints and regret agree to the last bit."""
    variants = variants_of(parse_policy(text), {"threshold": [0.3, 2], "window": [1, 4], "tolerated": [0, 3]})
    stream, settings = event_stream(events), BacktestSettings(saves=saves)
    background = RunBackground(status=status, plan=PLAN)
    found = sweep_stream(batches_of(variants), stream, background, OBJECTIVE, settings).outcomes.of_each()
    results = judge_stream((variant.policy() for variant in variants), background, stream, OBJECTIVE, settings)
    expected = outcomes_of_results(results)

    for name in [field.name for field in fields(Outcomes)]:
        assert repr(getattr(found, name).tolist()) == repr(getattr(expected, name).tolist()), name


@given(st.one_of(policies(), *[policies(is_plain=True)] * 3), streams(), st.sampled_from(Saves), st.integers(0, 2))
@examples(30)
def test_a_replay_by_columns_is_that_of_the_event_engine(
    text: str, events: list[Event], saves: Saves, delay_steps: int
) -> None:
    """Outcomes, readings, messages, labels and endings are equal, whatever the rules, gates and values."""
    policy = parse_policy(text)

    found = replay_stream(policy, event_stream(events), PLAN, by_columns, delay_steps=delay_steps, saves=saves)

    assert repr(found) == repr(replay_events(policy, events, PLAN, delay_steps=delay_steps, saves=saves))


@pytest.mark.parametrize("rule", ["newest.epoch > 0", "newest.eval_loss"])
def test_a_rule_fails_on_a_value_of_a_metric_that_is_none(rule: str) -> None:
    """An evaluation without an epoch has the epoch None. A rule that gives a number fails, too."""
    events = [Event("evaluate", 1, 0, metrics={"eval_loss": 1.0}), Event("step_end", 2, 1, metrics={"loss": 1.0})]
    text = f"""
controller_metrics:
  - {{name: newest, class: EvalMetrics}}
controllers:
  - {{name: a, triggers: [on_step_end], rule: {rule}, operations: []}}
"""
    found = replay_stream(parse_policy(text), event_stream(events), PLAN, by_columns)

    assert found.error_counts == {"a": 1}
    assert repr(found) == repr(replay_events(parse_policy(text), events, PLAN))


@pytest.mark.parametrize("operations", OPERATIONS)
@given(st.lists(streams(), min_size=2, max_size=2))
@settings(max_examples=1)
def test_what_each_rule_orders_is_labelled_as_by_the_event_engine(operations: str, runs: list[list[Event]]) -> None:
    """Whatever brought the values that it reads, at each trigger, beside a controller that saves."""
    read = [
        "loss > 1",
        "mean(eval_loss, 2) > -9",
        "newest.eval_loss > -9",
        "logged.loss > 1",
        'held["metrics"]["eval_loss"][-1] > -9',
        "absent(eval_loss, steps=2)",
        "elapsed_s > 2",
        'series("loss", kind="log") > 1',
        'steps_since("a") > 1',
        'times_fired("a") > 0 and loss > 0',
    ]
    for rule, triggers, is_once in itertools.product(read, TRIGGERS, ("true", "false")):
        text = f"""
params: {{factor: 2}}
{METRICS.replace("WINDOW", "2")}
controllers:
  - {{name: a, triggers: [on_step_end], rule: step % 3 == 2, operations: [hfcontrols.should_save]}}
  - {{name: b, triggers: {triggers}, rule: '{rule}', once: {is_once}, operations: {operations}}}
"""
        policy = parse_policy(text)
        assert is_columnar(policy)
        for events, saves in zip(runs, Saves, strict=True):
            found = replay_stream(policy, event_stream(events), PLAN, by_columns, saves=saves)
            assert repr(found) == repr(replay_events(policy, events, PLAN, saves=saves)), text


@pytest.mark.parametrize(
    ("reading", "values"),
    [
        ("argmin(loss, 2)", [1, math.nan, math.nan, 0]),
        ("streak(loss > 1)", [1, 0, 1, 0]),
        ("age(loss)", [0, 0, 0, 0]),
        ("count(loss, 3)", [2, 3, 3, 3]),
    ],
)
def test_whole_numbers_are_recorded_as_such(reading: str, values: list[float]) -> None:
    """The position of the smallest value is NaN where the window holds NaN."""
    losses = enumerate([1.0, 2.0, math.nan, 3.0, 0.5], 1)
    events = [Event("step_end", step, step, metrics={"loss": loss}) for step, loss in losses]
    text = f"controllers: [{{name: a, triggers: [on_step_end], rule: '{reading} != 9 and step > 1', operations: []}}]"

    found = replay_stream(parse_policy(text), event_stream(events), PLAN, by_columns).decisions

    recorded = [judged.outcome.values[reading] for judged in found if isinstance(judged.outcome, Decision)]
    assert repr(recorded) == repr(values)
    assert repr(found) == repr(replay_events(parse_policy(text), events, PLAN).decisions)


@pytest.mark.parametrize("rule", ["newest.eval_loss > 0", "absent(eval_loss, steps=2)"])
def test_a_rule_that_waits_for_evaluations_is_censored_where_it_asks_in_vain(rule: str) -> None:
    """It reads them by a metric, or has seen none when it asks."""
    events = [Event("evaluate", 0, 0, metrics={"eval_loss": 1.0})] if "newest" in rule else []
    events += [Event("step_end", step, step, metrics={"loss": 1.0}) for step in range(1, 4)]
    events.append(Event("evaluate", 3, 4, metrics={"eval_loss": 1.0}))
    text = f"""
controller_metrics:
  - {{name: newest, class: EvalMetrics}}
controllers:
  - {{name: a, triggers: [on_step_end], rule: '{rule}', once: true, operations: [hfcontrols.should_evaluate]}}
"""
    found = replay_stream(parse_policy(text), event_stream(events), PLAN, by_columns)

    assert is_columnar(parse_policy(text))
    assert found.censored_from is not None
    assert repr(found) == repr(replay_events(parse_policy(text), events, PLAN))


def test_columns_decide_most_shipped_policies() -> None:
    """The others read lists of samples, values of all ranks, states or milestones, or follow events."""
    names = {name for name, path in shipped_policies().items() if is_columnar(load_policy(path))}

    assert names >= {"trac_fig3", "trac_fig4", "loss_spike", "overfitting", "nan_guard"}


def test_a_message_shows_a_metric_that_no_rule_reads() -> None:
    """Columns load what messages read, too."""
    text = """
controllers:
  - {name: a, triggers: [on_step_end], rule: loss > 1, message: "lr {lr}, mean {mean(norm, 2)}", operations: []}
"""
    events = [Event("step_end", 1, metrics={"loss": 2.0, "lr": 0.1, "norm": 3.0})]

    (decision,) = replay_stream(parse_policy(text), event_stream(events), PLAN, by_columns).decisions

    assert isinstance(decision.outcome, Decision)
    assert decision.outcome.message == "lr 0.1, mean 3.0"


@pytest.mark.parametrize("rule", ["loss if loss > 1 else lag(loss, 2)", "lag(loss, 2) if loss > 1 else loss"])
def test_a_conditional_is_undefined_where_its_branch_is(rule: str) -> None:
    """The other branch always has a value."""
    events = [Event("step_end", step, step, metrics={"loss": loss}) for step, loss in enumerate([0.5, 2.0, 0.5, 2.0])]
    text = f"controllers: [{{name: a, triggers: [on_step_end], rule: 'not ({rule}) > 9', operations: []}}]"

    found = replay_stream(parse_policy(text), event_stream(events), PLAN, by_columns)

    assert is_columnar(parse_policy(text))
    assert [judged.outcome.step for judged in found.decisions] == ([1, 2, 3] if rule.startswith("loss") else [0, 2, 3])
    assert repr(found) == repr(replay_events(parse_policy(text), events, PLAN))


@pytest.mark.parametrize("appears_at", [1, 100, 101, 130, 999])
@pytest.mark.parametrize("triggers", ["[on_step_end]", "[on_evaluate]", "[on_step_end, on_evaluate]"])
def test_columns_warn_of_a_series_that_does_not_appear(appears_at: int, triggers: str) -> None:
    """The warning comes with the hundredth evaluation, between the decisions of other controllers."""
    events = [Event("train_begin")]
    for step in range(1, 141):
        late = {"late": 0.5} if step >= appears_at else {}
        events.append(Event("step_end", step, len(events), metrics={"loss": step % 7, **late}))
        events.append(Event("evaluate", step, len(events), metrics={"eval_loss": 1.0}))
    text = f"""
controllers:
  - {{name: waits, triggers: {triggers}, rule: late < 1, operations: [hfcontrols.should_save]}}
  - {{name: fires, triggers: [on_step_end], rule: loss > 5, operations: []}}
"""
    found = replay_stream(parse_policy(text), event_stream(events), PLAN, by_columns)

    assert repr(found) == repr(replay_events(parse_policy(text), events, PLAN))


@given(policies(), streams(late_plans=True))
@examples(15)
def test_a_controller_that_fires_could_fire(text: str, events: list[Event]) -> None:
    """No values of a run make a controller fire that is said to be unable to."""
    (judged,) = judge_stream([parse_policy(text)], RunBackground(plan=PLAN), event_stream(events), OBJECTIVE)
    fired = {decision.outcome.controller for decision in replay_events(parse_policy(text), events, PLAN).decisions}

    names = [controller.name for controller in parse_policy(text).controllers]
    assert fired.isdisjoint(name for name, reason in zip(names, judged.unable, strict=True) if reason)


@pytest.mark.parametrize(("stop_at", "saved_s"), [(1, 12.0), (2, 10.0), (4, 6.0), (6, 0.0), (99, 0.0)])
def test_seconds_saved_add_up_over_attempts(stop_at: int, saved_s: float) -> None:
    """Each attempt has a clock of its own: 6 s pass in the first, 6 s in the second."""
    events = [
        Event("step_end", step, step - 1, int(step > 3), elapsed_ns=clock_s * 1_000_000_000, metrics={"loss": step})
        for step, clock_s in enumerate((0, 2, 6, 0, 5, 6), start=1)
    ]
    text = f"""
controllers:
  - name: stop
    triggers: [on_step_end]
    rule: loss >= {stop_at}
    operations: [hfcontrols.should_training_stop]
"""
    variants = variants_of(parse_policy(text), {})
    found = sweep_stream(batches_of(variants), event_stream(events), RunBackground(plan=PLAN), None).outcomes.of_each()
    (judged,) = judge_stream([parse_policy(text)], RunBackground(plan=PLAN), event_stream(events), None)

    assert found.seconds_saved.tolist() == [judged.seconds_saved or 0.0] == [saved_s]


@pytest.mark.parametrize("operation", ["should_training_stop", "should_save"])
def test_decisions_before_the_first_event_count_as_in_a_backtest(operation: str) -> None:
    """A rule at ``init_end`` decides at step 0: a stop takes effect after the first step."""
    text = f"controllers: [{{name: a, triggers: [on_init_end], rule: step < 1, operations: [hfcontrols.{operation}]}}]"
    events = [Event("step_end", step, step - 1, elapsed_ns=step, metrics={"loss": 1.0}) for step in (1, 2, 3)]
    events.append(Event("save", 3, 3, elapsed_ns=3))
    variants = variants_of(parse_policy(text), {})

    found = sweep_stream(batches_of(variants), event_stream(events), RunBackground(plan=PLAN), None).outcomes.of_each()
    (judged,) = judge_stream([parse_policy(text)], RunBackground(plan=PLAN), event_stream(events), None)

    assert (judged.stop is not None) == (operation == "should_training_stop")
    assert repr(found) == repr(outcomes_of_results([judged]))


@pytest.mark.parametrize(
    "keys",
    [
        "rule: 'phase == \"high\"'",
        "rule: loss > 2, clear: loss < threshold",
        "rule: 'streak(\"other\") > 0'",
    ],
)
def test_a_param_that_a_rule_reads_through_something_else_decides_anew(keys: str) -> None:
    """The event engine decides such rules, once for each value of the param."""
    losses = [3.0, 3.0, 1.0, 3.0, 0.0, 3.0]
    events = [Event("step_end", step, step - 1, metrics={"loss": loss}) for step, loss in enumerate(losses, start=1)]
    text = (
        "params: {threshold: 1.5}\nstates: {phase: [{high: loss > threshold}, {low: 'True'}]}\ncontrollers:\n"
        f"  - {{name: c, triggers: [on_step_end], operations: [], {keys}}}\n"
        "  - {name: other, triggers: [on_step_end], operations: [], rule: loss > 2, clear: loss < threshold}\n"
    )
    variants = variants_of(parse_policy(text), {"threshold": [0.5, 1.5, 9.0]})
    swept = RunFirings(stream_of_events(events, PLAN), lambda: event_stream(events))

    found = [column_firings(swept, variant) for variant in variants]

    assert found == [engine_firings(variant, events) for variant in variants]
    assert found[0] != found[2]
