"""Carries out the requests from outside to a run, as if a rule had ordered them, and records who asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..store.annotations import REQUEST, Annotation, RequestWatch
from .calls.warnings import CallWarnings

if TYPE_CHECKING:
    from .ranks.agreement import Agreement, Emit


class Requests:
    """The requests to one attempt: found in the middle of an event, and carried out after it.

    Args:
        folder: The run's folder.
        agreement: Gives orders to all ranks.
        warnings: Those of the recorder.
        emit: Records an event.

    Attributes:
        found: The requests that are not carried out yet.
        why_to_stop: Who asked for the end of the training, and why; empty if nobody did.
    """

    def __init__(self, folder: Path, agreement: Agreement, warnings: CallWarnings, emit: Emit) -> None:
        self._watch, self._agreement, self._warnings, self._emit = RequestWatch(folder), agreement, warnings, emit
        self.found: list[Annotation] = []
        self.why_to_stop = ""

    def look(self, folder: Path) -> None:
        """Find new requests in the run's folder."""
        try:
            self.found += self._watch.new(folder)
        except OSError as error:
            self._warnings.once(f"requests to the run in {folder} cannot be read: {error}", about="requests")

    def carry_out(self) -> None:
        """Carry out what was found, in the order in which it came."""
        found, self.found = self.found, []
        for note in found:
            self._obey(note)

    def _obey(self, note: Annotation) -> None:
        what = note.attrs[REQUEST]
        text = f"{note.author} asked to {what}{f': {note.text}' if note.text else ''}"
        is_off = self._agreement.is_off
        if is_off or self._agreement.is_awaited:
            why = "the ranks agree no longer, so that none obeys" if is_off else "this waits for the first rec.agree()"
            self._warnings.once(f"{text}; {why}")
        # Replays compare their stops with what a person does.
        action = {"action": what} if what == "stop" and not is_off else {}
        attrs = {"text": text, REQUEST: what, "author": note.author, "asked_ns": note.time_ns, **action}
        self._emit("annotation", attrs=attrs)
        self.why_to_stop = self.why_to_stop or (text if action else "")
        self._agreement.order(what)
