"""``Recorder.step`` for a loop that records the same metrics again and again, as one function made for their names.

Python spends more on taking ten keyword arguments apart, one layer after the other, than the kernel on writing them:
the general way costs six times a bare ``write``, this one two and a half times. Where every value is a number that the
host has and nothing out of the ordinary is due, it does what the general way does, byte for byte; a test holds the two
together. Every other call it hands on.
"""

from __future__ import annotations

import functools
import keyword
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..store.errors import TelemetryError
from ..store.events import Event
from ..store.journal.format import samples_block
from ..store.journal.writer import InlineAppend
from .batch_samples import sample_losses
from .values import are_texts, float_at_hand

if TYPE_CHECKING:
    from .control import Control
    from .position import Position
    from .tape import Tape

#: Names beyond this many are not worth a function.
MOST_NAMES: Final = 64

#: The arguments of ``Recorder.step``, beside metrics, that a compiled step takes.
_SAMPLE_ARGUMENTS: Final = ("samples", "sample_ids", "sample_tokens")

_ABSENT: Final = object()
_NO_ATTRS: Final[Mapping[str, Any]] = {}


class StepShape(NamedTuple):
    """What calls of ``Recorder.step`` have in common.

    Attributes:
        names: The metrics, in the order in which they are recorded.
        has_samples: Whether sample losses come with them.
        is_mapping: Whether the metrics come in a dictionary; as keyword arguments otherwise.
    """

    names: tuple[str, ...]
    has_samples: bool
    is_mapping: bool

    @property
    def can_be_compiled(self) -> bool:
        """Whether a function can be made for the names."""
        can_be_held = are_texts(self.names) if self.is_mapping else all(map(_can_be_parameter, self.names))
        return 0 < len(self.names) <= MOST_NAMES and can_be_held

    @property
    def variables(self) -> tuple[str, ...]:
        """What the function calls their values."""
        return tuple(f"_value_{index}" for index in range(len(self.names))) if self.is_mapping else self.names


def compiled_step(
    shape: StepShape,
    general: Callable[..., Control],
    apply: Callable[..., Control],
    tape: Tape,
    position: Position,
    control: Control,
    log_every: int | None,
) -> Callable[..., Control] | None:
    """The step function for calls of one shape.

    Args:
        shape: One that can be compiled.
        general: What takes every call that this one does not.
        apply: Carries out what rules decided, and returns ``control``.
        tape, position, control, log_every: The recorder's own.

    Returns:
        The function; None where the journal's open segment has never seen these metrics.
    """
    append = tape.journal.inline_append("step_end", shape.names, shape.variables, with_samples=shape.has_samples)
    if append is None:
        return None
    bindings: dict[str, Any] = {
        **append.bindings,
        "_absent": _ABSENT,
        "_apply": apply,
        "_control": control,
        "_dict": dict,
        "_Event": Event,
        "_float": float,
        "_float_at_hand": float_at_hand,
        "_general": general,
        "_getattr": getattr,
        "_given": _given,
        "_judge": tape.decide,
        "_acquire": tape.lock.acquire,
        "_release": tape.lock.release,
        "_is_owned": tape.is_busy,
        "_isinstance": isinstance,
        "_monotonic_ns": time.monotonic_ns,
        "_names": shape.names,
        "_new": tuple.__new__,
        "_no_attrs": _NO_ATTRS,
        "_now_ns": time.time_ns,
        "_position": position,
        "_refusals": (OSError, TelemetryError),
        "_sample_losses": sample_losses,
        "_samples_block": samples_block,
        "_started_ns": tape.started_ns,
        "_tape": tape,
        "_tuple": tuple,
        "_type": type,
        "_unknown": math.nan,
    }
    source = _source(shape, append, tuple(bindings), position.steps_per_epoch, log_every, tape)
    step: Callable[..., Control] = _maker(source)(**bindings)
    return functools.update_wrapper(step, general)


def _source(
    shape: StepShape,
    append: InlineAppend,
    bindings: Iterable[str],
    steps_per_epoch: int | None,
    log_every: int | None,
    tape: Tape,
) -> str:
    of_metrics = () if shape.is_mapping else tuple(f"{name}=_absent" for name in shape.names)
    parameters = ", ".join((*of_metrics, *(f"{name}=None" for name in _SAMPLE_ARGUMENTS)))
    samples = ", ".join(f"{name}={name}" for name in _SAMPLE_ARGUMENTS)
    are_alike = f"not _others and samples is {'not ' if shape.has_samples else ''}None"
    if shape.has_samples:
        # Tensors on a device are not waited for.
        are_alike += "".join(f" and _getattr({name}, 'is_cpu', True)" for name in _SAMPLE_ARGUMENTS)
    if shape.is_mapping:
        are_alike += " and _type(_metrics) is _dict and _tuple(_metrics) == _names"
        unpacking = [f"{', '.join(shape.variables)}, = _metrics.values()"]
        handing_on = f"_general(_metrics, {samples}, **_others)"
    else:
        are_alike += " and _metrics is None"
        unpacking = []
        handing_on = f"_general(_metrics, **_given({_dictionary(shape)}), {samples}, **_others)"
    are_floats = f"_are_floats = {' is '.join(f'_type({name})' for name in shape.variables)} is _float"
    is_plain = f"_tape.is_clear and {append.condition}"
    if log_every:
        is_plain += f" and (_position.step + 1) % {log_every}"
    epoch = "_position.epoch"
    if steps_per_epoch:
        epoch += f" + (_step - _position.epoch_began_at) / {steps_per_epoch}"
    packing = (
        [f"_losses = _sample_losses({samples})", "_samples = _samples_block(_losses)"] if shape.has_samples else []
    )
    if tape.is_steered:
        before, then = ["_outcomes = None"], [_event_line(shape, tape)]
        applying = ["if _outcomes is not None:", "    return _apply(_outcomes)"]
    else:
        before, then = [], ["_tape.is_clear = not _tape.postponed", "_release()", "return _control"]
        applying = []
    lines = [
        f"def make({', '.join(bindings)}):",
        f"    def step(_metrics=None, /, *, {parameters}, **_others):",
        *_indented(8, before),
        f"        if {are_alike}:",
        *_indented(12, unpacking),
        f"            {are_floats}",
        "            if not _are_floats:",
        *(f"                {name} = _float_at_hand({name})" for name in shape.variables),
        f"                {are_floats}",
        "            if _are_floats:",
        "                try:",
        *_indented(20, packing),
        "                    _acquire()",
        "                    _time_ns = _now_ns()",
        f"                    if {is_plain}:",
        "                        _tape.is_clear = False",
        "                        _step = _position.step + 1",
        "                        _elapsed_ns = _monotonic_ns() - _started_ns",
        f"                        _epoch = _unknown if _position.epoch is None else {epoch}",
        *_indented(24, append.statements),
        "                        _position.step = _step",
        *_indented(24, then),
        "                    _release()",
        "                except _BaseException as _error:",
        "                    if _is_owned():",
        "                        _release()",
        "                    if not _isinstance(_error, _refusals):",
        "                        raise",
        *_indented(8, applying),
        f"        return {handing_on}",
        "    return step",
    ]
    return "\n".join(lines)


def _event_line(shape: StepShape, tape: Tape) -> str:
    envelope = f"'step_end', _step, _seq, {tape.attempt}, {tape.rank}, 0, _position.epoch_at(_step)"
    losses = "_losses" if tape.reads_samples and shape.has_samples else None
    event = f"({envelope}, _time_ns, _elapsed_ns, 0, {_dictionary(shape)}, _no_attrs, {losses})"
    return f"_outcomes = _judge(_new(_Event, {event}))"


def _dictionary(shape: StepShape) -> str:
    values = zip(shape.names, shape.variables, strict=True)
    return f"{{{', '.join(f'{name!r}: {variable}' for name, variable in values)}}}"


def _indented(columns: int, lines: Iterable[str]) -> list[str]:
    return [f"{' ' * columns}{line}" for line in lines]


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that the caller gave."""
    return {name: value for name, value in arguments.items() if value is not _ABSENT}


def _can_be_parameter(name: str) -> bool:
    """Whether the name can stand in the source, where names that begin with an underscore are taken."""
    return name.isascii() and name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name)


@functools.lru_cache(maxsize=256)
def _maker(source: str) -> Callable[..., Callable[..., Control]]:
    """The function that such source defines. Sources repeat from run to run and from segment to segment."""
    names: dict[str, Any] = {}
    exec(compile(source, "<a step of steptape>", "exec"), names)
    make: Callable[..., Callable[..., Control]] = names["make"]
    return make
