"""Caches the answers of rules for as long as a new evaluation would give the same."""

from __future__ import annotations

from .triggered_controllers import Listener


class StandingAnswers:
    """The cached answers of one engine.

    Rules that read only controller metrics and series of other kinds of events need no new evaluation until one of
    those takes a value. Most events of most runs fall between two such moments.

    Attributes:
        listeners: The listeners whose rules have cached answers.
        idle_kinds: Kinds of events that change no state and produce no outcome while the answers are valid.
    """

    __slots__ = ("idle_kinds", "listeners")

    def __init__(self) -> None:
        self.idle_kinds: set[str] = set()
        self.listeners: list[Listener] = []

    def keep(self, listener: Listener, answers: list[tuple[int, object]]) -> None:
        """Cache the answers of the rules of one kind of event."""
        listener.answers = answers
        self.listeners.append(listener)

    def forget(self) -> None:
        """Invalidate all answers: something that rules read is about to change."""
        for listener in self.listeners:
            listener.answers = None
        self.listeners.clear()
        self.idle_kinds.clear()
