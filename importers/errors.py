"""Defines the error that readers raise for a source."""

from __future__ import annotations

from ..store.errors import TelemetryError


class UnreadableSource(TelemetryError):
    """A file is not of its kind, is truncated, or holds values that an event cannot."""


class RefusedRun(UnreadableSource):
    """A run that would mislead: nothing of it is imported."""
