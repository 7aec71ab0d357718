"""Warns of calls that record something other than the loop means: once per recorder and case, or raising when strict.

Values in, warnings on the logger ``steptape`` out. No check changes what is recorded.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from ...store.annotations import INCIDENT, labelled_steps
from ...store.errors import InvalidEvent
from ...store.run_info import RunInfo
from ..position import Position
from ..values import Payload, json_value

_Taken = TypeVar("_Taken")

logger = logging.getLogger("steptape")

#: Names whose value is a number in every training loop.
_NUMERIC_NAME: Final = re.compile(r"(^|[/_.])(loss|lr|learning_rate|acc|accuracy|perplexity|norm)$")

#: Names that an evaluation gives its values.
_EVALUATES: Final = ("eval", "val", "test")  # 0.2 us faster than the expression.
_OF_EVALUATION: Final = re.compile(r"(eval|evaluation|val|valid|validation|test)[/_.]")


class CallWarnings:
    """The warnings of one recorder about its calls.

    Args:
        strict: Raise instead of warning.
        read_by_rules: The metrics that its rules read.
    """

    def __init__(self, *, strict: bool, read_by_rules: Collection[str] = ()) -> None:
        self._strict = strict
        self._read_by_rules = read_by_rules
        self._numbers: set[str] = set()
        self._warned: set[str] = set()

    def once(self, message: str, *, about: str = "") -> None:
        """Log a warning, once per message. Messages that differ only by a value share an ``about``."""
        if (about or message) not in self._warned:
            self._warned.add(about or message)
            logger.warning("%s", message)

    def object_to(self, what: str, *, got: object = None, fix: str = "") -> None:
        """Warn of a call, once for each ``what``.

        Raises:
            InvalidEvent: With ``strict``.
        """
        error = InvalidEvent(what, got=got, fix=fix)
        if self._strict:
            raise error
        self.once(str(error), about=what)

    def taken(self, convert: Callable[..., _Taken], *arguments: Any, default: _Taken) -> _Taken:
        """Convert an argument from the loop. If it is invalid, warn and return the default, or raise when strict."""
        try:
            return convert(*arguments)
        except InvalidEvent as error:
            if self._strict:
                raise
            self.once(f"{error}; using {default!r} instead", about=error.what)
            return default

    def size_of(self, path: str) -> int | None:
        """Return the size of a checkpoint in bytes: that of a file, or of all files in a folder. Else warn; None."""
        try:
            if os.path.isdir(path):
                return sum(
                    os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names
                )
            if os.path.isfile(path):
                return os.stat(path).st_size
        except (OSError, ValueError):
            pass
        what = "save: the size of the checkpoint is unknown, because its path is neither a file nor a folder"
        self.once(f"{what}; got {path!r}. Give size_bytes= if you know it", about=what)
        return None

    def values(self, kind: str, payload: Payload) -> None:
        """Check the values of an event."""
        if payload.oddities or payload.texts:
            self._odd_values(payload)
        names = payload.names
        if kind == "step_end" and (names or (*payload.on_device, ""))[0].startswith(_EVALUATES):
            self._step_names((*names, *payload.on_device))
        self._numbers.update(names)
        if payload.on_device:
            self._numbers.update(payload.on_device)

    def step_number(self, step: int, position: Position) -> None:
        """Check a step number that the loop gives, before the position takes it."""
        if step > position.step or not (position.is_counting and position.is_ordered):
            return
        position.is_ordered = False
        self.object_to(
            f"step {step} follows step {position.step}: step numbers repeat or go backwards; recorded as given",
            fix="Count updates on across epochs, and give all values of an update in one call",
        )

    def log_without_steps(self, position: Position) -> None:
        """Check a ``log``: before the first step, everything lands at step 0."""
        if not position.is_counting and position.step == 0:
            self.object_to(
                "log does not count steps; rec.step does. Values logged before the first step are recorded at step 0"
            )

    def rules_left_out(self, info: RunInfo) -> None:
        """Check a resume: rules continue only where they are given again. It may be meant, so this never raises."""
        parent = next((each for each in info.attempts if each.attempt == info.last.parent), None)
        if info.last.policy is None and parent is not None and parent.policy is not None:
            had = f"attempt {parent.attempt}, which it resumes, had {parent.policy.source}"
            self.once(f"this attempt has no rules, but {had}. Give rules= to continue them")

    def incident(self, attrs: Mapping[str, Any], step: int) -> None:
        """Check a note: if it labels an incident, it must have a range of steps."""
        if INCIDENT in attrs:
            try:
                labelled_steps(json_value(dict(attrs)), step)
            except InvalidEvent as error:
                self.object_to(error.what, got=error.got, fix=error.fix)

    def lone_samples(self, given: Mapping[str, Any]) -> None:
        """Warn of the sample arguments of a step without ``samples``."""
        for name, value in given.items():
            if value is not None:
                self.object_to(f"{name} are recorded only with samples", fix="Give the losses as samples=")

    def _step_names(self, names: tuple[str, ...]) -> None:
        """Check the names of a step: they must not all be of an evaluation."""
        if all(map(_OF_EVALUATION.match, names)):
            what = f"a step counts an update, but this one has only {', '.join(map(repr, names))}"
            self.object_to(what, fix="Record them with evaluate(...), or together with the loss of their update")

    def _odd_values(self, payload: Payload) -> None:
        for oddity in payload.oddities:
            self.object_to(oddity)
        for name, text in payload.texts.items():
            if (fault := self._fault_of_text(name, text)) is not None:
                self.object_to(f"{name!r} is text{fault}", got=text, fix="Give it as a number")

    def _fault_of_text(self, name: str, text: str) -> str | None:
        if name in self._numbers:
            return ", and was a number before"
        if name in self._read_by_rules:
            return ", and rules read it as a number"
        if _reads_like_a_number(text):
            return " that reads like a number"
        return " where a number is expected" if _NUMERIC_NAME.search(name) else None


def values_by_name(kind: str, metrics: Any, scalars: Mapping[str, Any], warnings: CallWarnings) -> Mapping[str, Any]:
    """Return the values of a call: those of its mapping, then its keywords, which win.

    Args:
        kind: The kind of event that the call records.
        metrics: The positional argument; a tuple if the call had several.

    Raises:
        InvalidEvent: The positional argument is not one mapping.
    """
    if "step" in scalars and kind != "step_end":
        warnings.object_to(
            f"'step' is recorded as a metric: {kind} has no such argument, and records at the current step",
            fix="Call rec.step(step=...) before it",
        )
    if metrics is None:
        return scalars
    try:
        given = {**metrics, **scalars}
    except TypeError:
        raise _miscalled(kind, metrics) from None
    if len(given) < len(metrics) + len(scalars):
        for name in scalars:
            if name in metrics:
                warnings.object_to(f"{name!r} is given twice in one call; the keyword's value is recorded")
    return given


def _miscalled(kind: str, given: Any) -> InvalidEvent:
    """Return the error for a call whose positional arguments are not one mapping."""
    call = kind.removesuffix("_end")
    value = repr(given) if isinstance(given, (int, float)) else "..."
    fix = "step({...}, step=5)" if isinstance(given, tuple) else f"{call}(loss={value})"
    return InvalidEvent(f"{call} takes values by name", got=given, fix=f"Write {fix}")


def _reads_like_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
