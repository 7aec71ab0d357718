"""Operations with arguments, as a policy writes them: ``lr.scale(0.5, over=50)``.

A loop carries out such a call, or refuses it, and the log keeps its answer. In decisions and digests a call is its
canonical text: params filled in, and defaults left out.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, TypeAlias

from .effects import Effect

#: The value of an argument: a number, or a word.
CallValue: TypeAlias = int | float | str

_LARGEST: Final = 10**10


class InvalidCall(ValueError):
    """A call is malformed.

    Attributes:
        fix: What to write instead; empty where the message says it.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One parameter of an operation.

    Attributes:
        type_: ``float``, ``int`` or ``str``.
        least: The least number.
        is_above: Whether the number must be above that.
        words: The words that it takes.
        default: Its value where a call leaves it out.
        is_required: Whether a call must give it.
        needs: Another parameter that a call must give with it; empty without one.
    """

    type_: type[float] | type[int] | type[str]
    least: int = 0
    is_above: bool = False
    words: tuple[str, ...] = ()
    default: CallValue | None = None
    is_required: bool = False
    needs: str = ""

    def checked(self, name: str, value: object) -> CallValue:
        """Return the value in the parameter's type.

        Raises:
            InvalidCall: It has another type, or lies outside.
        """
        if self.type_ is str:
            if value in self.words:
                return str(value)
            raise InvalidCall(f"'{name}' takes one of the words {', '.join(self.words)}; got {value!r}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InvalidCall(f"'{name}' takes a number; got {value!r}")
        if self.type_ is int and value != int(value):
            raise InvalidCall(f"'{name}' takes a whole number; got {value!r}")
        if value > _LARGEST or value < self.least or (self.is_above and value == self.least):
            bound = "above" if self.is_above else "at least"
            raise InvalidCall(f"'{name}' must be {bound} {self.least}; got {value!r}")
        return self.type_(value)


_FACTOR: Final = _Parameter(float, is_above=True, is_required=True)


@dataclass(frozen=True, slots=True)
class CallForm:
    """An operation that takes arguments.

    Attributes:
        effect: What it does to the loop.
        parameters: By name, in the order of a call.
        is_before_update: Whether it takes effect only if the loop asks before an update.
    """

    effect: Effect
    parameters: Mapping[str, _Parameter]
    is_before_update: bool = False


#: The operations that take arguments.
CALLS: Final[Mapping[str, CallForm]] = {
    "lr.scale": CallForm(
        Effect.STEER,
        {
            "factor": _FACTOR,
            "over": _Parameter(int, least=1),
            "blend": _Parameter(str, words=("linear", "none"), default="linear", needs="over"),
        },
    ),
    "lr.reduce": CallForm(Effect.STEER, {"factor": _FACTOR}),
    "lr.restore": CallForm(Effect.STEER, {}),
    "epochs.set": CallForm(Effect.STEER, {"n": _Parameter(int, least=1, is_required=True)}),
    "batch.skip": CallForm(Effect.STEER, {}, is_before_update=True),
    "rollback.to": CallForm(
        Effect.STEER,
        {
            "save": _Parameter(str, words=("last",), is_required=True),
            "before": _Parameter(int, default=0),
            "times": _Parameter(int, least=1, default=3),
        },
    ),
    "detail.set": CallForm(Effect.ADJUST, {"level": _Parameter(int, is_required=True)}),
}

#: The triggers before an update: where a batch can still be skipped.
BEFORE_UPDATE: Final = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step")


@dataclass(frozen=True, slots=True)
class OperationCall:
    """A call of an operation.

    Attributes:
        name: The operation, as ``name.action``.
        arguments: Its arguments by name, defaults filled in; None for one that is left out and has none.
    """

    name: str
    arguments: Mapping[str, CallValue | None]

    @property
    def effect(self) -> Effect:
        """Its effect on the loop."""
        return CALLS[self.name].effect

    def __str__(self) -> str:
        parameters = CALLS[self.name].parameters
        parts = [
            f"{value}" if parameters[name].is_required else f"{name}={value}"
            for name, value in self.arguments.items()
            if value != parameters[name].default
        ]
        return f"{self.name}({', '.join(parts)})"


def is_call(operation: str) -> bool:
    """Whether an operation is written as a call."""
    return "(" in operation


def rolls_back(operations: Iterable[str]) -> bool:
    """Whether one of the operations is a rollback."""
    return any(map(_is_rollback, operations))


def in_order(operations: Iterable[str]) -> list[str]:
    """Return operations as they are carried out: rollbacks first, because they would undo what came before."""
    return sorted(operations, key=lambda operation: not _is_rollback(operation))


def _is_rollback(operation: str) -> bool:
    return operation.startswith("rollback.to(")


def parse_call(text: str, params: Mapping[str, object] | None = None) -> OperationCall:
    """Return the call that a text writes.

    Args:
        text: Such as ``lr.scale(0.5, over=grace)``.
        params: The values of names that stand for arguments.

    Raises:
        InvalidCall: It is no call of such an operation.

    >>> str(parse_call("lr.scale(half, over=50.0)", {"half": 0.5}))
    'lr.scale(0.5, over=50)'
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidCall("not a call", 'Write a call in quotes: "lr.scale(0.5, over=50)".') from error
    if not isinstance(node, ast.Call):
        raise InvalidCall("an operation with arguments lacks its brackets", "Write it as lr.scale(0.5, over=50).")
    name = ast.unparse(node.func)
    if name not in CALLS:
        near = get_close_matches(name, CALLS, n=1)
        known = f"Did you mean '{near[0]}'?" if near else f"Operations with arguments are {', '.join(CALLS)}"
        raise InvalidCall("unknown operation", known)
    return OperationCall(name, _arguments(name, node, params or {}))


def _arguments(name: str, node: ast.Call, params: Mapping[str, object]) -> dict[str, CallValue | None]:
    parameters, given = CALLS[name].parameters, _given(name, node)
    for key, parameter in parameters.items():
        if parameter.is_required and key not in given:
            raise InvalidCall(f"{name} needs '{key}'")
        if parameter.needs and key in given and parameter.needs not in given:
            raise InvalidCall(f"'{key}' needs '{parameter.needs}'")
    return {
        key: parameter.checked(key, _value(given[key], parameter, params)) if key in given else parameter.default
        for key, parameter in parameters.items()
    }


def _given(name: str, node: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments that a call gives, by the names of the operation's parameters."""
    parameters = CALLS[name].parameters
    if len(node.args) > len(parameters):
        raise InvalidCall(f"{name} takes {len(parameters)} arguments; got {len(node.args)}")
    given = dict(zip(parameters, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg not in parameters:
            known = f"its arguments are {', '.join(parameters)}" if parameters else "it takes none"
            raise InvalidCall(f"{name} has no argument {keyword.arg!r}; {known}")
        if keyword.arg in given:
            raise InvalidCall(f"{name} is given '{keyword.arg}' twice")
        given[keyword.arg] = keyword.value
    return given


def _value(node: ast.expr, parameter: _Parameter, params: Mapping[str, object]) -> object:
    """Return the value of an argument: a number, a word, or what a param holds."""
    if isinstance(node, ast.Name):
        if node.id in params:
            return params[node.id]
        if parameter.type_ is str:
            return node.id
        raise InvalidCall(f"'{node.id}' is not one of the params", "An argument is a number or the name of a param.")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return _negative(node.operand.value)
    if isinstance(node, ast.Constant):
        return node.value
    raise InvalidCall("an argument is a number, a word or the name of a param")


def _negative(value: object) -> object:
    return -value if isinstance(value, (int, float)) else value
