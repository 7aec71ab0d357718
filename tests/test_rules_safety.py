"""An untrusted policy file cannot escape the language, exhaust resources, or change the data that it reads."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import pytest
from drawing import examples
from hypothesis import example, given
from hypothesis import strategies as st

from steptape.rules.engine.decisions import Decision, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event
from steptape.store.plan import Plan

HEAD = """\
controller_metrics:
  - {name: w, class: HistoryBasedMetric, arguments: {window_size: 5}}
  - {name: s, class: TrainingState}
  - {name: l, class: Loss}
  - {name: e, class: EvalMetrics}
"""


#: CPU seconds after which a computation is ended: bounded ones take a moment, unbounded ones years.
ENDS_AFTER_S: Final = 60.0


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Fail a computation that does not end, by CPU time, so that a busy machine does not matter."""

    def fail(_signal: int, _frame: FrameType | None) -> None:
        pytest.fail(f"it has computed for {ENDS_AFTER_S:g} s")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, ENDS_AFTER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def policy(rule: str, more: str = "") -> str:
    """Return a policy with one rule of any text."""
    body = "\n      ".join(rule.splitlines()) or '""'
    controller = f"  - name: c\n    triggers: [on_step_end]\n    rule: |-\n      {body}\n    operations: []\n"
    return f"{HEAD}controllers:\n{controller}{more}"


@pytest.mark.parametrize(
    "rule",
    [
        "().__class__.__base__.__subclasses__()",
        "w['__class__']",
        "'{0.x}'.format(w) == ''",
        "'{x}'.format_map(w) == ''",
        "getattr(w, 'x') == 1",
        "eval('1') == 1",
        "exec('1') == 1",
        "compile('1', '', 'eval') == 1",
        "open('/etc/passwd') == 1",
        "print(1) == 1",
        "type(w) == 1",
        "vars() == 1",
        "globals() == 1",
        "import os",
        "w._x == 1",
        "w.mro() == 1",
        "w.loss.append(1) == None",
        "w.clear() == None",
        "w.update({}) == None",
        "w.pop('x') == 1",
        "w.setdefault('x', 1) == 1",
        "'a'.ljust(1000000) == ''",
        "'a'.join(['b']) == ''",
        "'a'.encode() == b''",
        "(lambda: 1)() == 1",
        "[w := 1] == 1",
        "(yield 1) == 1",
        "(await w) == 1",
        "[x async for x in w] == 1",
        "[w.x for w.x in [1]] == 1",
        "f'{w.__class__}' == ''",
        "f'{w!r}' == ''",
        "w.f_globals._x == 1",
        "w.values().gi_frame.f_globals['x'].exec('1') == 1",
        "(x for x in [1]).gi_frame.f_back() == 1",
        "[x.f_back for x in [w.gi_frame()]] == 1",
        "w.tb_frame() == 1",
        "print.im_func() == 1",
        "len(*[w]) == 1",
        "max(**{'default': 1}) == 1",
        "[*w, *w](1) == 1",
        "w()() == 1",
        "w['x']() == 1",
        "(max if True else min)([1]) == 1",
        "[max][0]([1]) == 1",
        "max == min == max([1], key=len)",
        "sorted([w], key=lambda x: 1) == []",
        "sum([[1], [2]], []) == series(w)",
        "operator.attrgetter('x')(w) == 1",
        "str.format('{0.x}', w) == ''",
        "'{0.x}' .format(w) == ''",
        "f'{w:{\"x\".__class__}}' == ''",
        "f'{(lambda: 1)()}' == ''",
        "f'{[x := 1]}' == ''",
        "f'{w=!r}' == ''",
        "[y for x in [1] if (y := x)] == []",
        "[(x, y) for x, w.y in [(1, 2)]] == []",
        "[x for x[0] in [[1]]] == []",
        "{x for x in [1]} == {1}",
        "1 if (yield) else 2",
        "`1` == 1",
        "1 <> 2",
        "True if 1 else import_module('os')",
        "w.é.\ufe4dx == 1",
        "w._\u005fclass == 1",
        "\uff57._\uff3fx == 1",
        "loss @ loss > 1",
        "match w == 1",
        "global w",
        "w: int = 1",
        "w; w",
        "# only a comment",
        "\ufeffTrue and \x00",
        "\ud800 == 1",
        "abs.x == 1",
        "len._x == 1",
        "w.ﬀ._ﬀ == 1",
        "del w",
        "w['x'] = 1",
        "w.x += 1",
        "assert True",
        "True; False",
        "-" * 5000 + "1 == 1",
        "(" * 300 + "1" + ")" * 300 + " == 1",
        "[" * 150 + "]" * 150 + " == 1",
        "+".join(["w.x"] * 2000) + " == 1",
        "not " * 2000 + "True",
        "1 == " + "1" * 9_999,
        "1 == " + "1" * 5_000,
        "'" + "a" * 10_000 + "' == ''",
        "1\0 == 1",
        "",
    ],
)
def test_what_could_reach_out_or_blow_up_is_refused_at_load(rule: str) -> None:
    """Every known escape of expression languages is refused quickly, with one of our own errors."""
    with ending(), pytest.raises(PolicyError):
        parse_policy(policy(rule))


EVENTS = [
    Event("log", metrics={"loss": 2.0}, epoch=0.5),
    Event("evaluate", metrics={"eval_loss": 3.0}, epoch=0.5),
    Event("step_end", step=1, metrics={"loss": 1.0}),
]


def run(rule: str) -> Any:
    """Return the outcomes of a rule at a step, after a log and an evaluation."""
    engine = Engine(parse_policy(policy(rule)), Plan())
    return [outcome for event in EVENTS for outcome in engine.observe(event)]


@pytest.mark.parametrize(
    "rule",
    [
        "9 ** 9 ** 9 ** 9 > 1",
        "9 ** 3999999 > 1",
        "(9 ** 300000) * (9 ** 300000) > 1",
        "1 << 1000000000 > 1",
        "'a' * 100000000 == ''",
        "[1] * 100001 == []",
        "[*([1] * 99999), *([1] * 99999)] == []",
        "[1 for x in [1] * 200 for y in [1] * 200] == []",
        "f'{1:1000000000}' == ''",
        "'%1000000000d' % 1 == ''",
        "7 ** 300000 % 5 ** 300000 > 1",
        "1e308 ** 1e308 > 1",
        "1 << -1 > 1",
        "2 ** 20000 > 1",
        "str([['a' * 9999] * 99]) == ''",
        "[[[[1] * 9999] * 9999] * 9999] * 9999 == [[[[1] * 9999] * 9999] * 9999] * 9999",
        "max([[1] * 9999] * 9999) == 1",
        "((1,) * 9999,) * 9999 in [1]",
        "[str(1) * 9999 + str(x) for x in [1] * 2000] == []",
        "[[1] * 9999 for x in [1] * 9000] == []",
        "{x: [x] * 9999 for x in list(s.keys()) * 20} == {}",
        "[9 ** 3000 + x for x in [1] * 9999] == []",
        "[u == v for a in [[1]] for b in [[a, a]] for c in [[b] * 99] for d in [[c] * 99] for e in [[d] * 99] "
        "for u in [e] for v in [e]] == []",
        "[a for a in [[1] * 999] for a in [[a] * 999] for a in [[a, a]]] == []",
        "int(str(9) * 9999, 16) > 1",
        "round(10, -1000000000) == 0",
        "round(5, 10 ** 1000) == 5",
        "f'{1.5:.1001f}' == ''",
        "f'{[1]:>9}' == ''",
        "'{:>1000000000}' % 1 == ''",
        "str([[1] * 1000] * 1000) == ''",
        "str(9 ** 100000) == ''",
        "int('9' * 90000) == 1",
        "s[str(1) + 1] == 1",
        "{[]: 1} == 1",
        "w.training_loss.loss.x == 1",
        "(1).real == 1",
        "'a'.x == 1",
    ],
)
def test_what_grows_out_of_bounds_or_fails_is_recorded_and_nothing_else(rule: str) -> None:
    """The error comes at once, and the training continues."""
    with ending():
        outcomes = run(rule)

    assert [type(outcome) for outcome in outcomes] == [RuleError]


@pytest.mark.parametrize("rule", ["w.keys.x == 1", "l.keys == 1", "s.items.x == 1", "w['items'] == 1"])
def test_an_attribute_is_a_key_and_never_a_method(rule: str) -> None:
    """A missing key is undefined, even if dictionaries have a method of that name."""
    assert run(rule) == []


def test_a_rule_cannot_change_what_it_sees() -> None:
    """No allowed operator or method does: the metrics afterwards equal those that no rule ever saw."""
    rules = [
        "sorted(w.training_loss.loss) == [] or True",
        "(w.training_loss.loss + [1]) == [] or True",
        "(w.training_loss.loss * 2) == [] or True",
        "{**w, 'window_size': 7} == {} or True",
        "dict(w, window_size=8) == {} or True",
        "(w | {'window_size': 9}) == {} or True",
        "[x for x in w.training_loss.loss] == [] or True",
        "list(s.keys()) == [] or True",
        "(w.keys() | {'x'}) == {} or True",
        "[[v for v in w.values()] for w in [w]] == [] or True",
    ]
    lines = "".join(
        f"  - name: c{number}\n    triggers: [on_step_end]\n    rule: |-\n      {rule}\n    operations: []\n"
        for number, rule in enumerate(rules)
    )
    last = 'w == {"training_loss": {"loss": [2.0], "steps": [0], "epoch": [0.5]}, "metrics": {"eval_loss": [3.0], '
    last += '"steps": [0], "epoch": [0.5]}, "window_size": 5} and l == {"loss": 2.0, "epoch": 0.5, "step": 0}'
    more = f"  - name: last\n    triggers: [on_step_end]\n    rule: |-\n      {last}\n    operations: []\n"

    engine = Engine(parse_policy(f"{HEAD}controllers:\n{lines}{more}"))
    outcomes = [outcome for event in [*EVENTS, EVENTS[-1]] for outcome in engine.observe(event)]

    assert all(isinstance(outcome, Decision) for outcome in outcomes), outcomes
    assert [outcome.controller for outcome in outcomes].count("last") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: &a [x]\n"
            + "".join(
                f"{n}: &{n} [*{p}, *{p}, *{p}]\n" for p, n in zip("abcdefghijklmn", "bcdefghijklmno", strict=True)
            ),
            "more than 20,000 values once aliases are expanded",
        ),
        (
            "a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 11 + "]",
            "more than 1,048,576 characters once aliases are expanded",
        ),
        ("a: &a [*a]\n", "nested deeper than 40 levels"),
        ("a: &a {b: *a}\n", "nested deeper than 40 levels"),
        ("[" * 100_000, "nested deeper than 40 levels"),
        ("- " * 1_000 + "x", "nested deeper than 40 levels"),
        ("{a: " * 500, "nested deeper than 40 levels"),
        ("- x\n" * 30_000, "more than 20,000 values"),
        ("name: " + "x" * (1 << 20), "longer than 1,048,576 bytes"),
        ("name: " + "ä" * (1 << 19), "longer than 1,048,576 bytes"),
        ("a: !!python/object/apply:os.system ['true']", "tag not allowed"),
        ("a: !!python/name:os.system ''", "tag not allowed"),
        ("!!set {a, b}", "tag not allowed"),
        ("a: !!binary aGVsbG8=", "tag not allowed"),
        ("a: !local x", "tag not allowed"),
        ('name: "\\ud800"', "a lone surrogate"),
        ('name: "\\UFFFFFFFF"', "not valid YAML"),
        ("%YAML 7.0\n--- {}", "not valid YAML"),
        ("name: " + "x" * (10 << 20), "longer than 1,048,576 bytes"),
        ("a: !!python/object/new:os.system [x]", "tag not allowed"),
        ("a: !!python/object:os.PathLike {}", "tag not allowed"),
        ("a: !!python/module:os ''", "tag not allowed"),
        ("a: !<tag:yaml.org,2002:python/object/apply:eval> ['1']", "tag not allowed"),
        ("%TAG ! tag:yaml.org,2002:python/\n---\na: !name:os.system x", "tag not allowed"),
        ("!!omap [a: 1]", "tag not allowed"),
        ("!!python/tuple [1]", "tag not allowed"),
        ("a: !!timestamp 2001-01-01", "unknown key"),
        ("<<: [*a]", "undefined alias"),
        ("a: &a {<<: *a}", "nested deeper than 40 levels"),
        ("<<: {<<: {<<: 1}}", "'<<' takes a mapping"),
        (
            "x0: &x0 {a: b}\n"
            + "".join(f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}, *x{n - 1}]}}\n" for n in range(1, 15)),
            "more than 20,000 values once aliases are expanded",
        ),
        ("{" * 100_000, "nested deeper than 40 levels"),
        ("? " * 100_000, "nested deeper than 40 levels"),
        ("a: [" + "[]," * 30_000 + "]", "more than 20,000 values"),
        ("params: {a: 0x" + "f" * 100_000 + "}\ncontrollers: 1", "controllers: must be a list"),
        ("params: {a: " + "1_" * 50_000 + "1}", "a param must be a number"),
        ("params: {a: " + "1:" * 500_000 + "1}", "a param must be a number"),
        ("params: {a: 1e999999}", "looks like a number but is text"),
        ("a: \0", "not valid YAML"),
        ("a: b\0c", "not valid YAML"),
        ("params: {a: " + "1" * 10_000 + "}", "a param must be a number"),
        ("params: {a: !!int '0x_'}", "a param must be a number"),
        ("params: {a: !!float ''}", "a param must be a number"),
        ("params: {a: 1:99999999999999999999:0.5e}", "controllers"),
    ],
)
def test_yaml_that_could_blow_up_is_refused(text: str, message: str) -> None:
    """The cases are alias bombs, deep nesting, tags that build objects, and overlong files."""
    with ending():
        if message == "controllers":
            assert parse_policy(text).params["a"] == "1:99999999999999999999:0.5e"
        else:
            with pytest.raises(PolicyError, match=message):
                parse_policy(text)


WORDS = r"""
loss w s l e . [ ] ( ) { } , : ' " + - * / % ** == < > and or not if else for in is None True lambda mean len max series
f' 1 2.5 1e9 __ _x keys get \ # := = ; @ ~ << ﬀ 'a'
"""
fragments = st.lists(st.sampled_from([*WORDS.split(), "\n", "\u2028", "\x0c"]), max_size=25)


@examples(400)
@given(fragments.map(" ".join))
@example("1 if\x0cTrue else 2")
@example("'\\N{BULLET}' == ''")
@example("b'\\xff' == ''")
@example("f'{loss:{w}}' == ''")
@example("f'{f\"{loss}\"}' == ''")
@example("0x" + "f" * 5000 + " == 1")
@example("1e999 == 1")
@example("...")
@example("w[...] == 1")
@example("w[1:2, ::3] == 1")
def test_any_rule_loads_or_is_refused_and_then_runs_without_an_exception(rule: str) -> None:
    """The loader raises only our own errors, which name a line of the file; the engine none at all."""
    text = (
        f"{HEAD}controllers:\n  - name: c\n    triggers: [on_step_end]\n    rule: {quoted(rule)}\n    operations: []\n"
    )
    lines = []
    try:
        policy = parse_policy(text)
    except PolicyError as error:
        lines = [problem.line for problem in error.problems]
    else:
        engine = Engine(policy)
        for event in EVENTS:
            engine.observe(event)

    assert all(text.splitlines()[line - 1].startswith("    rule: ") for line in lines)


def quoted(text: str) -> str:
    """Return text as a double-quoted YAML scalar."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\x0c": "\\f", "\u2028": "\\L"}
    return '"' + "".join(escapes.get(character, character) for character in text) + '"'


YAML = r"""
controllers: name: rule: triggers: operations: params: patience: - [ ] { } , & * ! | > ' " # % @ : a 1 null true ~ <<
on_log loss>1 --- ...
"""


@examples(300)
@given(st.lists(st.sampled_from([*YAML.split(), "\n", "\n", "  ", "\t"]), max_size=40).map(" ".join))
def test_any_text_loads_or_is_refused(text: str) -> None:
    """No other exception is raised, whatever the file holds."""
    with contextlib.suppress(PolicyError):
        assert parse_policy(text).digest
