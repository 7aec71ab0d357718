"""A call in a rule, and what its arguments ask for when a policy loads: constants, lengths, names.

Each answer is None after a fault has been noted.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ..errors import suggestion
from ..functions.plain_functions import Function
from .reading import MAX_WINDOW, Extent, Param, SeriesKey

#: The longest window by steps, in steps. Operands beyond this are not folded either: no length is so large.
MAX_STEPS: Final = 10**12

_FOLDABLE: Final = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)

#: The keyword of each unit of a window.
EXTENTS: Final = {"last": Extent.VALUES} | {str(extent): extent for extent in Extent if extent is not Extent.VALUES}
#: The units of windows whose lengths need not be whole numbers.
_MEASURED: Final = (Extent.EPOCHS, Extent.SECONDS)
#: Keywords that only the window form of a function takes.
WINDOW_KEYWORDS: Final = frozenset((*EXTENTS, "skip", "half", "min", "per"))


_NO_SERIES: Final = SeriesKey("")


class CallScope(Protocol):
    """The names around a call."""

    @property
    def params(self) -> Mapping[str, Param]:
        """Params with their values."""

    @property
    def controllers(self) -> Collection[str]:
        """Names of the controllers."""

    @property
    def above(self) -> Collection[str]:
        """Names of the controllers above in the file."""

    @property
    def states(self) -> Collection[str]:
        """Names of the states."""

    @property
    def owner(self) -> str:
        """The controller or state whose expression is bound; empty if milestones mean nothing there."""

    def param(self, name: str) -> Param | None:
        """Return the param that a name means; None where a variable or a controller metric hides it."""


class Faults(Protocol):
    """Takes what is wrong with an expression."""

    def refuse(self, node: ast.expr, what: str, fix: str = "") -> None:
        """Note that a node is wrong, why, and how to mend it."""

    def segment(self, node: ast.expr) -> str:
        """Return the text of a node."""


def literal_text(node: ast.AST) -> str | None:
    """Return the value of a text; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def constant(node: ast.expr, scope: CallScope) -> Param | None:
    """Return the value of a number, a param, or arithmetic on whole ones of them; None for anything else."""
    match node:
        case ast.Constant(value) if isinstance(value, (int, float)):
            return value
        case ast.Name(name):
            return scope.param(name)
        case ast.UnaryOp(ast.USub(), operand):
            value = constant(operand, scope)
            return -value if isinstance(value, (int, float)) else None
        case ast.BinOp(left, sign, right) if isinstance(sign, _FOLDABLE):
            return _folded(sign, constant(left, scope), constant(right, scope))
    return None


def number(node: ast.expr, scope: CallScope) -> int | float | None:
    """Return the value of a constant expression that is a number, and no truth value; None for any other."""
    value = constant(node, scope)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _folded(sign: ast.operator, left: Param | None, right: Param | None) -> int | None:
    if not isinstance(left, int) or not isinstance(right, int) or max(abs(left), abs(right)) > MAX_STEPS:
        return None
    if isinstance(sign, (ast.FloorDiv, ast.Mod)):
        if right == 0:
            return None
        return left // right if isinstance(sign, ast.FloorDiv) else left % right
    if isinstance(sign, ast.Mult):
        return left * right
    return left + right if isinstance(sign, ast.Add) else left - right


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, whose arguments are to be read.

    Attributes:
        node: The call.
        function: The function.
        scope: The names around it.
        faults: Takes the faults.
        key: The series that its first argument gives, for a function of a series.
    """

    node: ast.Call
    function: Function
    scope: CallScope
    faults: Faults
    key: SeriesKey = _NO_SERIES

    @property
    def further(self) -> list[ast.expr]:
        """The positional arguments after the first."""
        return self.node.args[1:]

    @property
    def keywords(self) -> dict[str, ast.expr]:
        """The keyword arguments."""
        return {keyword.arg or "": keyword.value for keyword in self.node.keywords}

    def refuse_arguments(self, more: str = "") -> None:
        """Refuse the arguments of a function of a series."""
        what = f"{self.function.name} of a series does not take these arguments"
        self.faults.refuse(self.node, what, f"{more}Write {self.function.signature}.")

    def named(self, asked_of: str) -> str | None:
        """Return the name that is the only argument of a question."""
        name = literal_text(self.node.args[0]) if len(self.node.args) == 1 and not self.node.keywords else None
        if name is None:
            what = f"{self.function.name} takes a {asked_of}'s name as a string literal"
            self.faults.refuse(self.node, what, f"Write {self.function.signature}.")
        return name

    def whole(self, node: ast.expr, least: int, what: str) -> int | None:
        """Return a whole number that is known at load."""
        value = number(node, self.scope)
        if isinstance(value, int) and least <= value <= MAX_WINDOW:
            return value
        self.faults.refuse(node, f"not a {what}", self._name_fix(node) or _whole_fix(least))
        return None

    def length(self, node: ast.expr, extent: Extent) -> float | None:
        """Return the length of a window."""
        value = number(node, self.scope)
        if extent in _MEASURED and value is not None and 0 < value <= MAX_STEPS:
            return float(value)
        if isinstance(value, int) and 1 <= value <= (MAX_WINDOW if extent is Extent.VALUES else MAX_STEPS):
            return value
        fix = self._name_fix(node) or (
            _whole_fix(1)
            if extent is Extent.VALUES
            else f"It is the number of {extent} to look back: above 0, and known when the rule file loads."
        )
        if self.function.name in ("min", "max"):
            name, other = map(self.faults.segment, (self.node.args[0], node))
            fix += f" To compare two values write {self.function.name}([{name}, {other}])."
        self.faults.refuse(node, "not a window length", fix)
        return None

    def _name_fix(self, node: ast.expr) -> str:
        """Return why a name gives no whole number; empty for anything but a name."""
        if not isinstance(node, ast.Name):
            return ""
        value = constant(node, self.scope)
        if value is not None:
            return f"Param '{node.id}' is {'the text ' if isinstance(value, str) else ''}{value!r}, not a whole number."
        known = suggestion(node.id, self.scope.params).replace("Known here:", "Params here:")
        return f"No param is called '{node.id}'. {known or 'Declare it under params, or write a number.'}"


def _whole_fix(least: int) -> str:
    return f"It is a whole number from {least} to {MAX_WINDOW:,}, a param that is one, or arithmetic on those."
