"""The compiled form of a rule computes what simpleeval computes, value for value and failure for failure."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import pytest
import simpleeval  # type: ignore[import-untyped]
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.compiled.compilation import Translator
from steptape.rules.compiled.workspace import Workspace
from steptape.rules.functions.operators import modulo
from steptape.rules.language.binding import bind
from steptape.rules.language.bound_rule import NameScope, dependencies
from steptape.rules.language.clock import Clock
from steptape.rules.language.expressions import parse
from steptape.rules.readings.reading import Names, Param
from steptape.rules.readings.table import FUNCTIONS
from steptape.store.events import Event

SERIES = {"loss": 2.5, "lr": 1e-3, "spike": math.nan, "bound": math.inf, "zero": -0.0}
METRICS = {
    "w": {"loss": [3.0, 2.0, 2.5], "size": 3, "name": "eval", "nested": {"a": [1, 2], "b": {"c": 4.0}}},
    "xs": [1, 0, 2, 0],
    "flag": True,
}
PARAMS: dict[str, Param] = {"factor": 1.5, "limit": 3, "label": "x"}


def compiled(text: str) -> Any:
    """Return the value of a rule over the names above; it need not be a bool."""
    names = Names()
    bound = bind(parse(text), NameScope(METRICS.keys(), PARAMS), is_condition=False)
    code = Translator(bound, names).code(bound.expression.tree)
    workspace = Workspace(names, dependencies([bound]), Clock())
    for key, series in workspace.series.items():
        series.append(SERIES[key.name])
    for name, cell in workspace.cells.items():
        cell.value = METRICS[name]
    return workspace.function(code)(Event("step_end"))


def oracle(text: str) -> Any:
    """Return the value of simpleeval's own evaluator over the same names and functions."""
    functions = {name: function.plain for name, function in FUNCTIONS.items() if function.plain}
    operators = {**simpleeval.DEFAULT_OPERATORS, ast.Mod: modulo}  # Text % values is a listed departure.
    evaluator = simpleeval.EvalWithCompoundTypes(operators, names={**SERIES, **METRICS, **PARAMS})
    # Its constructor replaces our functions by Python's constructors.
    evaluator.functions.update(functions)
    return evaluator.eval(text)


def answer(evaluate: Callable[[str], Any], text: str) -> tuple[str, str]:
    """Return the exact value with its type, or that there is none."""
    try:
        value = evaluate(text)
    except Exception:
        return "error", ""
    return type(value).__name__, repr(value)


numbers = st.sampled_from(
    ["0", "1", "2", "3", "7", "-1", "0.0", "0.5", "2.5", "1e3", "1e308", "factor", "limit", "True"]
)
series = st.sampled_from(list(SERIES))
metric_numbers = st.sampled_from(
    ['w["loss"][-1]', 'w["loss"][0]', "w.size", "w.nested.b.c", "xs[2]", "xs[9]", "w.none", 'w["none"]', "flag"]
)
collections = st.sampled_from(
    ['w["loss"]', "xs", "xs[1:]", "xs[::-1]", "[1, 2.5, 3]", "(4, 5)", "[]", "[*xs, 7]", "w.nested.a", "w.loss[-2:]"]
)
texts = st.sampled_from(["'ab'", "label", "w.name", "f'{limit}-{w.size}'", "f'{factor:.2f}'", "'ab' 'c'"])
leaves = st.one_of(numbers, series, metric_numbers)


def extended(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Draw expressions composed of expressions."""
    binary = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^"])
    comparison = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    things = st.one_of(inner, collections, texts)
    return st.one_of(
        st.tuples(things, binary, things).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(things, comparison, things).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        st.tuples(things, st.sampled_from(["in", "not in"]), st.one_of(collections, texts)).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(inner, comparison, inner, comparison, inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner, st.sampled_from(["and", "or"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(st.sampled_from(["-", "+", "~", "not "]), inner).map(lambda parts: f"({parts[0]}{parts[1]})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        st.tuples(st.sampled_from(["abs", "round", "int", "float", "isnan", "str", "exp", "log", "sqrt"]), inner).map(
            lambda parts: f"{parts[0]}({parts[1]})"
        ),
        st.tuples(
            st.sampled_from(
                [
                    "len",
                    "sum",
                    "min",
                    "max",
                    "mean",
                    "std",
                    "var",
                    "median",
                    "slope",
                    "detrended_std",
                    "count",
                    "first",
                    "last",
                    "argmin",
                    "argmax",
                    "peak",
                    "any",
                    "sorted",
                    "list",
                ]
            ),
            collections,
        ).map(lambda parts: f"{parts[0]}({parts[1]})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"clamp({', '.join(parts)})"),
        st.tuples(collections, inner).map(lambda parts: f"quantile({parts[0]}, {parts[1]})"),
        st.tuples(collections, inner).map(lambda parts: f"ema({parts[0]}, {parts[1]})"),
        st.tuples(inner, collections, inner).map(lambda parts: f"[{parts[0]} for x in {parts[1]} if {parts[2]} or x]"),
        st.tuples(collections, collections).map(
            lambda parts: f"sum([x * y for x in {parts[0]} for y in {parts[1]} if x != y])"
        ),
        st.tuples(inner, inner).map(lambda parts: f"{{'k': {parts[0]}, 'l': {parts[1]}}}['k']"),
        st.tuples(collections, inner).map(lambda parts: f"{parts[0]}[{parts[1]}]"),
        st.tuples(inner, inner).map(lambda parts: f"[{parts[0]}, {parts[1]}]"),
        st.just("w.get('size', 0)"),
        st.just("w.get('none')"),
    )


expressions = st.recursive(leaves, extended, max_leaves=12)


@examples(600)
@given(expressions)
def test_compiled_rules_compute_what_simpleeval_computes(text: str) -> None:
    """Both give the same value of the same type, to the last bit, or both fail."""
    assert answer(compiled, text) == answer(oracle, text)


@pytest.mark.parametrize(
    "text",
    [
        "1 and 0 or 3",
        "0 or [] or 'x'",
        "not 1 == 2 < 3",
        "1 < 2 < 1 < 1 / 0",
        "-2 ** 2",
        "[x for x in xs if x][0]",
        "[x for y in [[1, 2], [3]] for x in y]",
        "{x: y for x, y in [(1, 2), (3, 4)]}",
        "(x for x in xs)",
        "[[x for x in xs if x > y] for y in xs]",
        "[x for x in xs] + [x for x in [7]]",
        "{1, 2} | {3}",
        "{**w.nested, 'z': 1}.get('z')",
        "(1, 2) + (3,)",
        "'abc'[1:] * 2",
        "f'{loss:>8.3f}|{xs[0]}'",
        "'a' < 'b' < 'c'",
        "None is None",
        "flag is True",
        "w.nested.a[1] if w.size > 2 else 1 / 0",
        "1e308 * 10",
        "2 ** 0.5",
        "(-8) ** (1 / 3)",
        "9 ** 9 ** 9 ** 9",
        "'a' * 1000000",
        "[1] * 100001",
        "1 << 100000",
        "[x for x in [0] * 10001]",
        "[1 for x in [0] * 101 for y in [0] * 100]",
        "round(2.5), round(3.5), round(2.675, 2)",
        "math_floor(-0.5), math_ceil(0.5), math_trunc(-1.5)",
        "int('7') + float('1e3')",
        "b'x' + b'y'",
        "1j * 1j",
    ],
)
def test_corners_of_the_language_agree_with_simpleeval(text: str) -> None:
    """Generated expressions are too rarely of these kinds."""
    assert answer(compiled, text) == answer(oracle, text)


@pytest.mark.parametrize("text", ["'%d' % 3", "f'{1:1001}'", "9 ** 4000000", "'a'.index('b')", "1 if mean([]) else 2"])
def test_what_simpleeval_leaves_open_is_closed(text: str) -> None:
    """Format strings, huge numbers and wide texts fail here, whatever simpleeval does."""
    assert answer(compiled, text) == ("error", "")


@pytest.mark.parametrize("name", [name for name, function in FUNCTIONS.items() if function.is_float])
def test_a_function_that_is_taken_for_a_float_gives_one(name: str) -> None:
    """Lists of whole numbers included: a rule leaves out what guards whole numbers against growing out of bounds."""
    arguments = ("[3, 1, 2]", "[3]", "3", "[3, 1, 2], 0", "[3, 1, 2], 2", "[3], 1", "3, 1", "3, 1, 5")
    answers = [answer(compiled, f"{name}({given})") for given in arguments]

    assert {kind for kind, _ in answers} <= {"float", "error"}


@pytest.mark.parametrize("text", ["0 + quantile(xs, 0)", "median([1, 3, 2]) * 2", "ema([3], 1) - 1"])
def test_a_whole_number_among_whole_numbers_stays_one(text: str) -> None:
    """A median, a quantile and an average of one value are values of the list."""
    assert answer(compiled, text) == answer(oracle, text)
    assert answer(compiled, text)[0] == "int"
