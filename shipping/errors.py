"""The errors of a push: what an intake refuses, and what a pusher retries."""

from __future__ import annotations

from typing import Final

from ..store.errors import TelemetryError

#: What to do where a pusher and its target have other versions of a format.
SAME_RELEASE: Final = "Install the same steptape at both ends"


class BadFrames(TelemetryError):
    """What was sent is not a part of a log: a checksum, a name, a number or the content is wrong."""


class OutOfStep(TelemetryError):
    """Events before the sent ones are missing here; the pusher asks for the position and sends those first."""


class RunConflict(TelemetryError):
    """The target holds another run, or another attempt, under the same name."""


class ForeignRun(TelemetryError):
    """The run was begun with another token."""


class QuotaExceeded(TelemetryError):
    """The runs of this token fill their quota."""


class IntakeBusy(TelemetryError):
    """Another process is writing to the same part of the run."""


class TargetAway(TelemetryError):
    """The target does not answer, or cannot take anything now. The pusher tries again later."""


class LineLost(TargetAway):
    """The connection broke.

    Attributes:
        after_answers: Whether the target had answered since the failure before, so that a long pause is of no use.
    """

    after_answers = False


class PushRefused(TelemetryError):
    """The target refuses this run; another try would not help."""
