"""Reads the window that a function of a series asks for in its arguments, when the policy loads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from typing import Final, Protocol

from ..errors import suggestion
from ..habits import WINDOW_ARGUMENTS, WINDOW_LENGTHS
from .folds import EMA
from .functions import Function
from .references import Extent, Half, Param, SeriesFold, SeriesKey, Window

#: The longest window, in values.
MAX_WINDOW: Final = 100_000
#: The longest window by steps, in steps.
MAX_STEPS: Final = 10**12

_EXTENTS: Final = {"last": Extent.VALUES, "steps": Extent.STEPS, "epochs": Extent.EPOCHS}
#: Keywords that only the window form of a function takes.
WINDOW_KEYWORDS: Final = frozenset((*_EXTENTS, "skip", "half"))


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
        keywords.update(zip((name for name in function.options if name not in keywords), positional, strict=False))
        known = {*WINDOW_KEYWORDS, *function.options}
        given = len(call.args) - 1 + len(call.keywords)
        if len(extents) != 1 or len(keywords) != given or not known.issuperset(keywords):
            self._refuse_arguments(call, function, set(keywords) - known)
            return None
        extent = _EXTENTS[extents[0]]
        length = self._length(keywords[extents[0]], extent, function, call.args[0])
        skip = self.whole(keywords["skip"], 0, "skip") if "skip" in keywords else 0
        half = self._half(keywords["half"]) if "half" in keywords else None
        options = [self._option(call, keywords.get(name), name) for name in function.options]
        if length is None or skip is None or (half is None and "half" in keywords) or None in options:
            return None
        return Window(function, key, length, extent, skip, half, tuple(o for o in options if o is not None))

    def fold(self, call: ast.Call, function: Function, key: SeriesKey) -> SeriesFold | None:
        """Return an ``ema`` or a ``peak``, which have no window; None when it is refused."""
        is_ema = function.name == EMA
        keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
        lengths = [*call.args[1:], *([keywords["n"]] if "n" in keywords else [])]
        refused = set(keywords) & (WINDOW_KEYWORDS - {"skip"})
        if refused:
            what = f"{function.name} reads a series from its first value on; it does not take '{min(refused)}'"
            self._refuse(call, what, f"Of these arguments it takes skip. Write {function.signature}.")
            return None
        if not set(keywords) <= {"skip", "n"} or len(lengths) != is_ema:
            what = f"{function.name} of a series does not take these arguments"
            self._refuse(call, what, f"Write {function.signature}.")
            return None
        length = self.whole(lengths[0], 1, "window length") if is_ema else 1
        skip = self.whole(keywords["skip"], 0, "skip") if "skip" in keywords else 0
        return None if length is None or skip is None else SeriesFold(function.name, key, length, skip)

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
        if extent is Extent.EPOCHS and value is not None and 0 < value <= MAX_WINDOW:
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
