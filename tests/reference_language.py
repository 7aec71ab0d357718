"""The rule language a second time, written from the pages of the language alone: expressions over whole histories.

Slow and plain on purpose: every value is kept, and every function reads the history from its beginning. A ``World``
goes in, with the histories as of one event; values come out. ``Undefined`` is the third result of a rule.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reference_arithmetic import (
    FROM_FIRST,
    PLAIN,
    REDUCTIONS,
    Undefined,
    first,
    greatest,
    last,
    power,
    slope_over,
    smallest,
    unknown,
    zscore,
)


class NotCovered(BaseException):
    """A part of the language that this implementation lacks: never a failure of a rule."""


class Moment(NamedTuple):
    """The clocks as of one event; None for one that is not known."""

    place: int
    step: float
    epoch: float | None
    seconds: float
    samples: float | None
    tokens: float | None


class Entry(NamedTuple):
    """One value of a series, with the moment at which it came."""

    at: Moment
    value: float


UNITS = {"steps": "step", "epochs": "epoch", "seconds": "seconds", "samples": "samples", "tokens": "tokens"}
FACTS = (
    "step", "epoch", "progress", "max_steps", "elapsed_s", "samples_seen", "tokens_seen", "world_size",
    "updates_applied", "updates_skipped",
)  # fmt: skip


OF_SERIES = (
    *REDUCTIONS,
    *FROM_FIRST,
    "zscore",
    "rate",
    "initial",
    "lag",
    "delta",
    "age",
    "absent",
    "len",
    "streak",
    "improved",
)
OF_RANKS = ("any_rank", "max_rank", "min_rank", "spread")
OF_CONTROLLERS = ("times_fired", "steps_since", "fired_now")
OF_FAMILIES = ("any", "all", "count", "min", "max", "mean", "sum", "median", "argmin", "argmax", "quantile")
#: Names in the rules and messages of some controllers, and the place of a kind in the key of an admitted series.
LOCAL = ("member", "stage")
COLLECTIONS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
ADMITTED = "admitted"


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: power(a, b), ast.LShift: lambda a, b: a << b, ast.RShift: lambda a, b: a >> b,
    ast.BitAnd: lambda a, b: a & b, ast.BitOr: lambda a, b: a | b, ast.BitXor: lambda a, b: a ^ b,
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b, ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.Not: lambda a: not a, ast.USub: lambda a: -a, ast.UAdd: lambda a: +a, ast.Invert: lambda a: ~a
}  # fmt: skip


START = Moment(-1, 0, None, 0.0, None, None)


@dataclass
class World:
    """What rules can read as of one event. The fold of events fills it."""

    params: Mapping[str, Any]
    states: Mapping[str, Any]
    metric_names: frozenset[str]
    now: Moment = START
    facts: dict[str, Any] = field(default_factory=dict)
    #: Values by series: ``(name, kind)``, kind None for the first kind that carries the name, or a text of a tree.
    history: dict[Any, list[Entry]] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Newest values by rank, then by name.
    ranks: list[dict[str, float]] = field(default_factory=list)
    #: Names of definitions with ``admit``.
    admitted: frozenset[str] = frozenset()
    #: Whether a milestone is reached at this event, by the tree of its call.
    milestones: dict[str, bool | None] = field(default_factory=dict)
    depth_of_families: int = 0
    #: Answers about controllers: a function and a name.
    asked: Callable[[str, str], Any] = lambda *_: False

    def is_series_name(self, name: str) -> bool:
        """Whether a bare name, which is no definition and no variable, is a series."""
        others = (self.states, self.metric_names, self.params, (*FACTS, *LOCAL, "undefined"))
        return not any(name in names for names in others)

    def members(self, pattern: tuple[str, str | None]) -> list[tuple[str, str | None]]:
        """Return the series of a family that have a value, by name."""
        form = re.compile(".+".join(re.escape(part) for part in pattern[0].split("*")), re.DOTALL)
        found = [key for key in self.history if isinstance(key, tuple) and isinstance(key[1], str | None)]
        return sorted(key for key in found if key[1] == pattern[1] and form.fullmatch(key[0]))


def literal_series(node: ast.AST, world: World) -> Any:
    """Return the key of a series, or of a family, that is written as such; None for anything else."""
    if isinstance(node, ast.Name) and node.id in world.admitted:
        return (node.id, ADMITTED)
    if isinstance(node, ast.Name) and world.is_series_name(node.id):
        return (node.id, None)
    if isinstance(node, ast.Call) and called(node) == "series":
        kind = node.keywords[0].value.value if node.keywords else None  # type: ignore[attr-defined]
        return (node.args[0].value, kind)  # type: ignore[attr-defined]
    return None


def called(node: ast.AST) -> str:
    """Return the name of the function that a node calls; empty for anything else."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def patterns(node: ast.AST, world: World) -> set[Any]:
    """Return the families in an expression that no function of a family is about."""
    key = literal_series(node, world)
    if key is not None:
        return {key} if "*" in key[0] else set()
    parts = [] if is_of_family(node, world) else children(node)
    return {found for part in parts for found in patterns(part, world)}


def is_of_family(node: ast.AST, world: World) -> bool:
    """Whether a node calls a function of a family."""
    if not isinstance(node, ast.Call) or called(node) not in OF_FAMILIES or node.keywords:
        return False
    if len(node.args) != (2 if called(node) == "quantile" else 1) or isinstance(node.args[0], COLLECTIONS):
        return False
    return bool(patterns(node.args[0], world))


def reads_series(node: ast.AST, world: World) -> bool:
    """Whether any series is in an expression."""
    return any(literal_series(part, world) for part in ast.walk(node) if not _is_called_name(part, node))


def _is_called_name(part: ast.AST, root: ast.AST) -> bool:
    return any(isinstance(call, ast.Call) and call.func is part for call in ast.walk(root))


def series_argument(call: ast.Call, world: World) -> ast.expr | None:
    """Return the expression whose series a call reads; None for a call on plain values."""
    name = called(call)
    if name not in OF_SERIES or not call.args or not reads_series(call.args[0], world) or is_of_family(call, world):
        return None
    given = call.args[0]
    plain = literal_series(given, world) is not None
    if any(keyword.arg in (*UNITS, "last") for keyword in call.keywords):
        return given
    if isinstance(given, COLLECTIONS):
        return None
    if name == "len":
        return given if plain else None
    if name in REDUCTIONS and len(call.args) == (2 if name == "quantile" else 1):
        return None
    if name in ("min", "max", "sum"):
        return given if plain and len(call.args) == 2 else None
    return given


def children(node: ast.AST) -> list[ast.AST]:
    """Return the parts of an expression in the order in which they are evaluated."""
    if isinstance(node, ast.IfExp):
        return [node.test, node.body, node.orelse]
    if isinstance(node, ast.Call):
        own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*own, *node.args, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        loops = [part for loop in node.generators for part in (loop.iter, *loop.ifs)]
        return [*loops, node.elt]
    return list(ast.iter_child_nodes(node))


class Read(NamedTuple):
    """A series that an expression reads, or the call of a function of a family, which reads all members."""

    node: ast.expr
    is_of_family: bool = False


def first_series(node: ast.AST, world: World, *, but_admitted: bool = False) -> Read | None:
    """Return the first series that is evaluated in an expression, now and then without admitted ones."""
    for found in series_in_order(node, world):
        if not (but_admitted and isinstance(found.node, ast.Name) and found.node.id in world.admitted):
            return found
    return None


def series_in_order(node: ast.AST, world: World) -> Iterator[Read]:
    """Yield the series that an expression reads, in the order in which they are evaluated."""
    if literal_series(node, world) is not None:
        assert isinstance(node, ast.expr)
        yield Read(node)
        return
    argument = series_argument(node, world) if isinstance(node, ast.Call) else None
    if argument is not None:
        yield Read(argument)
    elif is_of_family(node, world):
        assert isinstance(node, ast.expr)
        yield Read(node, is_of_family=True)
    if argument is not None or called(node) in OF_RANKS or is_of_family(node, world):
        return
    hidden = {loop.target.id for loop in getattr(node, "generators", [])}
    for part in children(node):
        for found in series_in_order(part, world):
            if not (isinstance(found.node, ast.Name) and found.node.id in hidden):
                yield found


def expression_series(node: ast.AST, world: World) -> list[ast.expr]:
    """Return the expressions that are read as series, those inside others first."""
    found = [inner for part in children(node) for inner in expression_series(part, world)]
    argument = series_argument(node, world) if isinstance(node, ast.Call) else None
    if argument is not None and literal_series(argument, world) is None:
        found.append(argument)
    return found


class Window(NamedTuple):
    """The arguments that say which values of a series a function reads."""

    unit: str | None
    length: float | None
    skip: int
    half: str | None
    least: int | None

    def of(self, entries: Sequence[Entry], now: Moment, *, must_be_full: bool) -> list[Entry]:
        """Return the window's values, oldest first.

        Raises:
            Undefined: It holds fewer than it has to, or its clock is not known.
        """
        kept = list(entries[: len(entries) - self.skip] if self.skip else entries)
        if self.skip > len(entries):
            kept = []
        if self.unit == "last":
            kept = kept[-int(self.length or 0) :]
        elif self.unit is not None:
            kept = within(kept, self.unit, self.length or 0, now)
        middle = len(kept) // 2
        if must_be_full and self.unit == "last" and self.least is None and len(kept) < (self.length or 0):
            raise Undefined
        kept = {"older": kept[:middle], "recent": kept[middle:]}.get(self.half or "", kept)
        if len(kept) < (self.least or 0):
            raise Undefined
        return kept


def clock(now: Moment, unit: str) -> float:
    """Return a clock's value as of now."""
    value = getattr(now, UNITS[unit])
    if value is None:
        raise Undefined
    return float(value)


def came(entry: Entry, unit: str) -> float:
    """Return a clock's value as a value came: -1 before the clock was known."""
    value = getattr(entry.at, UNITS[unit])
    return -1.0 if value is None else float(value)


def within(entries: Sequence[Entry], unit: str, length: float, now: Moment) -> list[Entry]:
    """Return the entries above ``now - length``, by one clock."""
    bound = clock(now, unit) - length
    return [entry for entry in entries if came(entry, unit) > bound]


class Evaluation:
    """Evaluates one expression, its definitions already replaced, over a world."""

    def __init__(
        self,
        world: World,
        members: Mapping[Any, Any] | None = None,
        *,
        in_series: bool = False,
        rank: int | None = None,
    ) -> None:
        self.world = world
        self.members = members or {}
        self.in_series = in_series
        self.rank = rank

    def value(self, node: ast.AST, bound: Mapping[str, Any] | None = None) -> Any:
        """Return the value of an expression with these variables of comprehensions.

        Raises:
            Undefined: It is not known.
        """
        bound = bound or {}
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise NotCovered(ast.dump(node))
        return method(node, bound)

    def key(self, node: ast.AST) -> Any:
        """Return the key of a series, where a pattern means its member here."""
        key = literal_series(node, self.world)
        if key is not None:
            return self.members.get(key, key)
        ours = [self.members[pattern] for pattern in patterns(node, self.world) if pattern in self.members]
        return (ast.dump(node), ours[0]) if ours else ast.dump(node)

    def entries(self, node: ast.AST) -> list[Entry]:
        """Return the values of a series so far."""
        return self.world.history.get(self.key(node), [])

    def all_keys(self, read: Read) -> list[Any]:
        """Return the keys of a series, or of all members where a pattern means no member here."""
        node = read.node
        if read.is_of_family:
            assert isinstance(node, ast.Call)
            return [one for pattern in patterns(node.args[0], self.world) for one in self.world.members(pattern)]
        free = [pattern for pattern in patterns(node, self.world) if pattern not in self.members]
        if not free:
            return [self.key(node)]
        return [Evaluation(self.world, {free[0]: one}).key(node) for one in self.world.members(free[0])]

    # --- plain parts ---

    def _expression(self, node: ast.Expression, bound: Mapping[str, Any]) -> Any:
        return self.value(node.body, bound)

    def _constant(self, node: ast.Constant, _bound: Mapping[str, Any]) -> Any:
        return node.value

    def _name(self, node: ast.Name, bound: Mapping[str, Any]) -> Any:
        world, name = self.world, node.id
        if name in bound:
            return bound[name]
        for values in (world.states, world.metrics, world.params, world.facts):
            if name in values:
                return _known(values[name])
        if not world.is_series_name(name):
            raise Undefined
        return self._newest(node)

    def _newest(self, node: ast.expr) -> float:
        if self.rank is not None:
            key = literal_series(node, self.world)
            return self.world.ranks[self.rank][key[0]] if key[0] in self.world.ranks[self.rank] else unknown()
        return float(last([entry.value for entry in self.entries(node)]))

    def _boolop(self, node: ast.BoolOp, bound: Mapping[str, Any]) -> Any:
        result: Any = None
        for part in node.values:
            result = self.value(part, bound)
            if bool(result) == isinstance(node.op, ast.Or):
                break
        return result

    def _binop(self, node: ast.BinOp, bound: Mapping[str, Any]) -> Any:
        left = self.value(node.left, bound)
        return _BINARY[type(node.op)](left, self.value(node.right, bound))

    def _unaryop(self, node: ast.UnaryOp, bound: Mapping[str, Any]) -> Any:
        return _UNARY[type(node.op)](self.value(node.operand, bound))

    def _ifexp(self, node: ast.IfExp, bound: Mapping[str, Any]) -> Any:
        return self.value(node.body if self.value(node.test, bound) else node.orelse, bound)

    def _compare(self, node: ast.Compare, bound: Mapping[str, Any]) -> Any:
        if (answer := self._is_unavailable(node)) is not None:
            return answer
        left = self.value(node.left, bound)
        result: Any = True
        for op, other in zip(node.ops, node.comparators, strict=True):
            right = self.value(other, bound)
            result = _BINARY[type(op)](left, right)
            if not result:
                break
            left = right
        return result

    def _is_unavailable(self, node: ast.Compare) -> bool | None:
        """Answer ``m == None`` and ``m != None``."""
        sides = [node.left, *node.comparators]
        names = [side.id for side in sides if isinstance(side, ast.Name) and side.id in self.world.metric_names]
        nones = [side for side in sides if isinstance(side, ast.Constant) and side.value is None]
        if len(sides) == 2 and names and nones and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            return (self.world.metrics.get(names[0]) is None) == isinstance(node.ops[0], ast.Eq)
        return None

    def _subscript(self, node: ast.Subscript, bound: Mapping[str, Any]) -> Any:
        whole = self.value(node.value, bound)
        try:
            return whole[self.value(node.slice, bound)]
        except (KeyError, IndexError):
            raise Undefined from None

    def _slice(self, node: ast.Slice, bound: Mapping[str, Any]) -> slice:
        return slice(*(part and self.value(part, bound) for part in (node.lower, node.upper, node.step)))

    def _attribute(self, node: ast.Attribute, bound: Mapping[str, Any]) -> Any:
        try:
            return self.value(node.value, bound)[node.attr]
        except KeyError:
            raise Undefined from None

    def _list(self, node: ast.List, bound: Mapping[str, Any]) -> list[Any]:
        return [self.value(part, bound) for part in node.elts]

    def _tuple(self, node: ast.Tuple, bound: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(self._list(node, bound))  # type: ignore[arg-type]

    def _set(self, node: ast.Set, bound: Mapping[str, Any]) -> set[Any]:
        return set(self._list(node, bound))  # type: ignore[arg-type]

    def _dict(self, node: ast.Dict, bound: Mapping[str, Any]) -> dict[Any, Any]:
        pairs = zip(node.keys, node.values, strict=True)
        return {self.value(key, bound): self.value(value, bound) for key, value in pairs if key is not None}

    def _listcomp(self, node: ast.ListComp | ast.GeneratorExp, bound: Mapping[str, Any]) -> list[Any]:
        return [self.value(node.elt, inner) for inner in self._turns(node.generators, bound)]

    _generatorexp = _listcomp

    def _setcomp(self, node: ast.SetComp, bound: Mapping[str, Any]) -> set[Any]:
        return {self.value(node.elt, inner) for inner in self._turns(node.generators, bound)}

    def _joinedstr(self, node: ast.JoinedStr, bound: Mapping[str, Any]) -> str:
        return "".join(str(self.value(part, bound)) for part in node.values)

    def _formattedvalue(self, node: ast.FormattedValue, bound: Mapping[str, Any]) -> str:
        return format(self.value(node.value, bound), self.value(node.format_spec, bound) if node.format_spec else "")

    def _turns(self, loops: Sequence[ast.comprehension], bound: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        if not loops:
            return [bound]
        found: list[Mapping[str, Any]] = []
        for item in self.value(loops[0].iter, bound):
            inner = {**bound, loops[0].target.id: item}  # type: ignore[attr-defined]
            if all(self.value(condition, inner) for condition in loops[0].ifs):
                found += self._turns(loops[1:], inner)
        return found

    # --- functions ---

    def _call(self, node: ast.Call, bound: Mapping[str, Any]) -> Any:
        if isinstance(node.func, ast.Attribute):
            given = [self.value(argument, bound) for argument in node.args]
            return getattr(self.value(node.func.value, bound), node.func.attr)(*given)
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name == "series":
            return self._newest(node)
        if name in OF_RANKS:
            return self._of_ranks(name, node.args[0])
        if name == "milestone":
            return _known(self.world.milestones[ast.dump(node)])
        if is_of_family(node, self.world):
            return self._of_family(name, node, bound)
        if name in OF_CONTROLLERS or (name in ("streak", "age", "previous") and _is_text(node.args[0])):
            return self.world.asked(name, node.args[0].value)  # type: ignore[attr-defined]
        argument = series_argument(node, self.world)
        if argument is not None:
            return self._of_series(name, node, argument)
        given = [self.value(argument, bound) for argument in node.args]
        return PLAIN[name](*given, **{word.arg or "": self.value(word.value, bound) for word in node.keywords})

    def _of_ranks(self, name: str, argument: ast.expr) -> Any:
        found = []
        for rank in range(len(self.world.ranks)):
            try:
                found.append(Evaluation(self.world, rank=rank).value(argument))
            except Undefined:
                continue
        if not found:
            raise Undefined
        if name == "any_rank":
            return any(found)
        low, high = smallest(found), greatest(found)
        return {"max_rank": high, "min_rank": low, "spread": high - low}[name]

    def _of_family(self, name: str, node: ast.Call, bound: Mapping[str, Any]) -> Any:
        (pattern,) = patterns(node.args[0], self.world)
        found: list[Any] = []
        names: list[str] = []
        for member in self.world.members(pattern):
            here = Evaluation(self.world, {**self.members, pattern: member}, in_series=self.in_series)
            self.world.depth_of_families += 1
            try:
                found.append(here.value(node.args[0], bound))
            except Undefined:
                continue
            finally:
                self.world.depth_of_families -= 1
            names.append(member[0])
            if name in ("any", "all") and bool(found[-1]) == (name == "any"):
                return name == "any"
        if name == "count":
            return sum(value is not False for value in found)
        if not found:
            raise Undefined
        if name in ("any", "all"):
            return name == "all"
        values = [float(value) for value in found]
        if name in ("argmin", "argmax"):
            wrong = [one for one, value in zip(names, values, strict=True) if value != value]
            return wrong[0] if wrong else names[values.index(min(values) if name == "argmin" else max(values))]
        return REDUCTIONS[name](values, *(self.value(share) for share in node.args[1:]))

    def _of_series(self, name: str, node: ast.Call, argument: ast.expr) -> Any:
        words = {word.arg: self.value(word.value) for word in node.keywords}
        rest = [self.value(given) for given in node.args[1:]]
        entries = self.entries(argument)
        if name == "improved":
            # Greater is better for a name that says so, and for no expression.
            series = literal_series(argument, self.world)
            sign = -1 if series is not None and series[0] == "acc" else 1
            newest = [sign * entry.value for entry in entries]
            return _improved(newest[: len(newest) - words.get("skip", 0)], words.get("by", 0))
        if name in ("lag", "delta", "age", "absent", "len", "initial", "streak"):
            return self._of_history(name, entries, words, rest)
        share = words.pop("q", None)
        if name == "quantile" and share is None:
            share = rest.pop()
        length = rest.pop(0) if name == "ema" else None
        window = _window(words, rest)
        kept = window.of(entries, self.world.now, must_be_full=self.in_series)
        values = [entry.value for entry in kept]
        if name == "zscore":
            return zscore(last([entry.value for entry in entries]), values)
        if name == "rate":
            return _rate(entries[-1:], kept if window.unit is not None else entries[-2:-1])
        if name == "slope" and words.get("per") == "step":
            return slope_over([entry.at.step for entry in kept], values)
        extra = [given for given in (share, length) if given is not None]
        return {**REDUCTIONS, **FROM_FIRST}[name](values, *extra)

    def _of_history(self, name: str, entries: list[Entry], words: dict[Any, Any], rest: list[Any]) -> Any:
        now = self.world.now
        values = [entry.value for entry in entries]
        unit = next((word for word in words if word in UNITS), None)
        if name == "len":
            return len(values)
        if name == "initial":
            return first([value for value in values[: len(values) - words.get("skip", 0)] if math.isfinite(value)])
        if name == "streak":
            kept = values[: len(values) - words.get("skip", 0)]
            return _streak(kept)
        if name == "age":
            return now.step - last(entries).at.step
        if name == "absent":
            assert unit is not None
            since = came(entries[-1], unit) if entries else 0
            return clock(now, unit) - since >= words[unit]
        earlier = self._lag(entries, unit, words, rest, default=1 if name == "delta" else None)
        return earlier if name == "lag" else last(values) - earlier

    def _lag(
        self, entries: list[Entry], unit: str | None, words: dict[Any, Any], rest: list[Any], default: int | None
    ) -> float:
        if unit is not None:
            bound = clock(self.world.now, unit) - words[unit]
            return float(last([entry.value for entry in entries if came(entry, unit) <= bound]))
        back = rest[0] if rest else words.get("last", default or 0)
        return float(last([entry.value for entry in entries[: max(len(entries) - back, 0)]]))


def _known(value: Any) -> Any:
    if value is None:
        raise Undefined
    return value


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _improved(values: Sequence[float], by: float) -> bool:
    best, is_better = math.inf, None
    for value in values:
        if math.isfinite(value):
            is_better = value < best - by
            best = value if is_better else best
        else:
            is_better = False
    return bool(_known(is_better))


def _streak(values: Sequence[float]) -> int:
    if not values:
        raise Undefined
    count = 0
    for value in reversed(values):
        if value != 1:
            break
        count += 1
    return count


def _rate(newest: Sequence[Entry], before: Sequence[Entry]) -> float:
    if not newest or not before or newest[0].at.step == before[0].at.step:
        raise Undefined
    return (newest[0].value - before[0].value) / (newest[0].at.step - before[0].at.step)


def _window(words: Mapping[Any, Any], rest: Sequence[Any]) -> Window:
    unit = next((word for word in words if word in UNITS or word == "last"), "last" if rest else None)
    length = rest[0] if rest else words.get(unit)
    return Window(unit, length, words.get("skip", 0), words.get("half"), words.get("min"))
