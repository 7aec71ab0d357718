"""Binds functions of a series: windows, folds, earlier values and ages, of a named series or a computed one."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from ..functions.folds import FOLDS
from ..functions.table import Function
from . import references as ref
from .bound_rule import Derived, Need
from .constants import constant
from .family_binding import COLLECTIONS, FamilyBinder
from .window_arguments import WINDOW_KEYWORDS, WindowReader

#: Functions of a series that are not reductions of a window.
_OF_SERIES: Final = FOLDS | {"lag", "delta", "len", "rate", "age", "absent"}
#: Functions that compare or add their arguments when these are expressions: there only a keyword asks for a window.
_TAKE_NUMBERS: Final = frozenset({"min", "max", "sum"})
#: Expressions that give a number or a truth value, so that a series can be computed from them.
_NUMERIC: Final = (ast.BinOp, ast.BoolOp, ast.Call, ast.Compare, ast.IfExp, ast.UnaryOp)
#: What no series can be computed from: it is known for the event alone.
NO_PART_OF_A_SERIES: Final = (
    ref.MetricValue,
    ref.MemberName,
    ref.StateChange,
    ref.PastDecisions,
    ref.Milestone,
    ref.Variable,
    ref.AcrossRanks,
)


class SeriesBinder(FamilyBinder):
    """Binds calls that read a series, and notes how much of it they need."""

    def _is_of_series(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> bool:
        """Whether a call reads a series, named or to be computed, and not just a number or a list."""
        if not node.args or (function.reduction is None and function.name not in _OF_SERIES):
            return False
        if self._series_key(node.args[0], variables):
            return True
        if function.name == "len" or not self._is_computed(node.args[0], variables):
            return False
        asks_by_keyword = any(keyword.arg in WINDOW_KEYWORDS for keyword in node.keywords)
        if function.name in _OF_SERIES or asks_by_keyword:
            return True
        given = len(node.args) + len(node.keywords)
        return function.name not in _TAKE_NUMBERS and given == 2 + len(function.options)

    def _is_computed(self, node: ast.expr, variables: Mapping[str, str]) -> bool:
        """Whether an expression gives a number for each value of a series."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COLLECTIONS:
            return False
        return isinstance(node, _NUMERIC) and self._reads_series(node, variables)

    def _reads_series(self, node: ast.expr, variables: Mapping[str, str]) -> bool:
        if self._series_key(node, variables) is not None:
            return True
        parts = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        return any(self._reads_series(part, variables) for part in parts if isinstance(part, ast.expr))

    def _visit_series_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        """Bind a function of a series, with its window where it takes one."""
        key = self._series_read(node.args[0], variables)
        if key is None:
            return
        if function.name == "len":
            if len(node.args) != 1 or node.keywords:
                self.refuse(node, "len takes one argument")
            self.references[node] = ref.SeriesLength(key)
            return
        reader = WindowReader(
            lambda part: constant(part, self.scope, variables),
            self.refuse,
            self.expression.segment,
            self.scope.params,
        )
        read: ref.SeriesReference | None
        if function.name in FOLDS:
            read = reader.fold(node, function, key)
        elif function.reduction is not None or function.per_step is not None:
            read = reader.window(node, function, key)
        else:
            read = self._look_back(node, function, key, reader)
        if read is not None:
            self.references[node] = read
            self._read_series(key, _need(read))
        for argument in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
            self.visit(argument, variables)

    def _look_back(
        self, node: ast.Call, function: Function, key: ref.SeriesKey, reader: WindowReader
    ) -> ref.SeriesReference | None:
        """Return what ``lag``, ``delta``, ``age`` and ``absent`` read, which take at most one number."""
        is_lag, is_given = function.name == "lag", len(node.args) == 2
        if function.name == "age" and len(node.args) == 1 and not node.keywords:
            return ref.SeriesAge(key)
        if node.keywords and function.name != "age":
            ago = reader.ago(node, function, key)
            if ago is None or is_lag:
                return ago
            return ref.SeriesRise(ago) if function.name == "delta" else ref.SeriesAge(key, ago.length, ago.extent)
        if function.name not in ("lag", "delta") or len(node.args) > 2 or (is_lag and not is_given):
            what = f"{function.name} of a series does not take these arguments"
            self.refuse(node, what, f"Write {function.signature}.")
            return None
        number = reader.whole(node.args[1], 0 if is_lag else 1, "window length") if is_given else 1
        if number is None:
            return None
        return ref.SeriesValue(key, number) if is_lag else ref.SeriesChange(key, number)

    def _series_read(self, node: ast.expr, variables: Mapping[str, str]) -> ref.SeriesKey | None:
        """Visit a function's argument and return the series that it gives; None when it is refused.

        A series that must be computed is noted.
        """
        before = len(self.faults)
        self.visit(node, variables)
        if len(self.faults) > before:
            return None
        reference = self.references.get(node)
        if isinstance(reference, ref.SeriesValue) and self._series_key(node, variables) is not None:
            return reference.key
        for part in ast.walk(node):
            if isinstance(self.references.get(part), NO_PART_OF_A_SERIES):
                self.refuse(node, "a series can be computed from series, params and numbers only")
                return None
        driver = self.driver(node)
        if driver is None:
            self.refuse(node, "not a series")
            return None
        family = self._members.key if self._members is not None and self._holds_pattern(node) else None
        key = ref.SeriesKey(self.expression.segment(node), is_derived=True, is_of_member=family is not None)
        self.derived.setdefault(key, Derived(node, driver, family))
        return key

    def driver(self, node: ast.AST) -> ref.SeriesKey | None:
        """Return the first series that a visited expression reads, in the order of its text."""
        reference = self.references.get(node)
        if isinstance(reference, ref.SeriesReference):
            return reference.key
        if isinstance(reference, ref.FamilyReading):
            return reference.key.whole
        keys = map(self.driver, ast.iter_child_nodes(node))
        return next((key for key in keys if key is not None), None)


def _need(read: ref.SeriesReference) -> Need:
    """Return how much of a series must be kept for what reads it."""
    match read:
        case ref.SeriesValue(_, back) | ref.SeriesChange(_, back):
            return Need(back + 1)
        case ref.SeriesAgo(_, length, extent) | ref.SeriesRise(ref.SeriesAgo(_, length, extent)):
            return Need(reach={extent: length})
        case ref.SeriesAge(extent=extent):
            return Need(reach={extent: 0})
        case ref.Window(length=length, extent=extent):
            reach: dict[ref.Extent, float] = {} if extent is ref.Extent.VALUES else {extent: length}
            if read.is_per_step:
                reach.setdefault(ref.Extent.STEPS, 0)
            return Need(read.keep, reach)
    return Need()
