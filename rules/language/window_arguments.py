"""Reads the window that a function of a series asks for in its arguments, when the policy loads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from ..errors import suggestion
from ..functions.folds import EMA
from ..functions.table import Function
from ..habits import WINDOW_ARGUMENTS, WINDOW_LENGTHS
from .references import Extent, Half, Param, SeriesAgo, SeriesFold, SeriesKey, Window

#: The longest window, in values.
MAX_WINDOW: Final = 100_000
#: The longest window by steps, in steps.
MAX_STEPS: Final = 10**12

_EXTENTS: Final = {"last": Extent.VALUES} | {str(extent): extent for extent in Extent if extent is not Extent.VALUES}
#: The units of windows whose lengths need not be whole numbers.
_MEASURED: Final = (Extent.EPOCHS, Extent.SECONDS)
#: Keywords that only the window form of a function takes.
WINDOW_KEYWORDS: Final = frozenset((*_EXTENTS, "skip", "half", "min", "per"))

#: The window of ``rate`` without one: the two newest values.
_OF_TWO: Final = ast.Constant(2)


class Refuse(Protocol):
    """A callback that records a fault at a node."""

    def __call__(self, node: ast.expr, what: str, fix: str = "") -> None:
        """Record that the node is wrong, why, and how to mend it."""


class WindowReader:
    """Reads the window that one call asks for.

    Args:
        constant: Returns the value of a constant expression; None for any other.
        refuse: Records a fault.
        segment: Returns a node's text.
        params: Names of the params, which a message lists.
    """

    def __init__(
        self,
        constant: Callable[[ast.expr], Param | None],
        refuse: Refuse,
        segment: Callable[[ast.expr], str],
        params: Collection[str],
    ) -> None:
        self._constant = constant
        self._refuse = refuse
        self._segment = segment
        self._params = params

    def window(self, call: ast.Call, function: Function, key: SeriesKey) -> Window | None:
        """Return the window of a reduction; None when it is refused."""
        keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        extents = [name for name in _EXTENTS if name in keywords]
        positional = call.args[1:]
        if not extents and positional:
            extents, keywords["last"], positional = ["last"], positional[0], positional[1:]
        elif not extents and function.name == "rate":
            extents, keywords["last"] = ["last"], _OF_TWO
        keywords.update(zip((name for name in function.options if name not in keywords), positional, strict=False))
        known = {*WINDOW_KEYWORDS, *function.options}
        given = len(call.args) - 1 + len(call.keywords)
        if (
            len(extents) != 1
            or len(keywords) - (_OF_TWO in keywords.values()) != given
            or not known.issuperset(keywords)
        ):
            self._refuse_arguments(call, function, set(keywords) - known)
            return None
        options = [self._option(call, keywords.get(name), name) for name in function.options]
        if None in options:
            return None
        return self._window(call, function, key, keywords, tuple(option for option in options if option is not None))

    def _window(
        self,
        call: ast.Call,
        function: Function,
        key: SeriesKey,
        keywords: Mapping[str, ast.expr],
        options: tuple[float, ...],
    ) -> Window | None:
        """Return the window that keyword arguments describe. One of them is its length."""
        name = next(name for name in _EXTENTS if name in keywords)
        length = self._length(keywords[name], _EXTENTS[name], function, call.args[0])
        skip = self.whole(keywords["skip"], 0, "skip") if "skip" in keywords else 0
        least = self.whole(keywords["min"], 1, "number of values") if "min" in keywords else None
        half = self._half(keywords["half"]) if "half" in keywords else None
        is_per_step = self._is_per_step(call, function, keywords.get("per"))
        refused = [half is None and "half" in keywords, least is None and "min" in keywords]
        if length is None or skip is None or is_per_step is None or any(refused):
            return None
        return Window(function, key, length, _EXTENTS[name], skip, half, options, least, is_per_step)

    def _is_per_step(self, call: ast.Call, function: Function, unit: ast.expr | None) -> bool | None:
        """Return whether a function reads the steps of values; None when that is refused."""
        if unit is None:
            return function.reduction is None
        if function.per_step is None:
            self._refuse(call, f"{function.name} of a series does not take 'per'", "slope does.")
        elif not isinstance(unit, ast.Constant) or unit.value != "step":
            self._refuse(unit, "not a unit of a slope", 'Write per="step", or nothing for the slope per value.')
        else:
            return True
        return None

    def fold(self, call: ast.Call, function: Function, key: SeriesKey) -> SeriesFold | Window | None:
        """Return what a fold reads: a series from its first value on, or a window if one is given; None if refused."""
        is_ema = function.name == EMA
        keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
        lengths = [*call.args[1:], *([keywords.pop("n")] if "n" in keywords else [])]
        has_window = function.reduction is not None and len(keywords.keys() & _EXTENTS.keys()) == 1
        known = WINDOW_KEYWORDS - {"per"} if has_window else {"skip"}
        if not known.issuperset(keywords) or len(lengths) != is_ema:
            more = "A window is given by last=, steps= or the like. " if function.reduction else ""
            self._refuse(
                call, f"{function.name} of a series does not take these arguments", f"{more}Write {function.signature}."
            )
            return None
        length = self.whole(lengths[0], 1, "window length") if is_ema else 1
        if length is None:
            return None
        if has_window:
            return self._window(call, function, key, keywords, (length,) if is_ema else ())
        skip = self.whole(keywords["skip"], 0, "skip") if "skip" in keywords else 0
        return None if skip is None else SeriesFold(function.name, key, length, skip)

    def ago(self, call: ast.Call, function: Function, key: SeriesKey) -> SeriesAgo | None:
        """Return the value that one keyword asks for, such as ``steps=100``; None when it is refused."""
        word = call.keywords[0]
        extent = _EXTENTS.get(word.arg or "", Extent.VALUES)
        if extent is Extent.VALUES or len(call.keywords) > 1 or len(call.args) > 1:
            what = f"{function.name} of a series does not take these arguments"
            self._refuse(call, what, f"Write {function.signature}.")
            return None
        length = self._length(word.value, extent, function, call.args[0])
        return None if length is None else SeriesAgo(key, length, extent)

    def _refuse_arguments(self, call: ast.Call, function: Function, unknown: set[str]) -> None:
        name = self._segment(call.args[0])
        more = "".join(f", {option}=0.9" for option in function.options)
        if unknown:
            strange = min(unknown)
            fix = suggestion(strange, {*WINDOW_KEYWORDS, *function.options}, WINDOW_ARGUMENTS)
            if strange in WINDOW_LENGTHS:
                length = next(self._segment(word.value) for word in call.keywords if word.arg == strange)
                fix = f"Write {function.name}({name}, {length}{more}) or last={length}."
            self._refuse(call, f"{function.name} of a series does not take '{strange}'", fix)
            return
        fix = f"Write {function.name}({name}, 10{more}) for the last ten values."
        self._refuse(call, f"{function.name} of a series takes the series and the number of values", fix)

    def whole(self, node: ast.expr, least: int, what: str) -> int | None:
        """Return a whole number that is known at load; None when it is refused."""
        value = self._constant(node)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_WINDOW:
            return value
        self._refuse(node, f"not a {what}", self._name_fix(node) or _whole_fix(least))
        return None

    def _name_fix(self, node: ast.expr) -> str:
        """Return why a name gives no whole number; empty for anything but a name."""
        if not isinstance(node, ast.Name):
            return ""
        value = self._constant(node)
        if value is not None:
            return f"Param '{node.id}' is {'the text ' if isinstance(value, str) else ''}{value!r}, not a whole number."
        known = suggestion(node.id, self._params).replace("Known here:", "Params here:")
        return f"No param is called '{node.id}'. {known or 'Declare it under params, or write a number.'}"

    def _length(self, node: ast.expr, extent: Extent, function: Function, series: ast.expr) -> float | None:
        value = self._constant(node)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            value = None
        if extent in _MEASURED and value is not None and 0 < value <= MAX_STEPS:
            return float(value)
        if isinstance(value, int) and 1 <= value <= (MAX_WINDOW if extent is Extent.VALUES else MAX_STEPS):
            return value
        fix = self._name_fix(node) or (
            _whole_fix(1)
            if extent is Extent.VALUES
            else f"It is the number of {extent} to look back: above 0, and known when the policy loads."
        )
        if function.name in ("min", "max"):
            name, other = self._segment(series), self._segment(node)
            fix += f" To compare two values write {function.name}([{name}, {other}])."
        self._refuse(node, "not a window length", fix)
        return None

    def _half(self, node: ast.expr) -> Half | None:
        if isinstance(node, ast.Constant) and node.value in tuple(Half):
            return Half(node.value)
        self._refuse(node, "not a half of a window", 'Write half="older" or half="recent".')
        return None

    def _option(self, call: ast.Call, node: ast.expr | None, name: str) -> float | None:
        value = None if node is None else self._constant(node)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        share = 0.9
        if isinstance(value, (int, float)) and 1 < value <= 100:
            share = value / 100
        self._refuse(
            call if node is None else node,
            f"'{name}' must be a number from 0 to 1, known when the policy loads",
            f"Write {name}={share}.",
        )
        return None


def _whole_fix(least: int) -> str:
    return f"It is a whole number from {least} to {MAX_WINDOW:,}, a param that is one, or arithmetic on those."
