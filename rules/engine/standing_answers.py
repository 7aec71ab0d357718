"""What rules answered last, for as long as they would answer the same again."""

from __future__ import annotations

from .triggered_controllers import Listener


class StandingAnswers:
    """The answers of one engine that still stand.

    Rules that look at controller metrics and at series of other kinds of events alone need not be asked again until one
    of those takes a value. Most events of most runs come between two such moments.

    Attributes:
        listeners: Those whose rules have answers that stand.
        idle_kinds: Kinds of events that change nothing and of which nothing is said, as long as the answers stand.
    """

    __slots__ = ("idle_kinds", "listeners")

    def __init__(self) -> None:
        self.idle_kinds: set[str] = set()
        self.listeners: list[Listener] = []

    def keep(self, listener: Listener, answers: list[tuple[int, object]]) -> None:
        """Keep what the rules of one kind of event answered."""
        listener.answers = answers
        self.listeners.append(listener)

    def forget(self) -> None:
        """Let everything be asked anew: something that rules read is about to change."""
        for listener in self.listeners:
            listener.answers = None
        self.listeners.clear()
        self.idle_kinds.clear()
