"""The operations that controllers order: the five flags of a training loop, a notice, and rendered log messages.

A message's format is a template over names, with keys in brackets or after dots. It looks up keys and never reads an
attribute, so it cannot reach beyond the values that it is given. Rendering never fails: a note replaces a missing
value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from string import Formatter
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

from ...store.errors import TelemetryError, shortened
from ..effects import NOTICE, Effect
from ..functions.plain_functions import check_specification, formatted, rendered
from ..functions.undefined import UNAVAILABLE
from ..habits import ACTIONS
from .classes import Argument, ArgumentType, ArgumentValue, Registry, check_arguments

MAX_MESSAGE_LENGTH: Final = 10_000

_SHOULD: Final = "should_"
_ACTION: Final = re.compile(f"{_SHOULD}.+")
_FIELD: Final = re.compile(r"[^\s.\[\]{}!:]+(?:\.[^.\[\]]+|\[[^\]]+\])*")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[([^\]]+)\]")
_WHOLE: Final = re.compile(r"-?\d{1,9}")


class Operation:
    """One operation of a policy; the base class for your own, see ``register_operation``.

    Every method whose name begins with ``should_`` is an action. Live, and only live, it is called with the decision
    that ordered it, after the flag of its effect was set. An exception from it is recorded, and training continues.
    Replay creates no operations.

    Attributes:
        arguments: The arguments that a policy file may set under ``arguments:``.
        actions: Its actions, each with its effect on the loop; ``ACT`` for a method that is not named here.
        version: Changes when its meaning changes. Part of the policy's digest.
        given: The arguments that the policy file sets, defaults filled in.
    """

    arguments: ClassVar[Mapping[str, Argument]] = MappingProxyType({})
    actions: ClassVar[Mapping[str, Effect]] = MappingProxyType({})
    version: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        methods = [name for name in dir(cls) if _ACTION.fullmatch(name) and callable(getattr(cls, name))]
        cls.actions = MappingProxyType({**dict.fromkeys(methods, Effect.ACT), **cls.actions})

    def __init__(self, arguments: Mapping[str, ArgumentValue]) -> None:
        self.given = arguments

    @classmethod
    def validate(cls, arguments: Mapping[str, ArgumentValue]) -> None:
        """Refuse arguments that are valid one by one but do not fit together. Called when a policy is loaded.

        Raises:
            ValueError: The arguments are refused. The reason in the error becomes a problem of the policy file.
        """


class HFControls(Operation):
    """The flags of a training loop, and a notice to people."""

    actions = MappingProxyType(
        {
            "should_training_stop": Effect.STOP,
            "should_epoch_stop": Effect.STOP_EPOCH,
            "should_save": Effect.SAVE,
            "should_evaluate": Effect.EVALUATE,
            "should_log": Effect.LOG,
            "should_notify": Effect.NOTIFY,
        }
    )


class LogControl(Operation):
    """A log message in the policy's own words.

    Attributes:
        level: The name of its logging level.
    """

    arguments = MappingProxyType(
        {
            "log_format": Argument(ArgumentType.TEXT, check=lambda text: _parts(text)),
            "log_level": Argument(ArgumentType.LEVEL),
        }
    )
    actions = MappingProxyType({"should_log": Effect.MESSAGE})

    def __init__(self, arguments: Mapping[str, ArgumentValue]) -> None:
        super().__init__(arguments)
        self._parts = _parts(str(arguments["log_format"]))
        self.level = str(arguments["log_level"])

    @property
    def names(self) -> frozenset[str]:
        """The names that its fields begin with."""
        return frozenset(field.name for _, field in self._parts if field is not None)

    def text(self, names: Mapping[str, Any]) -> str:
        """Return the message, rendered from values by name."""
        text = "".join(literal + (_field(field, names) if field else "") for literal, field in self._parts)
        return shortened(text, MAX_MESSAGE_LENGTH)


#: steptape's own operation classes, by the names that policy files use.
OPERATIONS: Final[dict[str, type[Operation]]] = {
    operation.__name__: operation for operation in (HFControls, LogControl)
}

#: The operation that every policy has, unless it declares its own of that name.
DEFAULT_OPERATION: Final = "hfcontrols"

#: The operations that rules may call by a word.
WORDS: Final[Mapping[str, str]] = {
    "stop": "hfcontrols.should_training_stop",
    "stop epoch": "hfcontrols.should_epoch_stop",
    "save": "hfcontrols.should_save",
    "evaluate": "hfcontrols.should_evaluate",
    "log": "hfcontrols.should_log",
    "notify": NOTICE,
    "skip": "batch.skip()",
}


def meant_action(operation: str, got: str, actions: Collection[str]) -> str:
    """Return a sentence that names the action that was meant, or else lists the operation's actions.

    >>> meant_action("hfcontrols", "stop", HFControls.actions)
    "Did you mean 'hfcontrols.should_training_stop'?"
    """
    stem = got.casefold().removeprefix(_SHOULD)
    near = get_close_matches(stem, [action.removeprefix(_SHOULD) for action in actions], n=1)
    action = ACTIONS.get(stem) or (_SHOULD + near[0] if near else "")
    if action in actions:
        return f"Did you mean '{operation}.{action}'?"
    return f"The actions of {operation} are {', '.join(actions)}"


@dataclass(frozen=True, slots=True)
class _Field:
    """A replacement field: its text, the name it begins with, the keys that follow, and the format."""

    text: str
    name: str
    keys: tuple[str, ...]
    specification: str


def _parts(template: str) -> list[tuple[str, _Field | None]]:
    """Split a template into literal texts, each with the field after it.

    Raises:
        ValueError: The template is malformed, or uses more than keys and a bounded format.
    """
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"not a message template: {error}") from error
    parts: list[tuple[str, _Field | None]] = []
    for literal, name, specification, conversion in pieces:
        if name is None:
            parts.append((literal, None))
            continue
        if _FIELD.fullmatch(name) is None or _WHOLE.match(name):
            raise ValueError(f"a field is a name with keys, as in {{m}} or {{m[metrics][eval_loss]}}: {{{name}}}")
        if conversion not in (None, "s"):
            raise ValueError(f"only !s is available: {{{name}!{conversion}}}")
        check_specification(specification or "")
        steps = _STEP.finditer(name)
        keys = tuple(step.group(1) or step.group(2) for step in steps)
        root = re.split(r"[.\[]", name, maxsplit=1)[0]
        parts.append((literal, _Field(name, root, keys, specification or "")))
    return parts


def _field(field: _Field, names: Mapping[str, Any]) -> str:
    try:
        value = names[field.name]
        for key in field.keys:
            value = _item(value, key)
        if value is UNAVAILABLE:
            raise KeyError(field.name)
    except (LookupError, TypeError):
        return f"<missing {field.text}>"
    try:
        return formatted(value, field.specification)
    except (ValueError, TypeError, OverflowError):
        return f"<not {field.specification}: {shortened(_plain(value))}>"
    except Exception as error:
        # A message must never end the training: a note replaces what cannot be shown.
        return f"<{type(error).__name__} {field.text}>"


def _plain(value: Any) -> str:
    return rendered(value) if isinstance(value, (str, int, float, bool, type(None))) else f"a {type(value).__name__}"


def _item(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return value[key]
    if isinstance(value, (list, tuple)) and _WHOLE.fullmatch(key):
        return value[int(key)]
    raise LookupError(key)


# --- classes of your own --------------------------------------------------------------------------------------------


def _checked_operation(cls: object, where: str) -> type[Operation]:
    if not (isinstance(cls, type) and issubclass(cls, Operation)):
        raise TelemetryError("must be a subclass of Operation", where=where, got=cls)
    if not cls.actions:
        raise TelemetryError("has no actions", where=where, fix="Add a method whose name begins with 'should_'")
    for action, effect in cls.actions.items():
        if effect is Effect.MESSAGE:
            raise TelemetryError("only LogControl may use MESSAGE", where=where, got=action, fix="Use Effect.NOTIFY")
        if effect in (Effect.ACT, Effect.NOTIFY) and not callable(getattr(cls, action, None)):
            raise TelemetryError("an ACT or NOTIFY action needs a method of its name", where=where, got=action)
    check_arguments(cls.arguments, where)
    return cls


OPERATION_CLASSES: Final = Registry[type[Operation]]("operation", "steptape.operations", OPERATIONS, _checked_operation)

_OperationClass = TypeVar("_OperationClass", bound=type[Operation])


def register_operation(cls: _OperationClass) -> _OperationClass:
    """Register an operation class under its name, for use in policy files. Serves as a decorator.

    Raises:
        TelemetryError: The class is unusable, or its name is taken.
    """
    OPERATION_CLASSES.register(cls)
    return cls
