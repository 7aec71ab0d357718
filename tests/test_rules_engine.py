"""The engine decides in a fixed order, with patience, isolates failures, and never uses later events."""

from __future__ import annotations

import math
import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape import load_policy
from steptape.rules.engine.decisions import Decision, Outcome, RuleError, canonical_line, decision_digest
from steptape.rules.engine.engine import Engine
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.errors import TelemetryError
from steptape.store.events import LOOP_KINDS, Event
from steptape.store.plan import Plan


def fold(engine: Engine, events: Sequence[Event]) -> list[Outcome]:
    """Return all outcomes of a stream, those of ``start`` first."""
    return [*engine.start(), *(outcome for event in events for outcome in engine.observe(event))]


def steps(values: Sequence[float], name: str = "loss") -> list[Event]:
    """Return one ``step_end`` event per value, with seq from 0."""
    return [Event("step_end", step=seq + 1, seq=seq, metrics={name: value}) for seq, value in enumerate(values)]


def controller(rule: str, name: str = "c", trigger: str = "on_step_end", more: str = "") -> str:
    """Return the lines of one controller."""
    return (
        f"  - name: {name}\n    triggers: [{trigger}]\n    rule: |-\n      {rule}\n"
        f"    operations: [hfcontrols.should_log]\n{more}"
    )


def engine(*controllers: str, head: str = "", plan: Plan = Plan()) -> Engine:  # noqa: B008 - a Plan is immutable
    """Return an engine over controllers given as lines."""
    return Engine(parse_policy(f"{head}controllers:\n{''.join(controllers)}", source="policy.yaml"), plan)


def seqs(outcomes: Sequence[Outcome]) -> list[int]:
    """Return the ``seq`` of each outcome."""
    return [outcome.seq for outcome in outcomes]


@pytest.mark.parametrize(
    ("patience", "expected"),
    [
        ("", [0, 1, 3, 4, 5, 6, 7, 9, 10, 11]),
        ("{}", [1, 4, 6, 10]),
        ("{patience_threshold: 1}", [1, 4, 6, 10]),
        ("{patience_threshold: 2}", [5, 11]),
        ("{patience_threshold: 2, mode: no_reset_on_failure}", [3, 6, 10]),
        ("{patience_threshold: 0}", [0, 1, 3, 4, 5, 6, 7, 9, 10, 11]),
        ("{patience_threshold: -3}", [0, 1, 3, 4, 5, 6, 7, 9, 10, 11]),
        ("{patience_threshold: 2, mode: reset_on_failure}", [5, 11]),
    ],
)
def test_patience_counts_as_in_trac(patience: str, expected: list[int]) -> None:
    """The answers T T F T T T T T F T T T are those of the contract."""
    answers = [float(letter == "T") for letter in "TTFTTTTTFTTT"]
    more = f"    patience: {patience}\n" if patience else ""

    assert seqs(fold(engine(controller("loss == 1", more=more)), steps(answers))) == expected


@pytest.mark.parametrize("mode", ["reset_on_failure", "no_reset_on_failure"])
def test_undefined_answers_leave_patience_as_it_is(mode: str) -> None:
    """T, undefined, T fires at the second T, with a threshold of one."""
    rule = "({0.0: False, 1.0: True})[loss]"
    more = f"    patience: {{mode: {mode}}}\n"

    assert seqs(fold(engine(controller(rule, more=more)), steps([1.0, 7.0, 7.0, 1.0, 1.0]))) == [3]


def test_each_trigger_of_a_controller_has_its_own_patience() -> None:
    """A trigger listed twice is evaluated twice, each time with its own count."""
    text = controller("True", trigger="on_step_end, on_log, on_log", more="    patience: {}\n")
    events = [Event("step_end", seq=0), Event("log", seq=1), Event("log", seq=2), Event("step_end", seq=3)]

    outcomes = fold(engine(text), events)

    assert [(outcome.trigger, outcome.seq) for outcome in outcomes] == [
        ("on_log", 2),
        ("on_log", 2),
        ("on_step_end", 3),
    ]


def test_a_threshold_can_be_a_param() -> None:
    """Sweeps can then vary it."""
    head = "params: {hold: 2}\n"
    more = "    patience: {patience_threshold: hold}\n"

    assert seqs(fold(engine(controller("True", more=more), head=head), steps([1.0] * 6))) == [2, 5]


def test_controllers_decide_in_file_order() -> None:
    """The order applies to decisions on one event."""
    outcomes = fold(engine(controller("True", "b"), controller("True", "a"), controller("True", "b")), steps([1.0]))

    assert [outcome.controller for outcome in outcomes] == ["b", "a", "b"]


def test_series_come_before_metrics_and_metrics_before_controllers() -> None:
    """A rule sees all values of its own event."""
    head = "controller_metrics: [{name: m, class: Loss}]\n"
    rule = "m.loss == loss == 2.0"

    outcomes = fold(engine(controller(rule, trigger="on_log"), head=head), [Event("log", metrics={"loss": 2.0})])

    assert len(outcomes) == 1


def test_of_two_metrics_with_one_name_the_later_to_compute_wins() -> None:
    """At one event the later in the file wins, across events the newest."""
    head = "controller_metrics: [{name: m, class: EvalMetrics}, {name: m, class: Loss}]\n"
    rule = "m.get('eval_loss') == 5.0"
    events = [
        Event("evaluate", seq=0, metrics={"eval_loss": 5.0}),
        Event("step_end", seq=1),
        Event("log", seq=2, metrics={"loss": 1.0}),
        Event("step_end", seq=3),
    ]

    assert seqs(fold(engine(controller(rule), head=head), events)) == [1]


def test_what_fires_at_init_end_precedes_the_stream() -> None:
    """It has seq -1 and step 0, and a second start does nothing."""
    run = engine(
        controller("True", trigger="on_init_end"), head="controller_metrics: [{name: s, class: TrainingState}]\n"
    )

    outcomes = run.start()

    assert [(outcome.seq, outcome.step, outcome.trigger) for outcome in outcomes] == [(-1, 0, "on_init_end")]
    assert run.start() == ()


@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_every_kind_of_a_loop_is_a_trigger(kind: str) -> None:
    """It fires only at its own events."""
    run = engine(controller("True", trigger=f"on_{kind}"))

    assert [outcome.trigger for outcome in fold(run, [Event(other) for other in LOOP_KINDS])] == [f"on_{kind}"]


def test_a_kind_of_the_loops_own_is_a_trigger_and_carries_series() -> None:
    """A bare name reads the kind that carried it first, a custom one like others."""
    own = 'series("score", kind="custom:reward") > 1'
    run = engine(
        controller(own, "named", "on_custom:reward"),
        controller("score > 1", "bare", "on_step_end"),
        controller("True", "other", "on_custom:other"),
    )
    events = [
        Event("custom:reward", metrics={"score": 1.0}),
        Event("step_end", step=1, metrics={"score": 9.0}),
        Event("custom:reward", step=1, metrics={"score": 2.0}),
        Event("step_end", step=2),
    ]

    assert [(outcome.controller, outcome.step) for outcome in fold(run, events)] == [("named", 1), ("bare", 2)]


PLANNED = """
controller_metrics: [{name: state, class: TrainingState}]
"""


def test_a_late_plan_holds_from_its_place_in_the_stream_on() -> None:
    """Facts, the trainer's state and an unbound series of a constant have it; other values change nothing."""
    run = engine(
        controller("progress > 0.45", "far"),
        controller("max_steps == 8 and state.max_steps == 8 and state.num_train_epochs == 2", "planned"),
        controller("size > 1", "large"),
        controller("world_size == 2", "pair"),
        controller("loss > 1", "fed"),
        head=PLANNED,
        plan=Plan(total_steps=100),
    )
    events = steps([0.5, 0.5, 0.5, 0.5])
    late = {"total_steps": 8, "total_epochs": 2, "world_size": "2", "constants": {"size": 2, "loss": 7.0}, "more": 1}
    events.insert(2, Event("plan", step=2, attrs=late))

    assert [(outcome.controller, outcome.step) for outcome in fold(run, events)] == [
        ("planned", 3),
        ("large", 3),
        ("far", 4),
        ("planned", 4),
        ("large", 4),
    ]


def test_an_attempt_begins_with_the_plan_of_its_own() -> None:
    """What an earlier attempt declared late does not outlast it, but a constant that the attempt does not declare."""
    run = engine(
        controller("max_steps == 8", "late"),
        controller("max_steps == 50", "own"),
        controller("size > 1", "c"),
        controller("lr_scale > 1", "scaled"),
        plan=Plan(50, constants={"lr_scale": 1.0}),
    )
    events = [
        Event("train_begin"),
        Event("plan", attrs={"total_steps": 8, "constants": {"size": 2, "lr_scale": 2}}),
        Event("step_end", step=1),
        Event("train_begin", step=1, attempt=1),
        Event("step_end", step=2, attempt=1),
    ]

    outcomes = fold(run, events)

    assert [(outcome.controller, outcome.step) for outcome in outcomes] == [
        ("late", 1),
        ("c", 1),
        ("scaled", 1),
        ("own", 2),
        ("c", 2),
    ]


def test_notes_and_recorded_decisions_trigger_nothing() -> None:
    """An ``init_end`` inside a stream triggers nothing either."""
    run = engine(*(controller("True", trigger=f"on_{kind}") for kind in ("init_end", *LOOP_KINDS)))
    run.start()
    kinds = ("annotation", "failure", "gap", "plan", "agreement", "decision", "rule_error", "rule_warning", "init_end")

    assert [run.observe(Event(kind)) for kind in kinds] == [()] * len(kinds)


def test_a_failing_rule_is_told_once_counted_and_stays_armed() -> None:
    """The error has the place of the sub-expression; later the rule fires normally."""
    run = engine(controller("loss > 0 and\n      1 / (loss - 1) > 0"), controller("loss == 3.0", "d"))

    outcomes = fold(run, steps([1.0, 1.0, 3.0, 1.0]))

    assert [(type(outcome).__name__, outcome.controller, outcome.seq) for outcome in outcomes] == [
        ("RuleError", "c", 0),
        ("Decision", "c", 2),
        ("Decision", "d", 2),
    ]
    assert isinstance(outcomes[0], RuleError)
    assert outcomes[0].error.startswith("policy.yaml:6:7: controller 'c', rule: ZeroDivisionError: ")
    assert run.error_counts == {"c": 3}


@pytest.mark.parametrize(
    ("rule", "at", "error"),
    [
        ("loss or True", "loss or", "a rule must give True or False, this gave a float"),
        ("loss == 1.0 and [1] + 1", "[1] + 1", "TypeError: "),
        ("[1, 2, (3).x] == loss", "(3).x", "TypeError: "),
        ("sqrt(-loss) > 1", "sqrt", "ValueError: "),
        ("[y for y in [2] if y / 0] == 1", "y / 0", "ZeroDivisionError: "),
        ("True and f'{loss:.2q}' == 'ä'", "f'", "ValueError: "),
        ("'ä' == 'b' or int('x') > 1", "int", "ValueError: "),
        ("(loss > 0).get('x') == 1", "(loss > 0).get", "TypeError: a bool has no method 'get'"),
        ("loss < 2 ** 9000000", "2 **", "NumberTooHigh: "),
    ],
)
def test_a_failure_is_placed_at_the_sub_expression(rule: str, at: str, error: str) -> None:
    """The error holds line and column in the policy file, and Python's message."""
    outcomes = fold(engine(controller(rule)), steps([1.0]))

    assert isinstance(outcomes[0], RuleError)
    assert outcomes[0].error.startswith(f"policy.yaml:5:{7 + rule.index(at)}: controller 'c', rule: {error}")


def test_a_metric_that_is_not_available_is_undefined_but_can_be_asked_about() -> None:
    """TrAC's guard works: only comparisons with None, identity and truth have an answer."""
    head = "controller_metrics: [{name: m, class: Loss}]\n"
    answers = {
        "m == None": True,
        "None == m": True,
        "m != None": False,
        "m is None": False,
        "not m": False,
        "m and loss == 1.0": True,
        "m": False,
        "m.loss > 1": False,
        "m['loss'] > 1": False,
        "m > 1": False,
        "1 + m > 1": False,
        "len(m) == 0": False,
        "str(m) == ''": False,
        "f'{m}' == ''": False,
        "f'{m:.1f}' == ''": False,
        "m.get('loss') == None": False,
        "m == 5": False,
        "m != 5": False,
        "'loss' in m": False,
        "m in [1]": False,
        "list(m) == []": False,
        "[x for x in m] == []": False,
        "max([m, 1]) == 1": False,
        "not isfinite(m)": False,
        "round(m) == 0": False,
        "True or m.loss > 1": True,
        "m.loss > 1 or True": False,
    }

    fired = {}
    for rule in answers:
        run = engine(controller(rule), head=head)
        fired[rule] = len(fold(run, steps([1.0]))) == 1 and not run.error_counts

    assert fired == answers


def test_fig_4_of_the_paper_fires_where_a_hand_computation_says() -> None:
    """There is an evaluation every 5 steps: a drop of more than 15 %, then nine with little change."""
    losses = [2.0, 1.6, *(1.5 - 0.01 * index for index in range(9))]
    events: list[Event] = []
    for index, loss in enumerate(losses):
        events += [Event("step_end", step=index * 5 + step + 1, seq=len(events) + step) for step in range(5)]
        events.append(Event("evaluate", step=index * 5 + 5, seq=len(events), metrics={"eval_loss": loss}))
    events += [Event("step_end", step=len(losses) * 5 + step + 1, seq=len(events) + step) for step in range(30)]

    outcomes = fold(Engine(load_policy(shipped_policies()["trac_fig4"])), events)

    # Steps 11 to 15 see 1.6 <= 0.85 * 2.0: patience 1 fires at the 2nd and 4th. The window of ten is first full after
    # step 50, and 1.43 is within 10 % of its mean (1.551) at step 51: patience 10 fires at the 11th such step (61), the
    # 22nd (72) and the 33rd (83), patience 20 at the 21st (71).
    assert [(outcome.step, outcome.controller.partition("_")[0]) for outcome in outcomes] == [
        (12, "save"),
        (14, "save"),
        (61, "checkpoint"),
        (71, "stop"),
        (72, "checkpoint"),
        (83, "checkpoint"),
    ]


def test_fig_3_fires_when_loss_and_gradient_norm_both_rise_over_a_full_window() -> None:
    """The window is five logs; either of the two alone is not enough."""
    policy = load_policy(shipped_policies()["trac_fig3"])

    def fired(losses: Sequence[float], norms: Sequence[float]) -> list[int]:
        logs = zip(losses, norms, strict=True)
        events = [
            Event("log", seq=seq, step=seq, epoch=seq / 10, metrics={"loss": loss, "grad_norm": norm})
            for seq, (loss, norm) in enumerate(logs)
        ]
        return seqs(fold(Engine(policy), events))

    assert fired([1, 2, 1, 2, 3], [1, 1, 1, 1, 2]) == [4]
    assert fired([1, 2, 1, 2, 3], [1, 1, 1, 1, 1]) == []
    assert fired([3, 2, 1, 2, 3], [1, 1, 1, 1, 2]) == []
    assert fired([1, 2, 3, 4], [1, 2, 3, 4]) == []


def test_the_loss_spike_policy_tells_spikes_from_divergence_and_from_nan() -> None:
    """A spike is noted once, a lasting one is saved and stopped, a NaN stops at once."""
    policy = load_policy(shipped_policies()["loss_spike"])
    values = [1.0] * 60 + [9.0] + [1.0] * 60 + [9.0] * 5 + [math.nan]

    outcomes = fold(Engine(policy), steps(values))

    assert [(outcome.seq, outcome.controller) for outcome in outcomes] == [
        (60, "loss_spike"),
        (121, "loss_spike"),
        (125, "loss_stays_high"),
        (126, "loss_not_finite"),
    ]


POLICY = parse_policy(
    """
params: {spike: 1.5}
controller_metrics:
  - {name: w, class: HistoryBasedMetric, arguments: {window_size: 3}}
  - {name: e, class: EvalMetrics}
  - {name: s, class: TrainingState}
controllers:
  - name: spike
    triggers: [on_step_end]
    rule: loss > spike * mean(loss, 4) or 1 / (loss - 2.0) > 3
    patience: {patience_threshold: 1}
    operations: [hfcontrols.should_save]
  - name: window
    triggers: [on_log, on_evaluate]
    rule: w["training_loss"]["loss"][-1] > w["training_loss"]["loss"][0] or w["metrics"]["eval_loss"][-2] < e.eval_loss
    operations: [hfcontrols.should_log]
  - name: state
    triggers: [on_save]
    rule: s.global_step % 3 == 0 and std(eval_loss, 5) < 1
    operations: [hfcontrols.should_training_stop]
  - name: absent
    triggers: [on_step_end]
    rule: nowhere > 1
    operations: []
"""
)

values = st.one_of(st.sampled_from([0.0, 1.0, 2.0, math.nan, math.inf]), st.floats(-5, 5))
payloads: st.SearchStrategy[tuple[str, dict[str, float]]] = st.one_of(
    st.tuples(st.just("step_end"), st.fixed_dictionaries({"loss": values})),
    st.tuples(st.just("log"), st.fixed_dictionaries({}, optional={"loss": values, "eval_loss": values})),
    st.tuples(st.just("evaluate"), st.fixed_dictionaries({}, optional={"eval_loss": values, "other": values})),
    st.tuples(st.sampled_from(["save", "epoch_end", "annotation"]), st.just({})),
)


def stream(drawn: Sequence[tuple[str, dict[str, float]]]) -> list[Event]:
    """Return numbered events of drawn kinds and metrics."""
    return [
        Event(kind, step=seq // 2, seq=seq, epoch=seq / 8, metrics=metrics) for seq, (kind, metrics) in enumerate(drawn)
    ]


@given(st.lists(payloads, min_size=1, max_size=150), st.lists(payloads, max_size=20), st.data())
def test_nothing_after_an_event_changes_a_decision_up_to_it(
    drawn: list[tuple[str, dict[str, float]]], poison: list[tuple[str, dict[str, float]]], data: st.DataObject
) -> None:
    """There is no peeking: truncating the stream anywhere, or replacing the rest, leaves earlier outcomes unchanged."""
    cut = data.draw(st.integers(0, len(drawn)))
    whole = [canonical_line(outcome) for outcome in fold(Engine(POLICY), stream(drawn)) if outcome.seq < cut]
    prefix = [canonical_line(outcome) for outcome in fold(Engine(POLICY), stream(drawn[:cut]))]
    poisoned = fold(Engine(POLICY), stream([*drawn[:cut], *poison]))

    assert prefix == whole
    assert [canonical_line(outcome) for outcome in poisoned if outcome.seq < cut] == whole


@given(st.lists(payloads, max_size=60))
def test_one_policy_serves_many_engines_that_do_not_disturb_each_other(
    drawn: list[tuple[str, dict[str, float]]],
) -> None:
    """Interleaved engines return the same outcomes as separate ones."""
    events = stream(drawn)
    alone = decision_digest(fold(Engine(POLICY), events))
    one, other = Engine(POLICY), Engine(POLICY)
    outcomes: list[Outcome] = []
    for event in events:
        outcomes += one.observe(event)
        other.observe(event._replace(metrics={"loss": 1.0, "eval_loss": 2.0}))

    assert decision_digest(outcomes) == alone


@given(st.lists(payloads, max_size=60))
def test_an_engine_changes_nothing_that_it_is_given(drawn: list[tuple[str, dict[str, float]]]) -> None:
    """Events are facts."""
    events = stream(drawn)
    before = repr(events)

    fold(Engine(POLICY), events)

    assert repr(events) == before


def test_kinds_read_says_on_which_events_a_decision_depends() -> None:
    """They include kinds read through metrics, and through series as bound."""
    head = (
        "controller_metrics: [{name: e, class: EvalMetrics}, {name: w, class: HistoryBasedMetric}, "
        "{name: l, class: Loss}, {name: p, class: PerProcessState}]\n"
    )
    rules = {
        "loss > 0": {"step_end"},
        "len(eval_loss) == 1": {"evaluate"},
        "series('loss', kind='log') > 0": {"log"},
        "e.eval_loss > 0": {"evaluate"},
        "l.loss > 0": {"log"},
        "w.window_size == 1": {"log", "evaluate"},
        "p.rank == 0": set(),
        "True": set(),
        "True or never > 1": set(),
    }
    run = engine(*(controller(rule, f"c{number}") for number, rule in enumerate(rules)), head=head)
    events = [
        Event("evaluate", metrics={"eval_loss": 1.0}),
        Event("log", metrics={"loss": 1.0, "x": 1.0}),
        Event("step_end", metrics={"loss": 1.0}),
    ]
    outcomes = fold(run, [events[2], *events])

    read: dict[str, Any] = {}
    for outcome in outcomes:
        if isinstance(outcome, Decision):
            read[list(rules)[int(outcome.controller[1:])]] = set(run.kinds_read(outcome.controller))

    assert read == rules


def test_kinds_read_refuses_a_controller_of_another_policy() -> None:
    """The engine cannot know."""
    with pytest.raises(TelemetryError, match="no such controller"):
        engine(controller("True")).kinds_read("other")


def test_memory_does_not_grow_with_the_run() -> None:
    """Series keep their longest window, and nothing else is kept."""
    run = engine(controller("loss > 3 * mean(loss, 50) and len(loss) > 50"))
    fold(run, steps([1.0] * 2_000))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for seq in range(20_000):
        run.observe(Event("step_end", seq=seq, metrics={"loss": 1.0 + seq}))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert grown < 50_000


def test_events_that_concern_no_rule_are_passed_over() -> None:
    """They return the same empty tuple, without work."""
    run = engine(controller("loss > 0"))
    run.observe(Event("step_end", metrics={"loss": 1.0}))

    assert run.observe(Event("substep_end", metrics={"loss": 1.0})) == ()


def test_an_engine_imports_nothing_that_reads_clocks_or_files() -> None:
    """A decision needs neither torch nor duckdb nor numpy."""
    modules = {name for name in sys.modules if name.startswith("steptape.rules")}

    for name in modules:
        names = set(vars(sys.modules[name]))
        assert not names & {"time", "random", "os", "socket", "numpy", "torch", "duckdb"}, name
