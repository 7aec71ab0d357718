"""Compiles a bound rule to Python code that computes the same as simpleeval, some forty times faster.

Takes a bound rule; returns a tree or a code object that reads series, windows and metrics by generated names, which
each engine binds to its own values. Comparisons, boolean logic, subscripts, and arithmetic on operands known to be
floats compile to native operators. Everything that could grow out of bounds calls a guard. The code has no builtins,
and no name in it comes from the policy file.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from types import CodeType, MappingProxyType
from typing import Any, Final, NamedTuple

from ..functions.operators import GUARDED
from ..functions.plain_functions import call_method, formatted, joined, rendered
from ..functions.undefined import Undefined
from ..language.bound_rule import BoundRule
from ..language.rule_parts import gives_float, needs_no_guard
from ..readings.generated import EVENT, attribute, call, name
from ..readings.reading import MAX_EXACT, ArgumentCode, Names, Reading, SeriesReading
from ..readings.table import FUNCTIONS

#: The answer of a rule that was true and whose gate has let it pass.
FIRED: Final = object()


class ClearAnswer(NamedTuple):
    """What the ``clear`` of a raised controller gave, if that is not False; or the exception in its place."""

    given: object


def _not_full() -> float:
    raise Undefined("the window is not full")


#: Generated names that mean the same in every engine.
CONSTANT_NAMES: Final[dict[str, Any]] = {
    "__builtins__": {},
    "LookupError": LookupError,
    "Exception": Exception,
    "len": len,
    "sum": sum,
    "call_method": call_method,
    "joined": joined,
    "rendered": rendered,
    "formatted": formatted,
    "not_full": _not_full,
    "FIRED": FIRED,
    "ClearAnswer": ClearAnswer,
    **{f"f_{function.name}": function.plain for function in FUNCTIONS.values() if function.plain},
    **{f"w_{function.name}": function.reduction for function in FUNCTIONS.values() if function.reduction},
    **{f"op_{operator.__name__}": guard for operator, guard in GUARDED.items()},
}


class Translator:
    """Rewrites syntax trees of one rule into trees of generated names; the input trees stay unchanged.

    Args:
        rule: The rule.
        names: The generated names of its policy.
        wants_full_windows: Whether a window that is not full is undefined, as it is within a computed series.
        shared: Local variables of the code around it, for windows that are worth reading only once per event.
    """

    def __init__(
        self,
        rule: BoundRule,
        names: Names,
        *,
        wants_full_windows: bool = False,
        shared: Mapping[SeriesReading, str] = MappingProxyType({}),
    ) -> None:
        self._rule = rule
        self.names = names
        self.wants_full_windows = wants_full_windows
        self._shared = shared
        self._is_inside_comprehension = False

    def code(self, tree: ast.expr) -> CodeType:
        """Return the code of a function of the event that returns the tree's value."""
        return self._function(tree, self.body(tree))

    def _function(self, tree: ast.expr, body: ast.expr) -> CodeType:
        argument = ast.arguments(posonlyargs=[], args=[ast.arg(EVENT)], kwonlyargs=[], kw_defaults=[], defaults=[])
        function = ast.copy_location(ast.Lambda(argument, body), self._rule.expression.anchor(tree))
        return compile_tree(ast.Expression(function))

    def body(self, tree: ast.expr) -> ast.expr:
        """Return the tree in generated names; a tree with comprehensions first renews their budget."""
        body: ast.expr = self.translated(tree)
        if any(isinstance(node, ast.comprehension) for node in ast.walk(tree)):
            # Comprehensions have one budget per evaluation: (budget.renew(), body)[1].
            renewal = call(attribute(name("budget"), "renew"))
            body = ast.Subscript(ast.Tuple([renewal, body], ast.Load()), ast.Constant(1), ast.Load())
        return body

    def translated(self, node: Any) -> Any:
        """Return the node in generated names and guarded operators; a list is translated item by item."""
        if isinstance(node, list):
            return [self.translated(item) for item in node]
        if not isinstance(node, (ast.expr, ast.comprehension)):
            return node
        reference = self._rule.references.get(node)
        if reference is not None:
            assert isinstance(node, ast.expr)
            new: ast.AST = reference.live(self, node)
        else:
            new = self._rewritten(node)
        if isinstance(new, ast.expr):
            new = folded(new, CONSTANT_NAMES)
        if isinstance(node, ast.expr):
            ast.copy_location(new, self._rule.expression.anchor(node))
        return new

    def _rewritten(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._called(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.List():
                return self._list(node)
            case ast.GeneratorExp() | ast.ListComp() | ast.DictComp():
                return self._comprehended(node)
            case ast.comprehension():
                return self._comprehension(node)
            case ast.JoinedStr():
                return call(name("joined"), *self.translated(node.values))
            case ast.FormattedValue():
                return self._formatted(node)
            case _:
                return self._rebuilt(node)

    def _rebuilt(self, node: ast.AST) -> ast.AST:
        return type(node)(**{field: self.translated(value) for field, value in ast.iter_fields(node)})

    # --- what readings ask for ----------------------------------------------------------------------------------

    def once(self, reading: SeriesReading, value: ast.expr) -> ast.expr:
        """Return the value of a reading from a local variable, where an earlier rule has stored it."""
        local = None if self._is_inside_comprehension else self._shared.get(reading)
        if local is None:
            return value
        is_known = ast.Compare(name(local), [ast.IsNot()], [ast.Constant(None)])
        return ast.IfExp(is_known, name(local), ast.NamedExpr(ast.Name(local, ast.Store()), value))

    def of_rank(self, condition: ast.expr) -> ast.expr:
        """Return a condition that is asked of each rank."""
        outer, self._is_inside_comprehension = self._is_inside_comprehension, True
        translated: ast.expr = self.translated(condition)
        self._is_inside_comprehension = outer
        return translated

    def of_members(self, reading: Reading, argument: ast.expr) -> str:
        """Return the name of a function of the event that evaluates an argument for each member of a family."""
        known, key = self.names.arguments, (reading, self.wants_full_windows)
        if key not in known:
            # Comprehensions within it count for the budget of the rule around it. What is compiled may read other
            # functions of families, which then have their names first.
            inner = Translator(self._rule, self.names, wants_full_windows=self.wants_full_windows)
            code = inner._function(argument, inner.translated(argument))
            read = (self._rule.references.get(part) for part in ast.walk(argument))
            is_stable = not any(each is not None and each.changes_within_event for each in read)
            known[key] = ArgumentCode(f"z{len(known)}", code, is_stable)
        return known[key].name

    # --- rewritten nodes ----------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Subscript(self.translated(node.value), ast.Constant(node.attr), ast.Load())

    def _called(self, node: ast.Call) -> ast.expr:
        arguments = self.translated(node.args)
        if isinstance(node.func, ast.Attribute):
            target = self.translated(node.func.value)
            return call(name("call_method"), target, ast.Constant(node.func.attr), *arguments)
        assert isinstance(node.func, ast.Name)
        keywords = [ast.keyword(keyword.arg, self.translated(keyword.value)) for keyword in node.keywords]
        return ast.Call(name(f"f_{node.func.id}"), arguments, keywords)

    def _binary(self, node: ast.BinOp) -> ast.expr:
        left, right = self.translated(node.left), self.translated(node.right)
        if type(node.op) in GUARDED and not needs_no_guard(node, self._rule):
            return call(name(f"op_{type(node.op).__name__}"), left, right)
        if gives_float(node.left, self._rule):
            right = _as_float(right)
        elif gives_float(node.right, self._rule):
            left = _as_float(left)
        return ast.BinOp(left, node.op, right)

    def _list(self, node: ast.List) -> ast.expr:
        """Translate a list; its starred items become guarded additions."""
        if not any(isinstance(item, ast.Starred) for item in node.elts):
            return ast.List(self.translated(node.elts), node.ctx)
        result: ast.expr = ast.List([], ast.Load())
        for item in node.elts:
            part = (
                call(name("f_list"), self.translated(item.value))
                if isinstance(item, ast.Starred)
                else ast.List([self.translated(item)], ast.Load())
            )
            result = call(name("op_Add"), result, part)
        return result

    def _comprehended(self, node: ast.GeneratorExp | ast.ListComp | ast.DictComp) -> ast.expr:
        outer, self._is_inside_comprehension = self._is_inside_comprehension, True
        if isinstance(node, ast.DictComp):
            new: ast.expr = ast.DictComp(self._paid(node.key), self._paid(node.value), self.translated(node.generators))
        else:
            new = ast.ListComp(self._paid(node.elt), self.translated(node.generators))
        self._is_inside_comprehension = outer
        return new

    def _comprehension(self, node: ast.comprehension) -> ast.comprehension:
        visited = call(attribute(name("budget"), "visited"), self.translated(node.iter))
        return ast.comprehension(self.translated(node.target), visited, self.translated(node.ifs), 0)

    def _paid(self, node: ast.expr) -> ast.expr:
        """Translate a part of a comprehension's result, which is charged to the budget unless it is a float."""
        part: ast.expr = self.translated(node)
        if gives_float(node, self._rule):
            return part
        return call(attribute(name("budget"), "held"), part)

    def _formatted(self, node: ast.FormattedValue) -> ast.expr:
        value = self.translated(node.value)
        if node.format_spec is None:
            return call(name("rendered"), value)
        return call(name("formatted"), value, self.translated(node.format_spec))


def compile_tree(tree: ast.Expression | ast.Module) -> CodeType:
    """Return the code of the one function that a tree holds."""
    with warnings.catch_warnings():
        # Python warns about odd code, such as an index that is not a whole number; a rule either loads or does not.
        warnings.simplefilter("ignore")
        mode = "eval" if isinstance(tree, ast.Expression) else "exec"
        module = compile(ast.fix_missing_locations(tree), "<rule>", mode)
    return next(constant for constant in module.co_consts if isinstance(constant, CodeType))


def _as_float(node: ast.expr) -> ast.expr:
    """Return a whole constant next to a float as the float that arithmetic converts it to, which is faster.

    Any other node is returned unchanged.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= MAX_EXACT:
        return ast.copy_location(ast.Constant(float(node.value)), node)
    return node


#: How the generated names of functions and guards begin, which give the same for the same arguments.
_PURE: Final = ("f_", "op_")


def folded(node: ast.expr, variables: Mapping[str, Any]) -> ast.expr:
    """Return a constant in place of a call or an operation whose operands are constants; any other node unchanged.

    What fails is left as it is, so that it fails when the rule is evaluated. So is what gives no number.

    Args:
        node: A node of generated code, whose parts are folded.
        variables: The functions and guards, by generated name.
    """
    if not _is_constant_operation(node):
        return node
    try:
        value = eval(compile(ast.fix_missing_locations(ast.Expression(node)), "<constant>", "eval"), dict(variables))
    except Exception:  # A rule may fail in any way.
        return node
    return ast.Constant(value) if type(value) in (int, float, bool) else node


def _is_constant_operation(node: ast.expr) -> bool:
    match node:
        case ast.BinOp(left, _, right):
            return _is_constant(left) and _is_constant(right)
        case ast.UnaryOp(_, operand):
            return _is_constant(operand)
        case ast.Call(ast.Name(name), arguments, []):
            return name.startswith(_PURE) and all(map(_is_constant, arguments))
    return False


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Tuple):
        return all(map(_is_constant, node.elts))
    return isinstance(node, ast.Constant)
