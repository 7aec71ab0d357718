"""What requests can get wrong, beyond what the store says of its runs."""

from __future__ import annotations

from ..store import TelemetryError


class InvalidCursor(TelemetryError):
    """A cursor that no page of this query gave out."""


class MetricNotFound(TelemetryError):
    """No event of the run carries the metric."""
