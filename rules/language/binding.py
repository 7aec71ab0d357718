"""Binds an expression: resolves every name and checks every call before the first event.

Takes an expression and the names of its policy; returns which series, window, metric or param each node means, or
raises all faults at once. A name resolves in this order: a variable of a comprehension, a controller metric, a param, a
fact about the run, and else a series.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeGuard

from ...store.events import DERIVED_PREFIX, LOOP_KINDS, STEP_TIME, is_kind
from .. import habits
from ..errors import ExpressionError, Fault, kind_suggestion, suggestion
from ..functions.plain_functions import METHODS, Function
from ..functions.reductions import FOLDS
from ..readings.call import WINDOW_KEYWORDS, Call, constant, literal_text, number
from ..readings.fact import CONTEXT, ContextValue
from ..readings.family import OF_FAMILIES, FamilyReading, MemberName
from ..readings.generated import MEMBER_NAME
from ..readings.metric import MetricValue, StateClass
from ..readings.milestone import Milestone
from ..readings.param import ParamValue, Variable
from ..readings.ranks import ANY_RANK, AcrossRanks, RankValue
from ..readings.reading import Need, Reading, SeriesKey, ValueType
from ..readings.series_value import SeriesValue
from ..readings.table import FUNCTIONS, OF_NAMES, OF_NAMES_TOO, OF_SERIES, RANK_FUNCTIONS
from ..readings.window import TAKE_NUMBERS
from .bound_rule import BoundRule, Derived, Members, NameScope
from .expressions import COMPREHENSIONS, Expression, ExpressionFaults, expand, links_of
from .name_patterns import RESERVED, advice_on_reserved, is_pattern

#: Expressions that give a number or a truth value, so that a series can be computed from them.
_NUMERIC: Final = (ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.UnaryOp)
#: Functions and displays that give collections.
_COLLECTIONS: Final = frozenset({"list", "tuple", "sorted", "set", "dict", "str"})
#: Functions that take texts, and those that may give one.
_TAKE_TEXT: Final = frozenset({"series", "int", "float", "str", "list", "tuple", "dict", "set", "sorted"})
_GIVE_TEXT: Final = frozenset({"str", "previous"})
#: A text that is a number names no series: compared with a number, it is a mistake.
_NUMBER: Final = re.compile(r"\s*[-+]?[\d.]+(?:[eE][-+]?\d+)?\s*")
_DISPLAYS: Final = (ast.List, ast.Tuple, ast.Set, ast.Dict, *COMPREHENSIONS)

_QUANTILE: Final = "quantile"

#: Why a series cannot be indexed, iterated or have attributes.
_SERIES_IS_NUMBER: Final = "a series is a single number and has no items or attributes"
_NO_KIND: Final = "values of all ranks are those of any kind of event"
_OWN_RANK: Final = "an admitted value is that of its own rank"
_NO_PATTERN: Final = "functions of all ranks take no pattern"

_DECIMAL_COMMA: Final = re.compile(r"\d,\d")


def bind(expression: Expression, scope: NameScope, *, is_condition: bool = True) -> BoundRule:
    """Resolve every name and check every call of an expression; put definitions in place of their names.

    Args:
        is_condition: Whether to refuse an expression that can never give True or False.

    Raises:
        ExpressionError: The expression is invalid. The error holds all faults found; none if it reads a definition that
            was refused.
    """
    expand(expression, scope.definitions)
    _read_params_as_names(expression, scope)
    _read_texts_as_series(expression, scope)
    if scope.each:
        scope = replace(scope, members=Members(SeriesKey(scope.each, is_of_member=True)))
    elif scope.is_definition:
        scope = replace(scope, members=Members())
    found = _Meanings(expression)
    _bind(expression.tree, scope, found)
    for node, name in found.named:
        if name.startswith(DERIVED_PREFIX):
            found.refuse(node, RESERVED, advice_on_reserved(name))
    if is_condition and not found.faults:
        _check_verdict(expression.tree, found)
    if found.faults:
        raise ExpressionError(found.faults)
    return BoundRule(
        expression,
        found.references,
        found.series,
        tuple(found.metrics),
        found.derived,
        frozenset(found.ranks),
        _driver(expression.tree, found),
        tuple((*place, name) for node, name in found.named if (place := expression.place_of_name(node)) is not None),
    )


# Names of metrics: in params, and in quotes in place of numbers where they are no identifiers.


def _read_params_as_names(expression: Expression, scope: NameScope) -> None:
    """Put the text of a param in its place where ``series(metric)`` names it."""
    for node in ast.walk(expression.tree):
        if isinstance(node, ast.Call) and _called(node) == "series" and len(node.args) == 1:
            value = constant(node.args[0], scope)
            if isinstance(value, str):
                expression.put_name(node, value)


def _read_texts_as_series(expression: Expression, scope: NameScope) -> None:
    """Put ``series("train/loss")`` in place of a text wherever a number is meant. Its depth does not matter."""
    texts = frozenset(part for node in ast.walk(expression.tree) for part in _parts_of_texts(node, scope))
    for node in list(ast.walk(expression.tree)):
        for text in [] if node in texts else list(_texts_for_numbers(node, scope)):
            expression.put_series(text)


def _parts_of_texts(node: ast.AST, scope: NameScope) -> Iterator[ast.AST]:
    """Yield the nodes of what a comparison holds equal to a text: arithmetic there joins or repeats texts."""
    for left, sign, right in links_of(node) if isinstance(node, ast.Compare) else ():
        if isinstance(sign, (ast.Eq, ast.NotEq)):
            for one, other in ((left, right), (right, left)):
                if _is_text(other) or _may_be_text(other, scope):
                    yield from (part for part in ast.walk(one) if isinstance(part, ast.BinOp))


def _texts_for_numbers(node: ast.AST, scope: NameScope) -> Iterator[ast.Constant]:
    """Yield the texts among the operands or arguments of a node that stand where a number is meant."""
    match node:
        case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
            operands = [node.operand]
        case ast.BinOp():
            operands = [node.left, node.right]
            if isinstance(node.op, (ast.Add, ast.Mod, ast.Mult)) and any(
                _may_be_text(each, scope) for each in operands
            ):
                return
        case ast.Compare():
            operands = [each for link in links_of(node) if _compares_numbers(link) for each in (link[0], link[2])]
        case ast.Call():
            operands = _numbers_of(node, scope)
        case _:
            return
    yield from (each for each in operands if _is_text(each) and not _NUMBER.fullmatch(ast.literal_eval(each)))


def _is_text(node: ast.expr) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _may_be_text(node: ast.expr, scope: NameScope) -> bool:
    """Whether an operand beside a text may be a text, too, which ``+`` joins, or a number that repeats the text."""
    if isinstance(node, ast.Name):
        return node.id in scope.metrics or node.id in scope.variables
    return isinstance(node, (ast.JoinedStr, ast.Subscript)) or _called(node) in _GIVE_TEXT


def _compares_numbers(link: tuple[ast.expr, ast.cmpop, ast.expr]) -> bool:
    """Whether a comparison is one of numbers, as its sign or the other side shows."""
    left, sign, right = link
    others = (left, right)
    if isinstance(sign, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
        return not all(map(_is_text, others))
    return isinstance(sign, (ast.Eq, ast.NotEq)) and any(
        isinstance(each, ast.Constant) and isinstance(each.value, (int, float)) for each in others
    )


def _numbers_of(node: ast.Call, scope: NameScope) -> list[ast.expr]:
    """Return the arguments of a call that are numbers, the items of a list among them."""
    name = _called(node)
    if name in OF_NAMES_TOO and _takes_text(node):
        # A series whose name is an identifier needs no quotes, so this may be a controller or state that is misspelt.
        text = literal_text(node.args[0]) or ""
        is_name = text.isidentifier() or text in (*scope.controllers, *scope.states)
        return [] if name in OF_NAMES or is_name else node.args
    if name not in FUNCTIONS or name in _TAKE_TEXT or name in OF_NAMES or name == ANY_RANK:
        return []
    listed = [each.elts for each in node.args if isinstance(each, (ast.List, ast.Tuple))]
    return [*node.args, *itertools.chain.from_iterable(listed)]


class _Meanings(ExpressionFaults):
    """Collects what nodes mean, what is read for it, and what is wrong.

    Attributes:
        references, series, metrics, derived, ranks: As in the bound rule.
        named: The nodes that name series, each with the name.
        variables: How many variables of comprehensions have a unique name.
    """

    def __init__(self, expression: Expression) -> None:
        super().__init__(expression)
        self.references: dict[ast.AST, Reading] = {}
        self.series: dict[SeriesKey, Need] = {}
        self.metrics: dict[str, None] = {}
        self.derived: dict[SeriesKey, Derived] = {}
        self.ranks: set[str] = set()
        self.named: list[tuple[ast.expr, str]] = []
        self.variables = 0

    def read_series(self, key: SeriesKey, need: Need | None = None) -> None:
        """Note that a series is read, and how much of it."""
        self.series[key] = self.series.get(key, Need()) | (need or Need())

    def read_on_ranks(self, name: str) -> None:
        """Note that a metric is read on all ranks."""
        self.ranks.add(name)
        if name != STEP_TIME:
            # So that a name which no event carries is warned of.
            self.read_series(SeriesKey(name))


def _bind(node: ast.AST, scope: NameScope, found: _Meanings) -> None:
    """Bind a node and all nodes below it."""
    if isinstance(node, ast.Name):
        _bind_name(node, scope, found)
    elif isinstance(node, ast.Call):
        _bind_call(node, scope, found)
    elif isinstance(node, COMPREHENSIONS):
        _bind_comprehension(node, scope, found)
    else:
        _check_containers(node, scope, found)
        for child in ast.iter_child_nodes(node):
            _bind(child, scope, found)


def _bind_arguments(node: ast.Call, scope: NameScope, found: _Meanings) -> None:
    for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
        _bind(argument, scope, found)


def _bind_name(node: ast.Name, scope: NameScope, found: _Meanings) -> None:
    name = node.id
    if name in scope.variables:
        found.references[node] = Variable(scope.variables[name])
    elif name in scope.own:
        found.references[node] = scope.own[name]
    elif name in scope.admitted:
        _bind_series(node, SeriesKey(name, is_derived=True), scope, found)
    elif name in scope.metrics:
        found.references[node] = StateClass(name) if name in scope.states else MetricValue(name)
        found.metrics[name] = None
    elif name in scope.params:
        found.references[node] = ParamValue(name, scope.params[name])
    elif name == MEMBER_NAME and scope.each:
        if scope.members is None or scope.members.is_argument:
            found.refuse(node, "a function of a family has no one member")
        else:
            found.references[node] = MemberName()
    elif name in CONTEXT:
        found.references[node] = ContextValue(name)
    else:
        _bind_series(node, SeriesKey(name), scope, found)


def _bind_comprehension(
    node: ast.ListComp | ast.GeneratorExp | ast.DictComp, scope: NameScope, found: _Meanings
) -> None:
    for generator in node.generators:
        _refuse_series(generator.iter, scope, found)
        _bind(generator.iter, scope, found)
        variables = dict(scope.variables)
        for target in ast.walk(generator.target):
            if isinstance(target, ast.Name):
                found.variables += 1
                variables[target.id] = f"v{found.variables}"
                found.references[target] = Variable(variables[target.id])
        scope = replace(scope, variables=variables)
        for condition in generator.ifs:
            _bind(condition, scope, found)
    for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
        _bind(part, scope, found)


def _check_containers(node: ast.AST, scope: NameScope, found: _Meanings) -> None:
    """Refuse a series where a list, a dictionary or an object is needed."""
    if isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        _refuse_series(node.value, scope, found, _instead_of_part(found.expression, node))
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                _refuse_series(value, scope, found)
    elif isinstance(node, ast.Compare):
        for operator, operand in zip(node.ops, node.comparators, strict=True):
            if isinstance(operator, (ast.In, ast.NotIn)):
                _refuse_series(operand, scope, found)


def _refuse_series(node: ast.expr, scope: NameScope, found: _Meanings, fix: str = "") -> None:
    key = _series_key(node, scope)
    if key is None:
        return
    if key.is_of_member and scope.members is None:
        return  # It is refused as a pattern.
    if key.is_of_member:
        fix = f"Write any({found.expression.segment(node)} > 100)."
        found.refuse(node, "a pattern means one member after the other, and no list", fix)
    elif isinstance(node, ast.Name) and scope.metrics:
        fix = suggestion(key.name, scope.metrics)
        found.refuse(node, f"not a controller metric; {_SERIES_IS_NUMBER}", fix)
    else:
        fix = fix or f"Functions read its last values, as in mean({found.expression.segment(node)}, 10)."
        found.refuse(node, _SERIES_IS_NUMBER, fix)


# Calls.


def _bind_call(node: ast.Call, scope: NameScope, found: _Meanings) -> None:
    if isinstance(node.func, ast.Attribute):
        _bind_method(node, node.func, scope, found)
        return
    function = FUNCTIONS.get(_called(node))
    if function is None:
        found.refuse(node.func, "unknown function", _instead_of_call(found.expression, node, _called(node)))
        _bind_arguments(node, scope, found)
    elif function.name == "series":
        _bind_series_by_name(node, scope, found)
    elif (bind_name := (OF_NAMES_TOO if _takes_text(node) else OF_NAMES).get(function.name)) is not None:
        _bind_question(node, function, scope, found, bind_name)
    elif function.name in RANK_FUNCTIONS:
        _bind_rank_call(node, function, scope, found)
    else:
        _bind_value_call(node, function, scope, found)


def _bind_question(
    node: ast.Call,
    function: Function,
    scope: NameScope,
    found: _Meanings,
    bind_name: Callable[[Call], Reading | None],
) -> None:
    """Bind a question about a controller, a state or the run's length."""
    reading = bind_name(Call(node, function, scope, found))
    if reading is not None:
        found.references[node] = reading
        if reading.metric_read:
            found.metrics[reading.metric_read] = None
        _bind_arguments(node, scope, found)


def _called(node: ast.AST) -> str:
    """Return the name of the function that a node calls; empty for a method, and for anything but a call."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _takes_text(node: ast.Call) -> bool:
    return len(node.args) == 1 and literal_text(node.args[0]) is not None


def _bind_value_call(node: ast.Call, function: Function, scope: NameScope, found: _Meanings) -> None:
    """Bind a function of a family, of a series or of plain values."""
    if _takes_members(node) and _holds_pattern(node.args[0]):
        _bind_family_call(node, function, scope, found)
    elif not _is_of_series(node, function, scope):
        _bind_plain_call(node, function, scope, found)
    elif scope.is_of_ranks:
        found.refuse(node, f"{ANY_RANK} reads the newest value of each rank, and no window")
    else:
        _bind_series_call(node, function, scope, found)


def _bind_method(node: ast.Call, method: ast.Attribute, scope: NameScope, found: _Meanings) -> None:
    name = method.attr
    is_series = _series_key(method.value, scope) is not None
    if is_series and isinstance(method.value, ast.Name) and method.value.id in habits.MODULES:
        fix = _instead_of_module_call(found.expression, node, name)
        found.refuse(node, "a function has no module before its name", fix)
        _bind_arguments(node, scope, found)
        return
    if is_series:
        _refuse_series(method.value, scope, found)
    elif name not in METHODS:
        offset = found.expression.offset(method)
        found.faults.append(Fault(offset, "method not allowed", repr(name), suggestion(name, METHODS)))
    elif node.keywords or len(node.args) > 3:
        found.refuse(node, "a method takes at most 3 arguments, and no keyword arguments")
    _bind(method.value, scope, found)
    _bind_arguments(node, scope, found)


def _bind_plain_call(node: ast.Call, function: Function, scope: NameScope, found: _Meanings) -> None:
    if function.plain is None:
        asked, fix = node.args[0] if node.args else None, f"Write {function.signature}."
        if isinstance(asked, ast.Name) and asked.id in scope.states:
            fix = f'Write {function.name}("{asked.id}") for the state.'
        found.refuse(node, f"{function.name} takes a series as its first argument", fix)
    elif not _is_arity_right(node, function):
        found.refuse(node, f"{function.name} does not take these arguments", f"Write {function.signature}.")
    elif function.iterates and len(node.args) == 1:
        _refuse_series(node.args[0], scope, found)
    _bind_arguments(node, scope, found)


def _is_arity_right(node: ast.Call, function: Function) -> bool:
    if function.keywords is None:
        return len(node.args) <= 1
    count = len(node.args) + len(node.keywords)
    if count < function.least or not all(keyword.arg in function.keywords for keyword in node.keywords):
        return False
    most = function.most
    return most is None or (len(node.args) <= most and count <= max(most, 1 + len(function.keywords)))


# A series: its newest value, or what a function reads of it.


def _series_key(node: ast.AST, scope: NameScope) -> SeriesKey | None:
    """Return the series that a node names, before it is bound; None when the node is something else."""
    if isinstance(node, ast.Name):
        key = SeriesKey(node.id, is_derived=node.id in scope.admitted)
        return key if scope.is_series(node.id) else None
    return _literal_series(node)


def _literal_series(node: ast.AST) -> SeriesKey | None:
    """Return the key that a ``series(...)`` call spells; None unless it is one, and all its arguments are texts."""
    if not isinstance(node, ast.Call) or _called(node) != "series":
        return None
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if len(node.args) != 1 or not set(keywords) <= {"kind"}:
        return None
    texts = [literal_text(argument) for argument in (node.args[0], *keywords.values())]
    if None in texts:
        return None
    name, kind = texts[0] or "", texts[1] if len(texts) > 1 else None
    return SeriesKey(name, kind, is_of_member=is_pattern(name))


def _bind_series_by_name(node: ast.Call, scope: NameScope, found: _Meanings) -> None:
    key = _literal_series(node)
    if key is None:
        fix = 'Write "eval/loss", or series("loss", kind="evaluate").'
        found.refuse(node, "series takes a text, or a param that is one, as its name", fix)
    elif key.kind is not None and not is_kind(key.kind, LOOP_KINDS):
        found.refuse(node, "unknown kind of event", kind_suggestion(key.kind.removeprefix("on_"), LOOP_KINDS))
    else:
        _bind_series(node, key, scope, found)


def _bind_series(node: ast.expr, key: SeriesKey, scope: NameScope, found: _Meanings) -> None:
    """Let a node mean the newest value of a series: of its own rank, or of the rank that ``any_rank`` asks of."""
    if key.is_of_member and not _means_member(node, key, scope, found):
        return
    if not key.is_derived:
        found.named.append((node, key.name))
    if not scope.is_of_ranks:
        found.references[node] = SeriesValue(key)
        found.read_series(key)
    elif key.kind is not None or key.is_derived:
        found.refuse(node, _OWN_RANK if key.is_derived else _NO_KIND)
    else:
        found.references[node] = RankValue(key.name)
        found.read_on_ranks(key.name)


def _means_member(node: ast.expr, key: SeriesKey, scope: NameScope, found: _Meanings) -> bool:
    """Whether a pattern means one member here; if not, it is refused."""
    members = scope.members
    if scope.is_of_ranks:
        found.refuse(node, _NO_PATTERN)
    elif members is None:
        fix = f"Write any({found.expression.segment(node)} > 100) or for_each."
        found.refuse(node, "a pattern means many series", fix)
    elif members.key not in (None, key):
        meant = members.key.name if members.key else ""
        found.refuse(node, f"another pattern than '{meant}'", "An argument, and a rule with for_each, has one.")
    else:
        members.key = key
        found.read_series(key.whole)
        return True
    return False


def _is_of_series(node: ast.Call, function: Function, scope: NameScope) -> bool:
    """Whether a call reads a series, named or to be computed, and not just a number or a list."""
    if not node.args or (function.name not in OF_SERIES):
        return False
    if _series_key(node.args[0], scope):
        return True
    if function.name == "len" or not _is_computed(node.args[0], scope):
        return False
    asks_by_keyword = any(keyword.arg in WINDOW_KEYWORDS for keyword in node.keywords)
    if function.reduction is None or function.name in FOLDS or asks_by_keyword:
        return True
    given = len(node.args) + len(node.keywords)
    return function.name not in TAKE_NUMBERS and given == 2 + len(function.options)


def _is_computed(node: ast.expr, scope: NameScope) -> bool:
    """Whether an expression gives a number for each value of a series."""
    return isinstance(node, _NUMERIC) and _called(node) not in _COLLECTIONS and _reads_series(node, scope)


def _reads_series(node: ast.expr, scope: NameScope) -> bool:
    if _series_key(node, scope) is not None:
        return True
    parts = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return any(_reads_series(part, scope) for part in parts if isinstance(part, ast.expr))


def _bind_series_call(node: ast.Call, function: Function, scope: NameScope, found: _Meanings) -> None:
    """Bind a function of a series, with its window where it takes one."""
    key = _bind_to_series(node.args[0], scope, found)
    if key is None:
        return
    read = OF_SERIES[function.name](Call(node, function, scope, found, key))
    if read is not None:
        found.references[node] = read
        found.read_series(key, read.need)
    for argument in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
        _bind(argument, scope, found)


def _bind_to_series(node: ast.expr, scope: NameScope, found: _Meanings) -> SeriesKey | None:
    """Bind a function's argument and return the series that it gives; None when it is refused.

    A series that must be computed is noted.
    """
    before = len(found.faults)
    _bind(node, scope, found)
    if len(found.faults) > before:
        return None
    reference = found.references.get(node)
    if isinstance(reference, SeriesValue) and _series_key(node, scope) is not None:
        return reference.key
    read = (found.references.get(part) for part in ast.walk(node))
    if any(each is not None and each.is_of_event_alone for each in read):
        found.refuse(node, "a series can be computed from series, params and numbers only")
        return None
    driver = _driver(node, found)
    if driver is None:
        found.refuse(node, "not a series")
        return None
    family = scope.members.key if scope.members is not None and _holds_pattern(node) else None
    key = SeriesKey(found.expression.segment(node), is_derived=True, is_of_member=family is not None)
    found.derived.setdefault(key, Derived(node, driver, family))
    return key


def _driver(node: ast.AST, found: _Meanings) -> SeriesKey | None:
    """Return the first series that a bound expression reads, in the order of its text."""
    reference = found.references.get(node)
    if reference is not None and reference.driver is not None:
        return reference.driver
    keys = (_driver(child, found) for child in ast.iter_child_nodes(node))
    return next((key for key in keys if key is not None), None)


# A family: a function evaluates its argument for each member of a pattern.


def _holds_pattern(node: ast.AST) -> bool:
    """Whether an expression holds a pattern, apart from functions of a family within it."""
    if _called(node) == "series":
        key = _literal_series(node)
        return key is not None and key.is_of_member
    if isinstance(node, ast.Call) and _takes_members(node):
        return False
    return any(map(_holds_pattern, ast.iter_child_nodes(node)))


def _takes_members(node: ast.Call) -> bool:
    """Whether the arguments of a call are those of a function of a family, if the first one holds a pattern."""
    name, first = _called(node), node.args[0] if node.args else None
    if name not in OF_FAMILIES or first is None or isinstance(first, _DISPLAYS) or _called(first) in _COLLECTIONS:
        return False
    given = [*(None for _ in node.args[1:]), *(keyword.arg for keyword in node.keywords)]
    return given in ([None], ["q"]) if name == _QUANTILE else not given


def _bind_family_call(node: ast.Call, function: Function, scope: NameScope, found: _Meanings) -> None:
    share = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
    options = tuple(option for part in share if (option := _bind_share(part, scope, found)) is not None)
    before, members = len(found.faults), Members(is_argument=True)
    _bind(node.args[0], replace(scope, members=members), found)
    outside = {Variable(name) for name in scope.variables.values()}
    for part in ast.walk(node.args[0]):
        if isinstance(part, ast.Name) and found.references.get(part) in outside:
            found.refuse(part, "a function of a family reads no variable of a comprehension around it")
        elif isinstance(part, ast.Call) and isinstance(found.references.get(part), Milestone):
            found.refuse(part, "a milestone is no question about a member", "Ask for it outside, with 'and'.")
    if len(found.faults) == before and members.key is not None and len(options) == len(share):
        text = found.expression.segment(node.args[0])
        found.references[node] = FamilyReading(function.name, members.key, text, options)


def _bind_share(node: ast.expr, scope: NameScope, found: _Meanings) -> float | None:
    """Bind the share of a quantile and return it; None when it is refused."""
    value = number(node, scope)
    _bind(node, scope, found)
    if value is not None and 0 <= value <= 1:
        return float(value)
    found.refuse(node, "'q' must be a number from 0 to 1, known when the rule file loads", "Write q=0.9.")
    return None


# Questions about ranks.


def _bind_rank_call(node: ast.Call, function: Function, scope: NameScope, found: _Meanings) -> None:
    """Bind a function of all ranks: of a condition, or of a series that is named."""
    if len(node.args) != 1 or node.keywords:
        found.refuse(node, f"{function.name} takes one argument", f"Write {function.signature}.")
    elif scope.is_of_ranks:
        found.refuse(node, f"{function.name} cannot be asked within {ANY_RANK}")
    elif function.name == ANY_RANK:
        before = len(found.faults)
        _bind(node.args[0], replace(scope, is_of_ranks=True), found)
        read = (found.references.get(part) for part in ast.walk(node.args[0]))
        if len(found.faults) == before and not any(isinstance(reference, RankValue) for reference in read):
            found.refuse(node, f"{ANY_RANK} reads no series", "Write any_rank(not isfinite(loss)).")
        found.references[node] = AcrossRanks(ANY_RANK)
    else:
        _bind_rank_series(node, function, scope, found)


def _bind_rank_series(node: ast.Call, function: Function, scope: NameScope, found: _Meanings) -> None:
    key = _series_key(node.args[0], scope)
    if key is None:
        found.refuse(node.args[0], f"{function.name} takes a series", f"Write {function.signature}.")
    elif key.kind is not None or key.is_derived:
        found.refuse(node.args[0], _OWN_RANK if key.is_derived else _NO_KIND)
    elif key.is_of_member:
        found.refuse(node.args[0], _NO_PATTERN)
    else:
        found.references[node] = AcrossRanks(function.name, key.name)
        found.named.append((node.args[0], key.name))
        found.read_on_ranks(key.name)


# The verdict.


def _check_verdict(tree: ast.expr, found: _Meanings) -> None:
    """Refuse a rule that can never give True or False."""
    kind = _never_bool(tree, found)
    if kind:
        has_comma = isinstance(tree, ast.Tuple) and _DECIMAL_COMMA.search(found.expression.text)
        fix = "A decimal number takes a point, as in 2.5." if has_comma else "Compare it, as in loss > 3.0."
        found.refuse(tree, f"a rule must give True or False; this one gives {kind}", fix)


def _never_bool(node: ast.expr, found: _Meanings) -> str:
    """Return what an expression gives in place of a truth value; empty where it may give one."""
    reference = found.references.get(node)
    if reference is not None:
        return _in_place_of_truth(reference)
    if isinstance(node, ast.Constant):
        return "" if isinstance(node.value, bool) else "a constant"
    if isinstance(node, ast.BinOp):
        return "" if isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)) else "a number"
    if isinstance(node, ast.JoinedStr):
        return "a text"
    return "a collection" if isinstance(node, _DISPLAYS) else ""


def _in_place_of_truth(reading: Reading) -> str:
    if reading.value_type in (ValueType.TRUTH, ValueType.UNKNOWN):
        return ""
    if reading.is_constant:
        return "a constant"
    return "a text" if reading.value_type is ValueType.TEXT else "a number"


# What the author probably meant, where Python allows an expression that a rule does not.


def _instead_of_part(expression: Expression, node: ast.expr) -> str:
    """Return what to write for a series with a dot, or with an index from the end; empty for anything else."""
    if isinstance(node, ast.Attribute) and node.attr not in FUNCTIONS:
        return f'Write "{expression.segment(node)}" to read the metric of that name.'
    match node:
        case ast.Subscript(slice=ast.Constant(str(name))):
            return f'Write {name}, or series("{name}", kind="log").' if name.isidentifier() else f'Write "{name}".'
    back = constant(node.slice, NameScope()) if isinstance(node, ast.Subscript) else None
    if not isinstance(node, ast.Subscript) or not isinstance(back, int) or back >= 0:
        return ""
    series = expression.segment(node.value)
    if back == -1:
        return f"Write {series} for the newest value."
    return f"Write lag({series}, {-back - 1}), or delta({series}) for the newest change."


def _instead_of_module_call(expression: Expression, node: ast.Call, name: str) -> str:
    """Return what to write for a call such as ``np.mean(loss, 50)``, whose function is called ``name``."""
    function = name if name in FUNCTIONS else habits.FUNCTIONS.get(name, "")
    if function in FUNCTIONS:
        return f"Write {function}({', '.join(map(expression.segment, node.args))})."
    return _instead_of_call(expression, node, name)


def _instead_of_call(expression: Expression, node: ast.Call, name: str) -> str:
    """Return what to write for a function that is called ``name`` and that is none."""
    fix = suggestion(name, FUNCTIONS, habits.FUNCTIONS)
    return fix.replace("{}", ", ".join(map(expression.segment, node.args)))
