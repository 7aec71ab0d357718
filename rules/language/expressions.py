"""Parses the text of a rule into a syntax tree that holds only what the language allows.

Takes a text; returns an ``Expression``. The language is the pure part of what simpleeval's ``EvalWithCompoundTypes``
accepts. All faults of a text are found together, each with its offset in the text.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any, Final

from ..errors import ExpressionError, Fault
from ..functions.operators import ALLOWED
from ..habits import SIGNS, TWO_WORDS

MAX_RULE_LENGTH: Final = 10_000
MAX_EXPRESSION_DEPTH: Final = 100

_OPERATION: Final = "A rule is one expression without side effects"

#: The series of the learning rate whose names are written with a dot.
_RATE: Final = "lr"
_RATES: Final = ("base", "scheduled", "used")

#: A text in a rule, as far as one can be told in a rule that does not parse.
COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.DictComp)
#: A text in quotes, in an expression without escapes.
QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")

#: Node types of the language; operators and contexts are allowed with them.
_ALLOWED: Final = (
    ast.Attribute,
    ast.BinOp,
    ast.BoolOp,
    ast.Call,
    ast.Compare,
    ast.Constant,
    ast.Dict,
    ast.DictComp,
    ast.FormattedValue,
    ast.GeneratorExp,
    ast.IfExp,
    ast.JoinedStr,
    ast.List,
    ast.ListComp,
    ast.Name,
    ast.Set,
    ast.Slice,
    ast.Starred,
    ast.Subscript,
    ast.Tuple,
    ast.UnaryOp,
)

_REFUSED: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Lambda: ("lambda is not allowed", "Write the expression itself."),
    ast.NamedExpr: ("assignment inside a rule is not allowed", "Write the expression again where you need it."),
    ast.Await: ("await is not allowed", ""),
    ast.Yield: ("yield is not allowed", ""),
    ast.YieldFrom: ("yield is not allowed", ""),
    ast.SetComp: ("a set comprehension is not available", "Write set([... for ... in ...])."),
}


class Expression:
    """A rule's text and its tree.

    Attributes:
        text: As in the file, escapes and folding resolved.
        tree: The tree of the text.
        defined: The names in the text whose definitions the tree holds, by the root of each.
    """

    def __init__(self, text: str, tree: ast.expr, parsed: str) -> None:
        self.text = text
        self.tree = tree
        self._lead = len(text) - len(text.lstrip())
        self._lines = parsed.split("\n")
        # Nodes that stand elsewhere in the text: those of a definition at its name, and those inside an f-string, to
        # which Python 3.11 gives a wrong position, at the f-string.
        self._anchors: dict[ast.AST, ast.expr] = {}
        self._origins: dict[ast.AST, tuple[Expression, ast.expr]] = {}
        self.defined: dict[ast.AST, str] = {}
        self._in_params: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                for inner in ast.walk(node):
                    self._anchors.setdefault(inner, node)

    def anchor(self, node: ast.expr) -> ast.expr:
        """Return the node whose place counts: the outermost f-string or defined name around it, or itself."""
        return self._anchors.get(node, node)

    def offset(self, node: ast.expr) -> int:
        """Return where the node begins, in characters of the text."""
        anchor = self.anchor(node)
        return self.offset_at(anchor.lineno, anchor.col_offset)

    def end(self, node: ast.expr) -> int:
        """Return where the node ends, in characters of the text."""
        anchor = self.anchor(node)
        return self.offset_at(anchor.end_lineno or anchor.lineno, anchor.end_col_offset or anchor.col_offset)

    def offset_at(self, line: int, column: int) -> int:
        """Return the offset of a position as Python gives it: the line from 1, the column in bytes from 0."""
        before = sum(len(text) + 1 for text in self._lines[: line - 1])
        inside = len(self._lines[line - 1].encode()[:column].decode(errors="ignore"))
        return self._lead + before + inside

    def graft(self, place: ast.expr, definition: Expression, name: str) -> ast.expr:
        """Return a copy of a definition's tree that has a place in this text, and a name that stands for it."""
        copies: dict[ast.AST, ast.AST] = {}
        root: ast.expr = _copied(definition.tree, copies)
        for node, copy in copies.items():
            self._anchors[copy] = self.anchor(place)
            if isinstance(node, ast.expr):
                self._origins[copy] = definition, node
            if node in definition.defined:
                self.defined[copy] = definition.defined[node]
        self.defined[root] = name
        return root

    def put_series(self, text: ast.Constant) -> None:
        """Put the series that a text names in place of the text."""
        call = _series_named(str(text.value), text)
        for parent in ast.walk(self.tree):
            for name, value in ast.iter_fields(parent):
                if isinstance(value, list):
                    value[:] = [call if part is text else part for part in value]
                elif value is text:
                    setattr(parent, name, call)
        for part in ast.walk(call):
            self._anchors[part] = self.anchor(text)

    def place_of_name(self, node: ast.expr) -> tuple[int, int] | None:
        """Return where the name of a series begins and ends in the text.

        None within a definition or an f-string, and for a name in a param.
        """
        anchor = self.anchor(node)
        if node in self._origins or node in self._in_params or isinstance(anchor, ast.JoinedStr):
            return None
        if isinstance(node, ast.Call):
            anchor = node.args[0] if anchor is node else anchor
            if not isinstance(anchor, ast.Constant):
                return None
        return self.offset(anchor), self.end(anchor)

    def put_name(self, call: ast.Call, metric: str) -> None:
        """Put the name of a metric in place of the param that a call of ``series`` names."""
        name = ast.copy_location(ast.Constant(metric), call.args[0])
        self._anchors[name] = self.anchor(call.args[0])
        call.args[0] = name
        self._in_params.add(call)

    def segment(self, node: ast.expr) -> str:
        """Return the node's own text, every run of blanks as one space, or the name that stands for it."""
        if node in self.defined:
            return self.defined[node]
        if node in self._origins:
            definition, original = self._origins[node]
            return definition.segment(original)
        return " ".join(self.text[self.offset(node) : self.end(node)].split())

    def fault(self, node: ast.expr, what: str, fix: str = "") -> Fault:
        """Return a fault at a node, showing its text."""
        return Fault(self.offset(node), what, repr(self.segment(node)), fix)


def links_of(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """Yield the comparisons of a chain."""
    operands = [node.left, *node.comparators]
    return zip(operands, node.ops, operands[1:], strict=False)


class ExpressionFaults:
    """Collects what is wrong with an expression.

    Attributes:
        expression: The expression.
        faults: Its faults, in the order in which they are found.
    """

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        self.faults: list[Fault] = []

    def refuse(self, node: ast.expr, what: str, fix: str = "") -> None:
        """Note that a node is wrong, why, and how to mend it."""
        self.faults.append(self.expression.fault(node, what, fix))

    def segment(self, node: ast.expr) -> str:
        """Return the text of a node."""
        return self.expression.segment(node)


def _copied(node: Any, copies: dict[ast.AST, ast.AST]) -> Any:
    """Return a copy of a tree, and note the copy of each of its nodes."""
    if isinstance(node, list):
        return [_copied(item, copies) for item in node]
    if not isinstance(node, ast.AST):
        return node
    copy = type(node)(**{name: _copied(value, copies) for name, value in ast.iter_fields(node)})
    copies[node] = ast.copy_location(copy, node)
    return copy


def parse(text: str, *, has_rates: bool = False) -> Expression:
    """Parse the text of a rule.

    Args:
        text: The text.
        has_rates: Whether ``lr.used`` and kin mean the series of these names.

    Raises:
        ExpressionError: The text is empty, too long, not an expression, or holds something that the language lacks.
    """
    _check_text(text)
    parsed = text.replace("\r", " ").strip()
    with warnings.catch_warnings():
        # Python warns about odd escapes and comparisons; a rule either loads or does not.
        warnings.simplefilter("ignore")
        tree, parsed = _parsed(parsed, len(text) - len(text.lstrip()))
    expression = Expression(text, _with_rates(tree) if has_rates else tree, parsed)
    faults = list(_faults(expression))
    if faults:
        raise ExpressionError(faults)
    return expression


def _with_rates(tree: ast.expr) -> ast.expr:
    """Return a tree with ``series("lr.used")`` in place of ``lr.used``. Its depth does not matter."""
    root = ast.Expression(tree)
    for node in ast.walk(root):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [_rate(part) for part in value]
            else:
                setattr(node, name, _rate(value))
    return root.body


def _rate(node: Any) -> Any:
    """Return the series that a rate's name means, or what it was given."""
    is_rate = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == _RATE
    if not is_rate or node.attr not in _RATES:
        return node
    return _series_named(f"{_RATE}.{node.attr}", node)


def _series_named(metric: str, place: ast.expr) -> ast.Call:
    """Return the call that names a series, at the place of a node."""
    name = ast.Constant(metric)
    call = ast.Call(ast.Name("series", ast.Load()), [name], [])
    for part in (call, call.func, name):
        ast.copy_location(part, place)
    return call


def _check_text(text: str) -> None:
    if not text.strip():
        raise ExpressionError([Fault(0, "a rule cannot be empty", None, "Write True to fire at every trigger.")])
    if len(text) > MAX_RULE_LENGTH:
        raise ExpressionError([Fault(0, f"longer than {MAX_RULE_LENGTH:,} characters", str(len(text)))])
    if "__" in text:
        raise ExpressionError([Fault(text.index("__"), "two underscores in a row are not allowed in a rule")])


def _parsed(text: str, lead: int) -> tuple[ast.expr, str]:
    """Return the tree and the text that it was parsed from.

    Lines are joined into one if they do not parse as written, unless they hold comments.
    """
    attempts = [text] if "\n" not in text or "#" in text else [text, text.replace("\n", " ")]
    failure: Fault | None = None
    for attempt in attempts:
        try:
            return ast.parse(attempt, mode="eval").body, attempt
        except SyntaxError as error:
            failure = _syntax_fault(attempt, error, lead)
        except ValueError as error:
            failure = Fault(lead, f"not an expression, {error}")
        except (RecursionError, MemoryError):
            failure = Fault(lead, f"nested deeper than {MAX_EXPRESSION_DEPTH} levels")
    assert failure is not None
    raise ExpressionError([failure])


def _syntax_fault(text: str, error: SyntaxError, lead: int) -> Fault:
    lines = text.split("\n")
    line = min(max(error.lineno or 1, 1), len(lines))
    column = min(max((error.offset or 1) - 1, 0), len(lines[line - 1]))
    position = sum(len(before) + 1 for before in lines[: line - 1]) + column
    foreign = _foreign_sign(text, position)
    if foreign is not None:
        return replace(foreign, offset=lead + foreign.offset)
    offset = lead + position
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        statements = []
    words = TWO_WORDS.search(_without_texts(text)) if not statements else None
    if words is not None:
        fix = "An operator after it is missing, or the quotes of a metric whose name has a blank."
        return Fault(lead + words.start(), "not an expression", repr(words[0]), fix)
    if not statements:
        return Fault(min(offset, lead + len(text) - 1), f"not an expression, {error.msg}")
    second = statements[1] if len(statements) > 1 else statements[0]
    start = sum(len(before) + 1 for before in lines[: second.lineno - 1])
    start += len(lines[second.lineno - 1].encode()[: second.col_offset].decode(errors="ignore"))
    what = "more than one statement" if len(statements) > 1 else "not an expression"
    return Fault(lead + start, what, repr(ast.get_source_segment(text, second)), f"{_OPERATION}.")


def _foreign_sign(text: str, position: int) -> Fault | None:
    """Return a fault at the first sign of another language in a text that does not parse.

    Args:
        position: Where Python stopped.
    """
    masked = _without_texts(text)
    found = [(match.start(), match[0], fix) for sign, fix in SIGNS if (match := sign.search(masked))]
    if not found and masked[position : position + 1] == "=":
        found.append((position, "=", "To compare, write ==."))
    if not found:
        return None
    start, sign, fix = min(found, key=lambda entry: entry[0])
    return Fault(start, "not an expression", repr(sign), fix)


def _without_texts(text: str) -> str:
    """Return the text with each text in it replaced by blanks."""
    return QUOTED.sub(lambda quoted: " " * len(quoted[0]), text)


def _faults(expression: Expression) -> Iterator[Fault]:
    """Yield what the tree holds beyond the language, outermost first; nodes below a refused one are not checked."""
    waiting: list[tuple[ast.AST, ast.AST | None, int]] = [(expression.tree, None, 1)]
    while waiting:
        node, parent, depth = waiting.pop()
        if isinstance(node, ast.expr):
            if depth > MAX_EXPRESSION_DEPTH:
                yield expression.fault(node, f"nested deeper than {MAX_EXPRESSION_DEPTH} levels")
                return
            fault = _objection(expression, node, parent)
            if fault is not None:
                yield fault
                continue
        children = [(child, node, depth + 1) for child in ast.iter_child_nodes(node)]
        waiting.extend(reversed(children))


def _objection(expression: Expression, node: ast.expr, parent: ast.AST | None) -> Fault | None:
    if type(node) in _REFUSED:
        what, fix = _REFUSED[type(node)]
        return expression.fault(node, what, fix)
    if not isinstance(node, _ALLOWED):
        return expression.fault(node, f"{type(node).__name__} is not allowed")
    check = _CHECKS.get(type(node))
    return check(expression, node, parent) if check else None


def _check_attribute(expression: Expression, node: ast.expr, _: ast.AST | None) -> Fault | None:
    assert isinstance(node, ast.Attribute)
    if node.attr.startswith("_") or "__" in node.attr:
        return expression.fault(node, "names that begin with an underscore are not allowed")
    return None


def _check_name(expression: Expression, node: ast.expr, _: ast.AST | None) -> Fault | None:
    assert isinstance(node, ast.Name)
    return expression.fault(node, "two underscores in a row are not allowed in a rule") if "__" in node.id else None


def _check_binary(expression: Expression, node: ast.expr, _: ast.AST | None) -> Fault | None:
    assert isinstance(node, ast.BinOp)
    return None if type(node.op) in ALLOWED else expression.fault(node, "operator not allowed")


def _check_starred(expression: Expression, node: ast.expr, parent: ast.AST | None) -> Fault | None:
    if isinstance(parent, ast.List):
        return None
    fix = "Functions that take many values take a list." if isinstance(parent, ast.Call) else "Write a list."
    return expression.fault(node, "a star is allowed only inside a list", fix)


def _check_call(expression: Expression, node: ast.expr, _: ast.AST | None) -> Fault | None:
    assert isinstance(node, ast.Call)
    if not isinstance(node.func, (ast.Name, ast.Attribute)):
        return expression.fault(node.func, "only named functions can be called")
    if any(keyword.arg is None for keyword in node.keywords):
        return expression.fault(node, "keyword arguments must be written out")
    return None


def _check_compare(expression: Expression, node: ast.expr, _: ast.AST | None) -> Fault | None:
    assert isinstance(node, ast.Compare)
    operands = [node.left, *node.comparators]
    for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
        if isinstance(operator, (ast.Is, ast.IsNot)) and not (_is_singleton(left) or _is_singleton(right)):
            is_nan = any(isinstance(side, ast.Name) and side.id.lower() in ("nan", "inf") for side in (left, right))
            fix = "Write not isfinite(loss)." if is_nan else "Write == or !=."
            return expression.fault(node, "'is' compares only with None, True and False", fix)
    return None


def _is_singleton(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))


def _check_formatted(expression: Expression, node: ast.expr, _: ast.AST | None) -> Fault | None:
    assert isinstance(node, ast.FormattedValue)
    if node.conversion in (-1, ord("s")):
        return None
    return expression.fault(node, "only !s is available in an f-string")


def _check_comprehension(expression: Expression, node: ast.expr, _: ast.AST | None) -> Fault | None:
    assert isinstance(node, COMPREHENSIONS)
    for generator in node.generators:
        if generator.is_async:
            return expression.fault(node, "async is not allowed")
        for target in ast.walk(generator.target):
            if isinstance(target, ast.expr) and not isinstance(target, (ast.Name, ast.Tuple, ast.List)):
                return expression.fault(target, "a comprehension can assign only to plain names")
    return None


_CHECKS: Final[dict[type[ast.expr], Callable[[Expression, ast.expr, ast.AST | None], Fault | None]]] = {
    ast.Attribute: _check_attribute,
    ast.BinOp: _check_binary,
    ast.Call: _check_call,
    ast.Compare: _check_compare,
    ast.DictComp: _check_comprehension,
    ast.FormattedValue: _check_formatted,
    ast.GeneratorExp: _check_comprehension,
    ast.ListComp: _check_comprehension,
    ast.Name: _check_name,
    ast.Starred: _check_starred,
}


#: The most nodes of an expression whose names have been replaced.
MAX_NODES: Final = 20_000


def in_order(definitions: Mapping[str, Expression]) -> list[str]:
    """Return the names of definitions, each after those that it reads.

    Raises:
        graphlib.CycleError: Some read each other in a circle, which is its second argument.
    """
    read = {name: {free.id for free in _free_names(each.tree)} for name, each in definitions.items()}
    return list(TopologicalSorter({name: sorted(names & read.keys()) for name, names in read.items()}).static_order())


def expand(expression: Expression, definitions: Mapping[str, Expression | None]) -> None:
    """Put the trees of definitions, which are expanded themselves, in place of their names.

    Args:
        expression: It changes.
        definitions: Expressions by name; None for one that was refused.

    Raises:
        ExpressionError: The result is too large or nested too deep. Without a fault, if a definition was refused.
    """
    names = [name for name in _free_names(expression.tree) if name.id in definitions]
    if not names:
        return
    meant = {name.id: definition for name in names if (definition := definitions[name.id]) is not None}
    if len(meant) < len({name.id for name in names}):
        raise ExpressionError([])
    sizes = {name: sum(1 for _ in ast.walk(definition.tree)) for name, definition in meant.items()}
    if sum(sizes[name.id] for name in names) > MAX_NODES:
        raise ExpressionError([Fault(0, f"more than {MAX_NODES:,} parts, with what its names mean")])
    expression.tree = _Replacement({name: expression.graft(name, meant[name.id], name.id) for name in names}).visit(
        expression.tree
    )
    if _depth(expression.tree) > MAX_EXPRESSION_DEPTH:
        raise ExpressionError([Fault(0, f"deeper than {MAX_EXPRESSION_DEPTH} levels, with what its names mean")])


def _free_names(node: ast.AST, hidden: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Yield the names that a tree reads, apart from its own variables and the functions that it calls."""
    if isinstance(node, ast.Name):
        if node.id not in hidden:
            yield node
    elif isinstance(node, ast.Call):
        called = () if isinstance(node.func, ast.Name) else (node.func,)
        for part in (*called, *node.args, *node.keywords):
            yield from _free_names(part, hidden)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.DictComp):
        for generator in node.generators:
            yield from _free_names(generator.iter, hidden)
            hidden |= {each.id for each in ast.walk(generator.target) if isinstance(each, ast.Name)}
            for condition in generator.ifs:
                yield from _free_names(condition, hidden)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            yield from _free_names(part, hidden)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _free_names(child, hidden)


def _depth(node: ast.AST) -> int:
    depth = max(map(_depth, ast.iter_child_nodes(node)), default=0)
    return depth + isinstance(node, ast.expr)


class _Replacement(ast.NodeTransformer):
    def __init__(self, copies: Mapping[ast.AST, ast.expr]) -> None:
        self._copies = copies

    def visit_Name(self, node: ast.Name) -> Any:
        return self._copies.get(node, node)
