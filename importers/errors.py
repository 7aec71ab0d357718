"""The error that readers raise for a source."""

from __future__ import annotations

from ..store.errors import TelemetryError


class UnreadableSource(TelemetryError):
    """A file that is not what its kind says, or is cut short, or holds what an event cannot."""
