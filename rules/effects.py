"""What operations do to a training loop: their effects, those with arguments, and the arithmetic of learning rates.

A policy writes an operation with arguments as a call: ``lr.scale(0.5, over=50)``. A loop carries out such a call, or
refuses it, and the log keeps its answer. In decisions and digests a call is its canonical text: params filled in, and
defaults left out. An argument that is an expression is computed at each decision, which holds its value. The arithmetic
is the same for a loop that trains and for a replay.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeAlias


class Effect(StrEnum):
    """The effect of an operation on the training loop.

    ``STEER`` and ``ADJUST`` are requests, which the loop answers with a receipt: ``STEER`` changes the trajectory, and
    ``ADJUST`` does not. The last two are for operations of your own: ``NOTIFY`` sends a notification and leaves the
    training unchanged; ``ACT`` may change it in a way that no record of another run can show.
    """

    STOP = "stop"
    STOP_EPOCH = "stop_epoch"
    SAVE = "save"
    EVALUATE = "evaluate"
    LOG = "log"
    MESSAGE = "message"
    STEER = "steer"
    ADJUST = "adjust"
    NOTIFY = "notify"
    ACT = "act"


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
            raise InvalidCall(f"'{name}' takes {_words(self.words)}; got {value!r}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise InvalidCall(f"'{name}' takes a number; got {value!r}")
        if self.type_ is int and value != int(value):
            raise InvalidCall(f"'{name}' takes a whole number; got {value!r}")
        if value > _LARGEST or value < self.least or (self.is_above and value == self.least):
            bound = "above" if self.is_above else "at least"
            raise InvalidCall(f"'{name}' must be {bound} {self.least}; got {value!r}")
        return self.type_(value)


def _words(words: Sequence[str]) -> str:
    return f"one of the words {', '.join(words)}" if len(words) > 1 else f"the word '{words[0]}' alone"


_FACTOR: Final = _Parameter(float, is_above=True, is_required=True)


@dataclass(frozen=True, slots=True)
class CallForm:
    """An operation that takes arguments.

    Attributes:
        effect: What it does to the loop.
        parameters: By name, in the order of a call.
        is_before_update: Whether it takes effect only if the loop asks before an update, without its argument.
    """

    effect: Effect
    parameters: Mapping[str, _Parameter]
    is_before_update: bool = False


#: The operations that leave out an update, load a checkpoint, and return to a restore point.
SKIP: Final = "batch.skip"
ROLL_BACK: Final = "rollback.to"
UNDO: Final = "undo.to"

#: How the names of the operations on the learning rate begin.
LEARNING_RATE: Final = "lr."

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
    SKIP: CallForm(Effect.STEER, {"updates": _Parameter(int, least=1)}, is_before_update=True),
    ROLL_BACK: CallForm(
        Effect.STEER,
        {
            "save": _Parameter(str, words=("last",), is_required=True),
            "before": _Parameter(int, default=0),
            "times": _Parameter(int, least=1, default=3),
        },
    ),
    UNDO: CallForm(
        Effect.STEER,
        {"before": _Parameter(int, is_required=True), "times": _Parameter(int, least=1, default=3)},
    ),
    "detail.set": CallForm(Effect.ADJUST, {"level": _Parameter(int, is_required=True)}),
}

#: The operation that sends the decision's message to people.
NOTICE: Final = "hfcontrols.should_notify"

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

    def __str__(self) -> str:
        parameters = CALLS[self.name].parameters
        parts = [
            f"{value}" if parameters[name].is_required else f"{name}={value}"
            for name, value in self.arguments.items()
            if value != parameters[name].default
        ]
        return f"{self.name}({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class CallTemplate:
    """A call some of whose arguments may be expressions.

    Attributes:
        call: The call, with the texts of expressions in place of their values.
        expressions: The offset of each expression in the text of the call, by the name of the argument.
    """

    call: OperationCall
    expressions: Mapping[str, int]

    def __str__(self) -> str:
        return str(self.call)

    def with_values(self, values: Mapping[str, object]) -> OperationCall:
        """Return the call with the values of its expressions.

        Raises:
            InvalidCall: A value has another type than its argument, or lies outside.
        """
        parameters = CALLS[self.call.name].parameters
        checked = {name: parameters[name].checked(name, value) for name, value in values.items()}
        return _sound(replace(self.call, arguments={**self.call.arguments, **checked}))


def is_call(operation: str) -> bool:
    """Whether an operation is written as a call."""
    return "(" in operation


def is_before_update(operation: str) -> bool:
    """Whether an operation takes effect only if the loop asks before the update that it is for.

    >>> is_before_update("batch.skip()"), is_before_update("batch.skip(updates=3)")
    (True, False)
    """
    if not is_call(operation) or not CALLS[call_name(operation)].is_before_update:
        return False
    return all(value is None for value in parse_template(operation).call.arguments.values())


def call_name(operation: str) -> str:
    """Return the operation that a call is of.

    >>> call_name("lr.scale(target / lr)")
    'lr.scale'
    """
    return operation.partition("(")[0].strip()


def may_become(template: str, operation: str) -> bool:
    """Whether a decision may write an operation of the policy as this one, once its arguments are computed."""
    return operation == template or (is_call(template) and call_name(template) == call_name(operation))


def changes_rate(operation: str) -> bool:
    """Whether an operation changes the learning rate."""
    return is_call(operation) and operation.startswith(LEARNING_RATE)


def orders_undo(operations: Iterable[str]) -> bool:
    """Whether one of the operations returns to a restore point."""
    return any(operation.startswith(f"{UNDO}(") for operation in operations)


def rolls_back(operations: Iterable[str]) -> bool:
    """Whether one of the operations is a rollback."""
    return any(map(_is_rollback, operations))


def in_order(operations: Iterable[str]) -> list[str]:
    """Return operations as they are carried out: rollbacks first, because they would undo what came before."""
    return sorted(operations, key=lambda operation: not _is_rollback(operation))


def _is_rollback(operation: str) -> bool:
    return operation.startswith(f"{ROLL_BACK}(")


def parse_call(text: str, params: Mapping[str, object] | None = None) -> OperationCall:
    """Return the call that a text writes, whose arguments are all known.

    Args:
        text: Such as ``lr.scale(0.5, over=grace)``.
        params: The values of names that stand for arguments.

    Raises:
        InvalidCall: It is no call of such an operation.

    >>> str(parse_call("lr.scale(half, over=50.0)", {"half": 0.5}))
    'lr.scale(0.5, over=50)'
    """
    template = parse_template(text, params)
    for name in template.expressions:
        what = f"'{name}' takes a number; got {template.call.arguments[name]}"
        raise InvalidCall(what, "An argument is a number or the name of a param.")
    return template.call


def parse_template(text: str, params: Mapping[str, object] | None = None) -> CallTemplate:
    """Return the call that a text writes, whose numbers may be expressions.

    Args:
        text: Such as ``lr.scale(target / lr)``.
        params: As for ``parse_call``.

    Raises:
        InvalidCall: It is no call of such an operation.

    >>> parse_template("lr.scale(target  / lr, over=2)").expressions
    {'factor': 9}
    """
    stripped = text.strip()
    try:
        node = ast.parse(stripped, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidCall("not a call", 'Write a call in quotes: "lr.scale(0.5, over=50)".') from error
    if not isinstance(node, ast.Call):
        raise InvalidCall("an operation with arguments lacks its brackets", "Write it as lr.scale(0.5, over=50).")
    name = ast.unparse(node.func)
    if name not in CALLS:
        near = get_close_matches(name, CALLS, n=1)
        known = f"Did you mean '{near[0]}'?" if near else f"Operations with arguments are {', '.join(CALLS)}"
        raise InvalidCall("unknown operation", known)
    return _template(name, node, params or {}, text.index(stripped), stripped)


def _template(name: str, node: ast.Call, params: Mapping[str, object], lead: int, text: str) -> CallTemplate:
    parameters, given = CALLS[name].parameters, _given(name, node)
    for key, parameter in parameters.items():
        if parameter.is_required and key not in given:
            raise InvalidCall(f"{name} needs '{key}'")
        if parameter.needs and key in given and parameter.needs not in given:
            raise InvalidCall(f"'{key}' needs '{parameter.needs}'")
    arguments: dict[str, CallValue | None] = {}
    expressions: dict[str, int] = {}
    for key, parameter in parameters.items():
        if key not in given:
            arguments[key] = parameter.default
        elif _is_known(given[key], parameter, params):
            arguments[key] = parameter.checked(key, _value(given[key], params))
        elif parameter.type_ is str:
            raise InvalidCall(f"'{key}' takes {_words(parameter.words)}")
        else:
            arguments[key] = (ast.get_source_segment(text, given[key]) or "").replace("\n", " ")
            lines = text.encode().split(b"\n")[: given[key].lineno]
            before = b"\n".join([*lines[:-1], lines[-1][: given[key].col_offset]])
            expressions[key] = lead + len(before.decode())
    return CallTemplate(_sound(OperationCall(name, arguments)), expressions)


def _sound(call: OperationCall) -> OperationCall:
    """Return a call whose arguments fit together.

    Raises:
        InvalidCall: They do not.
    """
    if (call.arguments.get("over"), call.arguments.get("blend")) == (1, "linear"):
        raise InvalidCall("a blend over 1 update changes no update", "Write blend=none, or over=2.")
    return call


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


def _is_known(node: ast.expr, parameter: _Parameter, params: Mapping[str, object]) -> bool:
    """Whether an argument is a number, a word or the name of a param, and no expression to compute."""
    if isinstance(node, ast.Name):
        return node.id in params or parameter.type_ is str
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    return isinstance(node.operand if is_negative else node, ast.Constant)  # type: ignore[attr-defined]


def _value(node: ast.expr, params: Mapping[str, object]) -> object:
    """Return the value of an argument: a number, a word, or what a param holds."""
    if isinstance(node, ast.Name):
        return params.get(node.id, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        return _negative(node.operand.value)
    assert isinstance(node, ast.Constant)
    return node.value


def _negative(value: object) -> object:
    return -value if isinstance(value, (int, float)) else value


# --- learning rates -------------------------------------------------------------------------------------------------

#: One number for each parameter group of an optimizer. *Base* rates are what the loop's schedule gives. *Scheduled*
#: ones are these times the permanent reductions. *Used* ones follow an override for as long as it lasts.
Rates: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Override:
    """What takes the place of the schedule for a while.

    Attributes:
        at: Updates finished when it began.
        factor: Of the scheduled rate.
        target: The absolute rates from which it begins.
        over: Its length in updates; None for one that lasts until it is lifted.
        is_blended: Whether it returns to the schedule in a straight line; otherwise it keeps the target until its end.
    """

    at: int
    factor: float
    target: Rates
    over: int | None
    is_blended: bool

    def used(self, update: int, scheduled: Rates) -> Rates:
        """Return the rates of an update."""
        if self.over is None:
            return tuple(self.factor * rate for rate in scheduled)
        elapsed = update - self.at
        if elapsed > self.over or (self.is_blended and elapsed == self.over):
            return scheduled
        targets = self._targets(scheduled)
        if not self.is_blended:
            return targets
        pairs = zip(targets, scheduled, strict=True)
        return tuple(target + (rate - target) * (elapsed / self.over) for target, rate in pairs)

    def _targets(self, scheduled: Rates) -> Rates:
        """Return a target for each parameter group. One that came after the override begins at the factor."""
        later = scheduled[len(self.target) :]
        return (*self.target[: len(scheduled)], *(self.factor * rate for rate in later))


@dataclass(frozen=True, slots=True)
class LearningRateState:
    """What the operations so far have made of the schedule.

    Attributes:
        reduction: The product of all permanent reductions.
        override: The newest override; None without one. It may be over.
    """

    reduction: float = 1.0
    override: Override | None = None

    def scheduled(self, base: Sequence[float]) -> Rates:
        """Return the scheduled rates. Reductions count, and overrides do not."""
        return tuple(self.reduction * rate for rate in base)

    def used(self, update: int, base: Sequence[float]) -> Rates:
        """Return the rates with which an update trains.

        Args:
            update: Its number: the first update of a run has 1.
            base: The rates of the loop's schedule. Shape (groups,).
        """
        scheduled = self.scheduled(base)
        return scheduled if self.override is None else self.override.used(update, scheduled)

    def after(self, call: OperationCall, step: int, base: Sequence[float]) -> LearningRateState:
        """Return the state once a call is carried out.

        Args:
            call: ``lr.scale``, ``lr.reduce`` or ``lr.restore``.
            step: Updates finished by then.
            base: The base rates of the newest update.
        """
        given = call.arguments
        if call.name == "lr.restore":
            return LearningRateState()
        factor = float(given["factor"] or 0)
        if call.name == "lr.reduce":
            return replace(self, reduction=self.reduction * factor)
        over = None if given["over"] is None else int(given["over"])
        target = tuple(factor * rate for rate in self.scheduled(base))
        return replace(self, override=Override(step, factor, target, over, given["blend"] == "linear"))
