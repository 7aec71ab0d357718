"""Reads what the arguments of a call ask for when a policy loads: constants, windows, and shares of a run.

Takes a call, the names around it and the faults of its expression. Returns a reference, or None after noting a fault.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ..errors import suggestion
from ..functions.folds import EMA, FOLDS
from ..functions.table import Function
from ..habits import MILESTONE_ARGUMENTS, MILESTONE_UNITS, WINDOW_ARGUMENTS, WINDOW_LENGTHS
from ..readings.ago import SeriesAge, SeriesAgo, SeriesRise
from ..readings.fold import SeriesFold
from ..readings.milestone import MAX_SHARES, Milestone, exact, multiples
from ..readings.reading import MAX_WINDOW, Extent, Half, Param, SeriesKey, SeriesReading
from ..readings.series_value import SeriesChange, SeriesValue
from ..readings.window import Window
from .bound_rule import NameScope
from .expressions import ExpressionFaults

#: The longest window by steps, in steps. Operands beyond this are not folded either: no length is so large.
MAX_STEPS: Final = 10**12

_FOLDABLE: Final = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)

_EXTENTS: Final = {"last": Extent.VALUES} | {str(extent): extent for extent in Extent if extent is not Extent.VALUES}
#: The units of windows whose lengths need not be whole numbers.
_MEASURED: Final = (Extent.EPOCHS, Extent.SECONDS)
#: Keywords that only the window form of a function takes.
WINDOW_KEYWORDS: Final = frozenset((*_EXTENTS, "skip", "half", "min", "per"))
#: The window of ``rate`` without one: the two newest values.
_OF_TWO: Final = ast.Constant(2)

_EVERY: Final = "every"
_AT: Final = "at"
_OF: Final = "of"
_UNITS: Final = (Extent.STEPS, Extent.EPOCHS, Extent.SAMPLES, Extent.TOKENS)
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
#: Numbers with longer numerators or denominators are not calculated with: no share needs them.
_MAX_BITS: Final = 200


def literal_text(node: ast.AST) -> str | None:
    """Return the value of a text; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def constant(node: ast.expr, scope: NameScope) -> Param | None:
    """Return the value of a number, a param, or arithmetic on whole ones of them; None for anything else."""
    match node:
        case ast.Constant(value) if isinstance(value, (int, float)):
            return value
        case ast.Name(name):
            return _param(name, scope)
        case ast.UnaryOp(ast.USub(), operand):
            value = constant(operand, scope)
            return -value if isinstance(value, (int, float)) else None
        case ast.BinOp(left, sign, right) if isinstance(sign, _FOLDABLE):
            return _folded(sign, constant(left, scope), constant(right, scope))
    return None


def number(node: ast.expr, scope: NameScope) -> int | float | None:
    """Return the value of a constant expression that is a number, and no truth value; None for any other."""
    value = constant(node, scope)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _param(name: str, scope: NameScope) -> Param | None:
    """Return the param that a name means; None where a variable or a controller metric hides it."""
    return None if name in scope.variables or name in scope.metrics else scope.params.get(name)


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
class SeriesCall:
    """A call of a function of a series, whose arguments are to be read.

    Attributes:
        call: The call.
        function: The function.
        key: The series.
        scope: The names around the call.
        faults: Takes the faults.
    """

    call: ast.Call
    function: Function
    key: SeriesKey
    scope: NameScope
    faults: ExpressionFaults

    def reading(self) -> SeriesReading | None:
        """Return what the call reads; None when it is refused."""
        if self.function.name in FOLDS:
            return self._fold()
        if self.function.reduction is not None or self.function.per_step is not None:
            return self._reduction()
        return self._look_back()

    def _reduction(self) -> Window | None:
        """Return the window of a reduction."""
        keywords = {keyword.arg: keyword.value for keyword in self.call.keywords if keyword.arg}
        extents = [name for name in _EXTENTS if name in keywords]
        positional = self.call.args[1:]
        if not extents and positional:
            extents, keywords["last"], positional = ["last"], positional[0], positional[1:]
        elif not extents and self.function.name == "rate":
            extents, keywords["last"] = ["last"], _OF_TWO
        options = self.function.options
        keywords.update(zip((name for name in options if name not in keywords), positional, strict=False))
        known = {*WINDOW_KEYWORDS, *options}
        given = len(self.call.args) - 1 + len(self.call.keywords)
        taken = len(keywords) - (_OF_TWO in keywords.values())
        if len(extents) != 1 or taken != given or not known.issuperset(keywords):
            self._refuse_window(set(keywords) - known)
            return None
        shares = [self._share(keywords.get(name), name) for name in options]
        return None if None in shares else self._window(keywords, tuple(share for share in shares if share is not None))

    def _window(self, keywords: Mapping[str, ast.expr], options: tuple[float, ...]) -> Window | None:
        """Return the window that keyword arguments describe. One of them is its length."""
        name = next(name for name in _EXTENTS if name in keywords)
        length = self._length(keywords[name], _EXTENTS[name])
        skip = self._whole(keywords["skip"], 0, "skip") if "skip" in keywords else 0
        least = self._whole(keywords["min"], 1, "number of values") if "min" in keywords else None
        half = self._half(keywords["half"]) if "half" in keywords else None
        is_per_step = self._is_per_step(keywords.get("per"))
        refused = [half is None and "half" in keywords, least is None and "min" in keywords]
        if length is None or skip is None or is_per_step is None or any(refused):
            return None
        return Window(self.function, self.key, length, _EXTENTS[name], skip, half, options, least, is_per_step)

    def _is_per_step(self, unit: ast.expr | None) -> bool | None:
        """Return whether the function reads the steps of values; None when that is refused."""
        if unit is None:
            return self.function.reduction is None
        if self.function.per_step is None:
            self.faults.refuse(self.call, f"{self.function.name} of a series does not take 'per'", "slope does.")
        elif not isinstance(unit, ast.Constant) or unit.value != "step":
            self.faults.refuse(unit, "not a unit of a slope", 'Write per="step", or nothing for the slope per value.')
        else:
            return True
        return None

    def _fold(self) -> SeriesFold | Window | None:
        """Return what a fold reads: a series from its first value on, or a window if one is given."""
        is_ema = self.function.name == EMA
        keywords = {keyword.arg or "": keyword.value for keyword in self.call.keywords}
        lengths = [*self.call.args[1:], *([keywords.pop("n")] if "n" in keywords else [])]
        has_window = self.function.reduction is not None and len(keywords.keys() & _EXTENTS.keys()) == 1
        known = WINDOW_KEYWORDS - {"per"} if has_window else {"skip"}
        if not known.issuperset(keywords) or len(lengths) != is_ema:
            self._refuse_arguments(
                "A window is given by last=, steps= or the like. " if self.function.reduction else ""
            )
            return None
        length = self._whole(lengths[0], 1, "window length") if is_ema else 1
        if length is None:
            return None
        if has_window:
            return self._window(keywords, (length,) if is_ema else ())
        skip = self._whole(keywords["skip"], 0, "skip") if "skip" in keywords else 0
        return None if skip is None else SeriesFold(self.function.name, self.key, length, skip)

    def _look_back(self) -> SeriesReading | None:
        """Return what ``lag``, ``delta``, ``age`` and ``absent`` read, which take at most one number."""
        name, given = self.function.name, self.call.args[1:]
        is_lag = name == "lag"
        if name == "age" and not given and not self.call.keywords:
            return SeriesAge(self.key)
        if self.call.keywords and name != "age":
            ago = self._ago()
            if ago is None or is_lag:
                return ago
            return SeriesRise(ago) if name == "delta" else SeriesAge(self.key, ago.length, ago.extent)
        if name not in ("lag", "delta") or len(given) > 1 or (is_lag and not given):
            self._refuse_arguments()
            return None
        back = self._whole(given[0], 0 if is_lag else 1, "window length") if given else 1
        if back is None:
            return None
        return SeriesValue(self.key, back) if is_lag else SeriesChange(self.key, back)

    def _ago(self) -> SeriesAgo | None:
        """Return the value that one keyword asks for, such as ``steps=100``."""
        word = self.call.keywords[0]
        extent = _EXTENTS.get(word.arg or "", Extent.VALUES)
        if extent is Extent.VALUES or len(self.call.keywords) > 1 or len(self.call.args) > 1:
            self._refuse_arguments()
            return None
        length = self._length(word.value, extent)
        return None if length is None else SeriesAgo(self.key, length, extent)

    def _refuse_arguments(self, more: str = "") -> None:
        what = f"{self.function.name} of a series does not take these arguments"
        self.faults.refuse(self.call, what, f"{more}Write {self.function.signature}.")

    def _refuse_window(self, unknown: set[str]) -> None:
        function, segment = self.function, self.faults.expression.segment
        name, more = segment(self.call.args[0]), "".join(f", {option}=0.9" for option in function.options)
        if unknown:
            strange = min(unknown)
            fix = suggestion(strange, {*WINDOW_KEYWORDS, *function.options}, WINDOW_ARGUMENTS)
            if strange in WINDOW_LENGTHS:
                length = next(segment(word.value) for word in self.call.keywords if word.arg == strange)
                fix = f"Write {function.name}({name}, {length}{more}) or last={length}."
            self.faults.refuse(self.call, f"{function.name} of a series does not take '{strange}'", fix)
            return
        fix = f"Write {function.name}({name}, 10{more}) for the last ten values."
        self.faults.refuse(self.call, f"{function.name} of a series takes the series and the number of values", fix)

    def _whole(self, node: ast.expr, least: int, what: str) -> int | None:
        """Return a whole number that is known at load."""
        value = number(node, self.scope)
        if isinstance(value, int) and least <= value <= MAX_WINDOW:
            return value
        self.faults.refuse(node, f"not a {what}", self._name_fix(node) or _whole_fix(least))
        return None

    def _length(self, node: ast.expr, extent: Extent) -> float | None:
        value = number(node, self.scope)
        if extent in _MEASURED and value is not None and 0 < value <= MAX_STEPS:
            return float(value)
        if isinstance(value, int) and 1 <= value <= (MAX_WINDOW if extent is Extent.VALUES else MAX_STEPS):
            return value
        fix = self._name_fix(node) or (
            _whole_fix(1)
            if extent is Extent.VALUES
            else f"It is the number of {extent} to look back: above 0, and known when the policy loads."
        )
        if self.function.name in ("min", "max"):
            name, other = map(self.faults.expression.segment, (self.call.args[0], node))
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

    def _half(self, node: ast.expr) -> Half | None:
        if isinstance(node, ast.Constant) and node.value in tuple(Half):
            return Half(node.value)
        self.faults.refuse(node, "not a half of a window", 'Write half="older" or half="recent".')
        return None

    def _share(self, node: ast.expr | None, name: str) -> float | None:
        """Return an option of the function, from 0 to 1."""
        value = None if node is None else number(node, self.scope)
        if value is not None and 0 <= value <= 1:
            return float(value)
        share = value / 100 if value is not None and 1 < value <= 100 else 0.9
        what = f"'{name}' must be a number from 0 to 1, known when the policy loads"
        self.faults.refuse(self.call if node is None else node, what, f"Write {name}={share}.")
        return None


def _whole_fix(least: int) -> str:
    return f"It is a whole number from {least} to {MAX_WINDOW:,}, a param that is one, or arithmetic on those."


def milestone(call: ast.Call, scope: NameScope, faults: ExpressionFaults) -> Milestone | None:
    """Return what a call of ``milestone`` asks for; None when it is refused."""
    if not scope.owner:
        what = "milestones count the events of triggers such as on_step_end"
        faults.refuse(call, what, "Write progress >= 0.5, or ask in a controller with such a trigger.")
        return None
    keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
    unknown = set(keywords) - {_EVERY, _AT, _OF}
    if unknown:
        strange = min(unknown)
        fix = suggestion(strange, (_EVERY, _AT, _OF), MILESTONE_ARGUMENTS)
        faults.refuse(call, f"milestone does not take '{strange}'", fix)
        return None
    if call.args or len(keywords.keys() & {_EVERY, _AT}) != 1:
        fix = "Write milestone(every=0.05) or milestone(at=[0.25, 0.5])."
        faults.refuse(call, "milestone takes one of every= and at=", fix)
        return None
    extent = _unit(keywords[_OF], faults) if _OF in keywords else Extent.STEPS
    if _EVERY in keywords:
        shares = _multiples_of(keywords[_EVERY], scope, faults)
    else:
        shares = _listed_shares(keywords[_AT], scope, faults)
    return None if extent is None or shares is None else Milestone(shares, extent, scope.owner)


def _unit(node: ast.expr, faults: ExpressionFaults) -> Extent | None:
    word = literal_text(node)
    if word in _UNITS:
        return Extent(word)
    if word is not None:
        fix = suggestion(word, _UNITS, MILESTONE_UNITS)
    else:
        *others, last = (f'"{unit}"' for unit in _UNITS)
        fix = f"Write of={', '.join(others)} or {last}."
    faults.refuse(node, "not a unit of a run's length", fix)
    return None


def _multiples_of(node: ast.expr, scope: NameScope, faults: ExpressionFaults) -> tuple[Fraction, ...] | None:
    """Return a share and its multiples; None when it is refused."""
    share = _share_of_run(node, scope, faults)
    if share is not None and share * MAX_SHARES < 1:
        faults.refuse(node, f"more than {MAX_SHARES:,} milestones", f"The smallest share is {1 / MAX_SHARES}.")
        return None
    return None if share is None else multiples(share)


def _listed_shares(node: ast.expr, scope: NameScope, faults: ExpressionFaults) -> tuple[Fraction, ...] | None:
    """Return one share, or those of a list, ascending; None when one is refused."""
    nodes = node.elts if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else [node]
    if not 1 <= len(nodes) <= MAX_SHARES:
        faults.refuse(node, "names no share of the run", "Write milestone(at=[0.25, 0.5]).")
        return None
    shares = [_share_of_run(each, scope, faults) for each in nodes]
    known = [share for share in shares if share is not None]
    return tuple(sorted(set(known))) if len(known) == len(shares) else None


def _share_of_run(node: ast.expr, scope: NameScope, faults: ExpressionFaults) -> Fraction | None:
    value = _fraction(node, scope)
    if value is not None and 0 < value <= 1:
        return value
    fix = "It is a number above 0 and at most 1, a param that is one, or + - * / on those."
    if value is not None and 1 < value <= 100:
        fix = f"It is above 0 and at most 1. Write {float(value / 100):g} for {float(value):g} percent."
    elif value is not None and value > 1:
        fix = f"It is above 0 and at most 1. For a step write step == {float(value):g}."
    faults.refuse(node, "not a share of the run, known when the policy loads", fix)
    return None


def _fraction(node: ast.expr, scope: NameScope) -> Fraction | None:
    """Return the number that a node always gives, exactly; None for anything else."""
    match node:
        case ast.Constant(value):
            return _exact(value)
        case ast.Name(name):
            return _exact(_param(name, scope))
        case ast.UnaryOp(ast.USub(), operand):
            share = _fraction(operand, scope)
            return None if share is None else -share
        case ast.BinOp(left, sign, right) if type(sign) in _ARITHMETIC:
            one, other = _fraction(left, scope), _fraction(right, scope)
            if one is None or other is None or (isinstance(sign, ast.Div) and not other):
                return None
            result = _ARITHMETIC[type(sign)](one, other)
            is_long = max(result.numerator.bit_length(), result.denominator.bit_length()) > _MAX_BITS
            return None if is_long else result
    return None


def _exact(value: object) -> Fraction | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= 10**12:
        return None
    return exact(value)
