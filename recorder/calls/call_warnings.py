"""Warns of calls that record something other than the loop means: once per recorder and case, or raising when strict.

Values in, warnings on the logger ``steptape`` out. No check changes what is recorded.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any, Final, TypeVar

from ...store.annotations import INCIDENT, labelled_steps
from ...store.errors import InvalidEvent, counted
from ...store.run_info import RunInfo
from ..advice import OWN, Advice
from ..loop_values import Payload, json_value
from ..position import Position

_Taken = TypeVar("_Taken")

logger = logging.getLogger("steptape")

#: Names whose value is a number in every training loop.
_NUMERIC_NAME: Final = re.compile(r"(^|[/_.])(loss|lr|learning_rate|acc|accuracy|perplexity|norm)$")

#: Names that an evaluation gives its values.
_EVALUATES: Final = ("eval", "val", "test")  # 0.2 us faster than the expression.
_OF_EVALUATION: Final = re.compile(r"(eval|evaluation|val|valid|validation|test)[/_.]")

#: Names of options that say where this start of a script begins, which a resume changes.
_OF_A_START: Final = re.compile(r"resume|restart|ckpt|checkpoint|load_from|continue_from|start_step|start_epoch")

#: The clause of a message that says what is recorded. When strict, the call raises and nothing is.
_WHAT_IS_RECORDED: Final = re.compile(r"; [^.;]*\brecorded\b[^.;]*")


class CallWarnings:
    """The warnings of one recorder about its calls.

    Args:
        strict: Raise instead of warning.
        read_by_rules: The metrics that its rules read.
        read_at_evaluations: Those that no rule with another trigger than ``on_evaluate`` reads.
        total_steps: The planned length of the run, if it is known.
        advice: The calls that the warnings name.

    Attributes:
        is_strict, total_steps, advice: The same.
    """

    def __init__(
        self,
        *,
        strict: bool,
        read_by_rules: Container[str] = (),
        read_at_evaluations: Collection[str] = (),
        total_steps: int | None = None,
        advice: Advice = OWN,
    ) -> None:
        self.is_strict, self.advice = strict, advice
        self._read_by_rules = read_by_rules
        self._read_at_evaluations = read_at_evaluations
        self.total_steps = total_steps
        self._numbers: set[str] = set()
        self._warned: set[str] = set()
        self._latest_incident = (-1, -1)

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
        if self.is_strict:
            raise InvalidEvent(_WHAT_IS_RECORDED.sub("", what), got=got, fix=fix)
        self.once(str(InvalidEvent(what, got=got, fix=fix)), about=what)

    def converted(self, convert: Callable[..., _Taken], *arguments: Any, default: _Taken) -> _Taken:
        """Convert an argument from the loop. If it is invalid, warn and return the default, or raise when strict."""
        try:
            return convert(*arguments)
        except InvalidEvent as error:
            if self.is_strict:
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
        fix = "" if self.advice.orders_steps else ". Give size_bytes= if you know it"
        self.once(f"{what}; got {path!r}{fix}", about=what)
        return None

    def check_values(self, kind: str, payload: Payload) -> None:
        """Check the values of an event."""
        if payload.oddities or payload.texts:
            self._odd_values(payload)
        names = (*payload.names, *payload.on_device) if payload.on_device else payload.names
        if kind == "step_end" and names and names[0].startswith(_EVALUATES):
            self._step_names(names)
        if not self._numbers.issuperset(names):
            self._new_names(kind, names)

    def check_step_number(self, step: int, position: Position) -> None:
        """Check a step number that the loop gives, before the position takes it."""
        if step > position.step or not position.is_ordered:
            return
        fix = "Count updates on across epochs, and give all values of an update in one call"
        resumed = ""
        if not position.is_counting:
            if step == position.step:  # A resumed loop may train the update of its checkpoint again.
                self._first_step(step)
                return
            resumed = ", from which this attempt resumes"
            fix = "Count on from the checkpoint, or resume from an earlier one with resume=(run_id, step)"
        position.is_ordered = False
        if self.advice.orders_steps:
            return
        what = f"step {step} follows step {position.step}{resumed}: step numbers repeat or go backwards"
        self.object_to(f"{what}; recorded as given", fix=fix)

    def check_log(self, position: Position) -> None:
        """Check a ``log``: before the first step, everything lands at step 0."""
        if not position.is_counting and position.step == 0 and not self.advice.orders_steps:
            self.object_to(
                "log does not count steps; rec.step does. Values logged before the first step are recorded at step 0"
            )

    def check_rules_of_resume(self, info: RunInfo) -> None:
        """Check a resume: rules continue only where they are given again. It may be meant, so this never raises."""
        parent = next((each for each in info.attempts if each.attempt == info.last.parent), None)
        if info.last.policy is None and parent is not None and parent.policy is not None:
            had = f"attempt {parent.attempt}, which it resumes, had {parent.policy.source}"
            self.once(f"this attempt has no rules, but {had}. Give rules= to continue them")

    def check_description(self, info: RunInfo, described: RunInfo, *, has_name: bool) -> None:
        """Check a resume: the run keeps its description. Another one may be meant, so this never raises."""
        name = described.name if has_name else info.name
        new = {
            key: value
            for key, value, kept in (
                ("name", name, info.name),
                ("group", described.group, info.group),
                ("tags", [*described.tags], [*info.tags]),
                ("config", described.config, info.config),
            )
            if value and value != kept
        }
        if "config" in new:
            differing = {key: value for key, value in described.config.items() if info.config.get(key) != value}
            new["config"] = {key: value for key, value in differing.items() if not _OF_A_START.search(key)}
            if not new["config"]:
                del new["config"]
        if new:
            *others, last = new
            keeps = f"{', '.join(others)} and {last}" if others else last
            note = "A note of this attempt holds the new config. " if "config" in new else ""
            error = InvalidEvent(f"a resumed run keeps its {keeps}", got=new)
            self.once(f"{error}. {note}For another {next(iter(new))}, record a new run")

    def check_incident(self, attrs: Mapping[str, Any], step: int) -> None:
        """Check a note: if it labels an incident, it must have a range of steps."""
        if INCIDENT in attrs:
            try:
                labelled = labelled_steps(json_value(dict(attrs)), step)
                self._latest_incident = max(self._latest_incident, labelled)
            except InvalidEvent as error:
                self.object_to(error.what, got=error.got, fix=error.fix)

    def check_incidents_beyond(self, last_step: int) -> None:
        """Check the labelled incidents at the end of a run. Before, they may lie ahead."""
        first, last = self._latest_incident
        if first > last_step:
            beyond = f"begins after the run's last step, {last_step}: no rule can find it"
            self.once(f"an incident at steps {first} to {last} {beyond}")

    def has_number(self, name: str) -> bool:
        """Whether a call had a number of this name."""
        return name in self._numbers

    def warn_of_lone_samples(self, **given: Any) -> None:
        """Warn of the sample arguments of a step without ``samples``."""
        for name, value in given.items():
            if value is not None:
                self.object_to(f"{name} are recorded only with samples", fix="Give the losses as samples=")

    def _first_step(self, step: int) -> None:
        if step == 0 and (total := self.total_steps):
            what = f"the first step is 0, but step counts finished updates: a loop of {counted(total, 'update', ',')}"
            what += f" then ends at step {total - 1:,}, and counts as shorter than planned"
            self.object_to(what, fix=self.advice.first_step)

    def _new_names(self, kind: str, names: tuple[str, ...]) -> None:
        """Check names of numbers that the run had not so far."""
        new = {name for name in names if name not in self._numbers}
        if "step" in new and not self.advice.orders_steps:
            takes, fix = "has no such argument, and records at the current step", "Call rec.step(step=...) before it"
            if kind == "step_end":
                takes, fix = "takes its number as an argument", "Write rec.step(values, step=...)"
            self.object_to(f"'step' is a metric here: {kind.removesuffix('_end')} {takes}", fix=fix)
        if kind == "step_end":
            for name in filter(_OF_EVALUATION.match, new.intersection(self._read_at_evaluations)):
                what = f"{name!r} is given to step, but rules read it at on_evaluate, which step does not trigger"
                self.object_to(what, fix="Record it with evaluate(...)")
        self._numbers.update(names)

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
