"""Parses and renders the message of a controller: text with expressions of the rule language in braces.

A policy load parses the template and checks it like a rule; each decision renders it. Rendering reads only what rules
can read, and never fails: a note replaces whatever cannot be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, MappingProxyType
from typing import Any, Final

from ...store.errors import shortened
from ...store.events import Event
from ..compiled.compilation import Translator
from ..compiled.names import Names
from ..errors import ExpressionError, Fault
from ..functions.text import check_specification, formatted, rendered
from ..functions.undefined import UNAVAILABLE
from ..language.binding import bind
from ..language.bound_rule import BoundRule, NameScope
from ..language.expression_types import example_values
from ..language.expressions import parse

MAX_TEMPLATE_LENGTH: Final = 2_000
MAX_MESSAGE_LENGTH: Final = 10_000

_KINDS_OF_VALUES: Final[Mapping[type, str]] = MappingProxyType(
    {float: "a float", int: "a whole number", bool: "a truth value", str: "a text"}
)

_OPENING: Final = "([{"
_CLOSING: Final = ")]}"


@dataclass(frozen=True, slots=True)
class MessageField:
    """An expression in braces.

    Attributes:
        text: The expression, as written.
        specification: The format after the colon; empty for none.
        bound: The expression, every name resolved.
        code: The code of a function of the event that returns its value.
    """

    text: str
    specification: str
    bound: BoundRule = field(repr=False, compare=False)
    code: CodeType = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class MessageTemplate:
    """A message before it is rendered.

    Attributes:
        text: As in the file.
        parts: Literal texts and expressions, in order.
    """

    text: str
    parts: tuple[str | MessageField, ...] = field(repr=False, compare=False)

    @property
    def fields(self) -> tuple[MessageField, ...]:
        """The expressions, in order."""
        return tuple(part for part in self.parts if isinstance(part, MessageField))


def parse_message(text: str, scope: NameScope, names: Names) -> MessageTemplate:
    """Parse a template; check and compile its expressions.

    Args:
        text: The template; ``{{`` and ``}}`` are braces.
        scope: The names that expressions can use.
        names: The policy's names for generated code.

    Raises:
        ExpressionError: The template is invalid. The error holds all faults of all expressions, each with its offset in
            the template.
    """
    if len(text) > MAX_TEMPLATE_LENGTH:
        raise ExpressionError([Fault(0, f"longer than {MAX_TEMPLATE_LENGTH:,} characters", str(len(text)))])
    parts: list[str | MessageField] = []
    faults: list[Fault] = []
    for start, piece, specification in _pieces(text):
        if specification is None:
            parts.append(piece)
            continue
        try:
            bound = bind(parse(piece, has_rates=scope.has_rates), scope, is_condition=False)
            check_specification(specification)
            _check_format(specification, bound)
            parts.append(
                MessageField(piece, specification, bound, Translator(bound, names).code(bound.expression.tree))
            )
        except ExpressionError as error:
            faults += [Fault(start + fault.offset, fault.what, fault.got, fault.fix) for fault in error.faults]
        except ValueError as error:
            faults.append(Fault(start, str(error)))
    if faults:
        raise ExpressionError(faults)
    return MessageTemplate(text, tuple(parts))


def _check_format(specification: str, bound: BoundRule) -> None:
    """Refuse a format that fails for every value that the expression may have.

    Raises:
        ExpressionError: The format is refused.
    """
    examples = example_values(bound.expression.tree, bound)
    if specification and not any(_takes(value, specification) for value in examples):
        what = f"{_KINDS_OF_VALUES[type(examples[0])]} has no such format" if len(examples) == 1 else "not a format"
        fix = "Write {loss:.3f} for three decimals, or no format."
        raise ExpressionError([Fault(len(bound.expression.text) + 1, what, repr(specification), fix)])


def _takes(value: object, specification: str) -> bool:
    try:
        format(value, specification)
    except ValueError:
        return False
    return True


def _pieces(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield offset, text and format specification of each piece; the specification of a literal is None."""
    literal, position = "", 0
    while position < len(text):
        character = text[position]
        if text[position : position + 2] in ("{{", "}}"):
            literal += character
            position += 2
        elif character == "}":
            raise ExpressionError(
                [Fault(position, "closing brace without an opening one", None, "Write }} for a literal brace.")]
            )
        elif character == "{":
            yield position, literal, None
            literal = ""
            colon, end = _field_end(text, position)
            specification = "" if colon is None else text[colon + 1 : end]
            yield position + 1, text[position + 1 : end if colon is None else colon], specification
            position = end + 1
        else:
            literal += character
            position += 1
    yield position, literal, None


def _field_end(text: str, start: int) -> tuple[int | None, int]:
    """Return the positions of the colon, if any, and of the closing brace of the field that begins at ``start``."""
    depth, quote, colon = 0, "", None
    for position in range(start + 1, len(text)):
        character = text[position]
        if quote:
            quote = "" if character == quote else quote
        elif colon is None and character in "'\"":
            quote = character
        elif colon is None and character in _OPENING:
            depth += 1
        elif character == "}" and depth == 0:
            return colon, position
        elif colon is None and character in _CLOSING:
            depth -= 1
        elif character == ":" and depth == 0 and colon is None:
            colon = position
    raise ExpressionError([Fault(start, "unclosed brace", None, "Write {{ for a literal brace.")])


def render(template: MessageTemplate, readings: Sequence[Callable[[Event], Any]], event: Event) -> str:
    """Render a message.

    Args:
        template: The template to render.
        readings: A function for each of its fields, in order.
        event: The event of the decision.
    """
    values = iter(readings)
    parts = (part if isinstance(part, str) else _shown(part, next(values), event) for part in template.parts)
    return shortened("".join(parts), MAX_MESSAGE_LENGTH)


def _shown(part: MessageField, reading: Callable[[Event], Any], event: Event) -> str:
    try:
        value = reading(event)
        if value is UNAVAILABLE:
            return f"<missing {part.text}>"
        return formatted(value, part.specification) if part.specification else rendered(value)
    except LookupError:
        return f"<missing {part.text}>"
    except Exception as error:  # An expression may fail in any way, and a message must never end the training.
        return f"<{type(error).__name__} {part.text}>"
