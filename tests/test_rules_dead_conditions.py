"""``check`` proves comparisons that the range of their values decides; what it proves holds for all values."""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Mapping, Sequence

import pytest
from drawing import examples
from hypothesis import example, given
from hypothesis import strategies as st

from steptape.rules.checks.dead_conditions import Dead, RuleVerdicts
from steptape.rules.checks.finding_codes import FindingCode
from steptape.rules.checks.findings import findings_of
from steptape.rules.engine.decisions import Decision, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import Policy, load_policy, parse_policy, shipped_policies
from steptape.rules.readings.reading import Param
from steptape.store.events import Event


def policy(rule: str, head: str = "", more: str = "") -> Policy:
    """Return a policy with a controller ``c`` of this rule."""
    indented = rule.replace("\n", " ")
    return parse_policy(
        f"{head}\ncontrollers:\n  - name: c\n    triggers: [on_step_end]\n    rule: |-\n      {indented}\n"
        f"    operations: []\n{more}",
        source="p.yaml",
    )


def said(rule: str, head: str = "", more: str = "") -> list[str]:
    """Return what ``check`` says of ranges, without who it is said of."""
    found = [each.message for each in findings_of(policy(rule, head, more)) if each.code is FindingCode.DEAD]
    return [message.partition(": ")[2] for message in found]


def fires(rule: str, streams: Sequence[Sequence[dict[str, float]]], head: str = "") -> bool:
    """Whether a rule ever fires on these values."""
    asked = policy(rule, head)
    for stream in streams:
        engine = Engine(asked)
        for step, metrics in enumerate(stream, start=1):
            if any(isinstance(made, Decision) for made in engine.observe(Event("step_end", step, metrics=metrics))):
                return True
    return False


NUMBERS = st.sampled_from(["0", "1", "-1", "0.5", "2", "3", "5", "0.25", "10", "1.5", "0.3"])
LENGTHS = st.sampled_from([1, 2, 3, 5, 8])
SERIES = st.sampled_from(
    [
        "x",
        "norm",
        "abs(x)",
        "x > 1",
        "sign(x)",
        "tanh(norm)",
        "clamp(x, -1, 3)",
        "finite(norm)",
        "0.1 if x > 0 else 0.3",
    ]
)
REDUCTIONS = st.sampled_from(
    [
        *("mean", "max", "min", "median", "std", "var", "mad", "detrended_std", "slope", "count", "last", "first"),
        *("zscore", "argmax", "sum", "lag"),
    ]
)
KEYWORDS = st.sampled_from(["", "", "", ", skip=1", ", half='recent'", ", half='older'", ", min=3"])


@st.composite
def readings(draw: st.DrawFn) -> str:
    """Draw a reading of a series."""
    series, length = draw(SERIES), draw(LENGTHS)
    form = draw(st.integers(0, 10))
    if form == 0:
        return draw(st.sampled_from(["x", "norm", "step", "len(x)", "age(x)", "streak(x > 1)", "delta(x)"]))
    if form == 1:
        return f"ema({series}, {length})"
    if form == 2:
        return f"{draw(st.sampled_from(['peak', 'trough', 'initial', 'streak']))}({series})"
    if form == 4:
        of, more = draw(st.sampled_from(["norm", "finite(norm)", "x"])), draw(KEYWORDS)
        upper = draw(st.sampled_from([f"slope({of}, {length}{more})", _call("max", of, f"{length}{more}")]))
        limit = draw(st.sampled_from(["0.4", "1.5", "2.5"]))
        return f"streak({upper} / max([mean({of}, {length}{more}), 0.1]) > {limit})"
    if form == 3:
        return f"quantile({series}, {length}, q=0.9)"
    name = draw(REDUCTIONS)
    if name == "lag":
        return f"lag({series}, {length})"
    return _call(name, series, f"{length}{draw(KEYWORDS)}")


def _call(function: str, series: str, window: str) -> str:
    """Return a call, whose window needs a word where a plain number would be compared or added."""
    last = "last=" if function in ("min", "max", "sum") and not series.isidentifier() else ""
    return f"{function}({series}, {last}{window})"


@st.composite
def values(draw: st.DrawFn) -> str:
    """Draw a number: readings, mostly, and arithmetic on them."""
    form = draw(st.integers(0, 8))
    one = draw(readings())
    if form < 3:
        return one
    if form < 5:
        return f"{draw(st.sampled_from(['tanh', 'cos', 'abs', 'sign', 'sqrt', 'finite']))}({one})"
    if form == 5:
        return f"clamp({one}, 0, {draw(st.sampled_from(['1', '2.5']))})"
    if form == 6:
        return f"{draw(st.sampled_from(['max', 'min']))}([{one}, {draw(st.one_of(NUMBERS, readings()))}])"
    sign = draw(st.sampled_from(["+", "-", "*", "/"]))
    return f"({one} {sign} {draw(st.one_of(NUMBERS, readings()))})"


@st.composite
def related(draw: st.DrawFn) -> str:
    """Draw a comparison of two readings of one series."""
    series, length, times = draw(SERIES), draw(LENGTHS), draw(NUMBERS)
    window = f"{length}{draw(KEYWORDS)}"
    newest = draw(st.sampled_from(["max", "min", "last", "median", "std", "slope", "detrended_std"]))
    above = draw(st.sampled_from([_call(newest, series, window), "norm", "x"]))
    name = draw(st.sampled_from(["mean", "max", "sum", "min"]))
    below = draw(
        st.sampled_from([_call(name, series, window), "peak(norm)", "trough(x)", f"ema(norm, {length})", "norm", "x"])
    )
    if draw(st.booleans()):
        return f"{above} / {below} > {times}"
    if draw(st.booleans()):
        return f"x > mean(x, {length}) + {times} * std(x, {length})"
    return draw(st.sampled_from([f"{above} > {times} * {below}", f"{below} < {above}", f"{above} > {below}"]))


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """Draw a comparison."""
    if draw(st.booleans()):
        return draw(related())
    sign = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
    return f"{draw(values())} {sign} {draw(st.one_of(NUMBERS, NUMBERS, values()))}"


def drawn(seed: int, *, is_finite: bool) -> list[dict[str, float]]:
    """Return the values of a run: of ``x`` any, of ``norm`` none below 0, with equal ones, spikes and gaps."""
    made = random.Random(seed)
    special = [0.0, 0.0, 1.0, 0.1, 0.3, 1e6] + ([] if is_finite else [math.inf, math.nan])
    run = []
    for _ in range(made.randint(1, 30)):
        norm = made.choice([*special, made.random(), made.expovariate(0.1)])
        x = made.choice([made.gauss(0, 2), -norm, norm, *special])
        run.append({name: value for name, value in (("x", x), ("norm", norm)) if made.random() < 0.9})
    return run


def extremes() -> list[list[dict[str, float]]]:
    """Return runs in which the values of a window differ the most: spikes, steps, ramps, and all the same."""
    patterns = [
        *([0.0] * 9 + [1.0], [1.0] + [0.0] * 9, [0.1] * 10, [0.3] * 9 + [0.1], [0.0, 5.0] * 6, [5.0, 0.0] * 6),
        *(
            [float(each) for each in range(12)],
            [float(-each) for each in range(12)],
            [-1.0] * 9 + [3.0],
            [3.0] + [-1.0] * 9,
        ),
        *([0.0] * low + [1.0] * 9 for low in range(1, 9)),
        *([1.0] * high + [0.0] * 9 for high in range(1, 9)),
    ]
    return [[{"x": each, "norm": abs(each)} for each in pattern] for pattern in patterns]


EXTREMES = extremes()


@st.composite
def ratios(draw: st.DrawFn) -> str:
    """Draw a quotient of two readings of one series, of the same window mostly."""
    series, length = draw(SERIES), draw(LENGTHS)
    window = f"{length}{draw(KEYWORDS)}"
    above = draw(st.sampled_from(["max", "min", "last", "median", "std", "slope", "detrended_std", "mean"]))
    below = draw(st.sampled_from(["mean", "mean", "max", "sum"]))
    forms = [
        f"{_call(above, series, window)} / {_call(below, series, window)}",
        f"norm / {_call(below, 'norm', window)}",
        f"norm / ema(norm, {length})",
        f"(x - mean(x, {length})) / std(x, {length})",
    ]
    return draw(st.sampled_from(forms))


@example("slope(x > 1, 5)", 0)
@example("slope(norm, 5) / mean(norm, 5)", 0)
@example("slope(norm, 5, min=5) / mean(norm, 5)", 0)
@example("std(x > 1, 8)", 0)
@example("mad(clamp(x, 0, 1), 5)", 0)
@example("std(norm, 5) / mean(norm, 5)", 0)
@example("median(norm, 5) / mean(norm, 5)", 0)
@example("zscore(x, 8)", 0)
@example("sum(x > 1, last=8)", 0)
@example("norm / ema(norm, 5)", 0)
@examples(300)
@given(value=st.one_of(values(), ratios(), ratios()), seed=st.integers(0, 10**9))
def test_no_value_is_outside_the_range_that_is_said_of_it(value: str, seed: int) -> None:
    """Neither in random runs nor where windows hold the values that make it greatest."""
    asked = policy("v == v or True", f'define: {{v: "{value}"}}')
    bound = asked.controllers[0].rule.bound
    tree = next(node for node, name in bound.expression.defined.items() if name == "v")
    assert isinstance(tree, ast.expr)
    found = RuleVerdicts(bound, Dead()).ranges.of(tree)
    if found is None:
        return
    runs = [*EXTREMES, *(drawn(seed + number, is_finite=bool(found.assumed)) for number in range(5))]
    seen = [got for run in runs for got in shown(asked, run)]

    assert [got for got in seen if math.isnan(got) and not found.may_be_nan] == []
    assert [got for got in seen if got < found.sure_low or got > found.sure_high] == [], found


def shown(asked: Policy, run: Sequence[dict[str, float]]) -> list[float]:
    """Return the values of ``v`` in a run."""
    engine, seen = Engine(asked), list[float]()
    for step, metrics in enumerate(run, start=1):
        for made in engine.observe(Event("step_end", step, metrics=metrics)):
            assert isinstance(made, Decision | RuleError)
            got = made.values.get("v") if isinstance(made, Decision) else None
            seen += [float(got)] if isinstance(got, int | float) else []
    return seen


@examples(500)
@given(comparison=comparisons(), seed=st.integers(0, 10**9))
def test_what_is_said_of_a_comparison_holds_for_all_values(comparison: str, seed: int) -> None:
    """NaN and infinities included, but where the line says that it assumes otherwise."""
    # Not what is said of a comparison within it.
    lines = [line for line in said(comparison) if line.startswith(f"'{comparison}' ")]
    for line in lines:
        streams = [*EXTREMES, *(drawn(seed + number, is_finite="is finite" in line) for number in range(10))]
        if "is never true:" in line or "is never true, so" in line:
            assert not fires(comparison, streams), line
        elif "is always true" in line:
            assert not fires(f"not ({comparison})", streams), line
        elif "before its window is full" in line:
            full = f"len(x) > 12 and len(norm) > 12 and ({comparison})"
            assert not fires(full, streams), line
    unsure = [line for line in lines if "but for rounding" in line]
    assert unsure == [] or len(lines) == 1


NEVER = "is never true, so the rule is never true"


@pytest.mark.parametrize(
    "rule",
    [
        "tanh(x) >= 1",
        "not tanh(x) <= 1",
        "count(loss, 20) < 20",
        "loss > max(loss, 50, skip=1)",
        "loss >= max(loss, 50)",
        "zscore(loss, 50) > 3",
        "lr > mean(loss, 8) + 3 * std(loss, 8)",
        "loss > mean(loss, 8, skip=1) + 3 * std(loss, 8, skip=1)",
        "slope(x, 20, min=20) / mean(x, 20) > 0.5",
        "slope(grad_norm, 20) / mean(grad_norm, 20) > 0.2",
        "loss > 2 * mean(loss, 50)",
        "mean(loss > 1, 10) >= 1",
        "loss < 0",
    ],
)
def test_nothing_is_said_of_what_may_be_either(rule: str) -> None:
    """NaN makes a comparison false, and a series without a name that says so may be negative."""
    assert said(rule) == []


def test_what_is_decided_is_followed_through_names_controllers_and_states() -> None:
    """A class below one that is always true is never taken, and neither is one whose condition is never true."""
    asked = parse_policy(
        """
define: {swing: tanh(delta(loss)), wild: swing > 2}
states: {phase: [{odd: wild}, {known: step >= 0}, {late: step > 100}]}
controllers:
  - {name: a, triggers: [on_step_end], rule: wild and loss > 1, operations: []}
  - {name: b, triggers: [on_step_end], rule: loss > 1, once: true, operations: []}
  - {name: c, triggers: [on_step_end], operations: [], rule: 'times_fired("a") > 0 or times_fired("b") > 1'}
  - {name: d, triggers: [on_step_end], operations: [], rule: 'phase == "late" or phase == "odd"'}
""",
        source="p.yaml",
    )

    lines = [each.message for each in findings_of(asked) if each.code is FindingCode.DEAD]

    assert lines == [
        "state 'phase': 'swing > 2' is never true, so the rule is never true: tanh gives -1 to 1",
        "state 'phase': 'step >= 0' is always true: 'step' is at least 0",
        "state 'phase': 'late' is never taken: 'known' above it is true wherever it is defined",
        f"controller 'a': 'swing > 2' {NEVER}: tanh gives -1 to 1",
        f"controller 'c': 'times_fired(\"a\") > 0' {NEVER}: the rule of 'a' is never true",
        f"controller 'c': 'times_fired(\"b\") > 1' {NEVER}: 'b' decides once",
        f"controller 'd': 'phase == \"late\"' {NEVER}: the state 'phase' never takes the class 'late'",
        f"controller 'd': 'phase == \"odd\"' {NEVER}: the state 'phase' never takes the class 'odd'",
    ]


@pytest.mark.parametrize(
    ("rule", "is_dead"),
    [
        ('max(series("norm/*")) / mean(series("norm/*")) > 1000.5', True),
        ('max(series("norm/*")) > 1000.5 * mean(series("norm/*"))', True),
        ('max(series("norm/*")) > 999.5 * mean(series("norm/*"))', False),
        ('max(series("x/*")) > 1000.5 * mean(series("x/*"))', False),
        ('max(series("norm/*") - 1) > 1000.5 * mean(series("norm/*") - 1)', False),
        ('count(series("norm/*") > 1) < 0', True),
        ('any(series("norm/*") > 1) or argmax(series("norm/*")) == "norm/0"', False),
    ],
)
def test_the_greatest_member_is_at_most_as_many_times_the_mean_as_there_are_members(rule: str, is_dead: bool) -> None:
    """A family has at most 1,000."""
    assert [("never true" in line) for line in said(rule)] == [True] * is_dead


@pytest.mark.parametrize(
    ("rule", "least", "is_dead"),
    [
        ("streak(slope(norm, 20, min=10) / mean(norm, 20, min=10) > 0.5) >= 3", 12, True),
        ("streak(slope(norm, 20, min=10) / max([mean(norm, 20, min=10), 0.01]) > 0.5) >= 3", 12, True),
        ("streak(slope(finite(norm), 20, min=10) / mean(finite(norm), 20, min=10) > 0.5) >= 3", 12, True),
        ("streak(slope(norm, 20, min=10) / mean(norm, 20, min=10) > 0.5) >= 2", 12, False),
        ("streak(slope(norm, 20, min=10) / mean(norm, 20, min=10) > 0.25) >= 99", 0, False),
        ("streak(step > 3 and slope(norm, 20, min=10) / mean(norm, 20, min=10) > 0.5) >= 3", 0, False),
        ("streak(x > 1 and slope(norm, 20, min=10) / mean(norm, 20, min=10) > 0.5) >= 3", 0, False),
        ("streak(slope(x, 20, min=10) / mean(x, 20, min=10) > 0.5) >= 3", 0, False),
    ],
)
def test_a_streak_ends_where_its_window_holds_too_many_values(rule: str, least: int, is_dead: bool) -> None:
    """A window with ``min=`` grows by one value at each event, and what bounds it with it."""
    bound = f"slope / mean is at most 6 / ({least} + 1) for {least} values, which leaves a streak of at most 2 before"
    line = f"'{rule}' {NEVER}: {bound}, if 'norm' is never negative"

    assert said(rule) == [line] * is_dead


@pytest.mark.parametrize(
    ("ends", "rule", "line"),
    [
        ("[0, 1]", "accuracy > 1", f"'accuracy > 1' {NEVER}: the rule file says that 'accuracy' is from 0 to 1"),
        ("[0, 1]", "mean(accuracy, 5) > 1.5", f"'mean(accuracy, 5) > 1.5' {NEVER}: the rule file says that"),
        ("[0, 1]", "var(accuracy, 5) > 0.3", f"'var(accuracy, 5) > 0.3' {NEVER}: var of values from 0 to 1 is"),
        ("[0, 1]", "var(accuracy, 5) > 0.2", ""),
        ("[0, 1]", "accuracy + True > 2", f"'accuracy + True > 2' {NEVER}: the rule file says that"),
        ("[0, 1]", "accuracy / 0.5 > 2", f"'accuracy / 0.5 > 2' {NEVER}: the rule file says that"),
        ("[0, most]", "accuracy > 4", f"'accuracy > 4' {NEVER}: the rule file says that 'accuracy' is from 0 to 4"),
        ("[undefined, 1]", "accuracy > 1", f"'accuracy > 1' {NEVER}: the rule file says that 'accuracy' is at most 1"),
        ("[0, most if experts > 9 else undefined]", "accuracy > 4", ""),
        ("[0, 1]", "accuracy > 0.5", ""),
    ],
)
def test_the_range_that_a_policy_gives_a_metric_decides_comparisons(ends: str, rule: str, line: str) -> None:
    """Its ends are numbers, params, and definitions of these."""
    head = f"params: {{experts: 8, k: 2}}\ndefine: {{most: experts / k}}\nranges:\n  accuracy: {ends}"

    assert [each.startswith(line) for each in said(rule, head)] == [True] * bool(line)


@pytest.mark.parametrize(
    ("ends", "problem"),
    [
        ("1", "range of 'accuracy': must be a list of two ends"),
        ("[1]", "range of 'accuracy': must be a list of two ends"),
        ("[0, true]", "range of 'accuracy': an end is a number or an expression"),
        ("[0, loss]", "range of 'accuracy': an end reads nothing of the run"),
        ("[0, 1 +]", "range of 'accuracy'"),
    ],
)
def test_the_ends_of_a_range_are_known_when_the_policy_loads(ends: str, problem: str) -> None:
    """They take part in no decision: the digest stays the same."""
    with pytest.raises(PolicyError, match=problem):
        policy("accuracy > 2", f"ranges:\n  accuracy: {ends}")
    assert policy("accuracy > 2", "ranges: {accuracy: [0, 1]}").digest == policy("accuracy > 2").digest


RATES = 'define: {used: series("lr.used"), planned: series("lr.scheduled")}'


@pytest.mark.parametrize(
    ("rule", "operation", "reason"),
    [
        ("used >= 0.3 * planned", "lr.scale(0.5, over=50)", "leave 'lr.used' at 0.5 of 'lr.scheduled' or more, if"),
        ("0.3 * planned <= used", "lr.scale(0.5, over=50)", "leave 'lr.used' at 0.5 of 'lr.scheduled' or more, if"),
        ("planned > 2 * used", "lr.scale(0.5, over=50)", "leave 'lr.used' at 0.5 of 'lr.scheduled' or more, if"),
        ("used >= planned", "lr.reduce(0.5)", "no operation of this rule file takes 'lr.used' below 'lr.scheduled'"),
        ("used >= 0.3 * planned", "lr.scale(0.2, over=50)", ""),
        ("used >= 0.3 * planned", "lr.reduce(2)", ""),
        ("used > planned", "lr.reduce(0.5)", ""),
        ("used >= 0.3 * loss", "lr.scale(0.5, over=50)", ""),
    ],
)
def test_what_a_policy_leaves_of_the_scheduled_rate_decides_comparisons(rule: str, operation: str, reason: str) -> None:
    """An override begins at a share of the schedule and returns to it, so that nothing less is ever used."""
    cut = f"\n  - {{name: cut, triggers: [on_step_end], rule: loss > 9, operations: ['{operation}']}}"

    assert [reason in line for line in said(rule, RATES, cut)] == [True] * bool(reason)


def test_rules_of_surogate_that_cannot_fire_are_found_each_with_its_proof() -> None:
    """Limits of an imbalance that a model cannot have are found once the model is known."""
    proofs = {
        "gradient_acceleration": "slope / mean is at most 6 / (12 + 1) for 12 values",
        "imbalance_severe": "the rule file says that 'moe_load_imbalance' is from 0 to 4, and 'severe_load' is",
        "imbalance_high": "'high_load' is always 6, and the rule file says that 'moe_load_imbalance' is from 0 to 4",
        "plateau_high_lr": "the operations of this rule file leave 'lr.used' at 0.5 of 'lr.scheduled' or more",
    }
    found = {name: _ranges_of_surogate(**params) for name, params in MODELS.items()}

    assert list(found["unknown"]) == ["gradient_acceleration", "plateau_high_lr"]
    assert list(found["8 experts"]) == list(proofs)
    assert list(found["lower limits"]) == ["plateau_high_lr"]
    assert all(proofs[name] in line for lines in found.values() for name, line in lines.items())


MODELS: Mapping[str, Mapping[str, Param]] = {
    "unknown": {},
    "8 experts": {"num_experts": 8, "top_k": 2},
    "lower limits": {
        "num_experts": 8,
        "top_k": 2,
        "gradient_growth": 0.1,
        "imbalance_warn": 2.0,
        "imbalance_severe": 3.0,
    },
}


def _ranges_of_surogate(**params: Param) -> dict[str, str]:
    asked = load_policy(shipped_policies()["surogate"], params=params)
    found = [each for each in findings_of(asked) if each.code is FindingCode.DEAD]
    return {each.message.split("'")[1]: each.message for each in found}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("    for: 3\n", "patience waits for 3 true results in a row"),
        ("    for: 10\n", "patience waits for 10 true results in a row"),
        ("    for: {seconds: 10}\n", "'for' waits for true results in a row"),
    ],
)
def test_a_milestone_that_is_waited_for_is_warned_of(more: str, line: str) -> None:
    """It is true at one event, and false at the next."""
    found = findings_of(policy("milestone(every=0.1) and loss > 1", more=more))

    assert [line in each.message for each in found if each.code is FindingCode.TIMING] == [True]
    assert findings_of(policy("milestone(every=0.1) or lr > 1", more=more)) == []


def test_a_policy_that_nests_conditions_deeply_is_looked_at_once() -> None:
    """Each part has one range, however many comparisons hold it."""
    rule = "x > 1"
    for _ in range(40):
        rule = f"({rule}) > tanh(x) and len(x) > 5"

    assert said(rule) == []
