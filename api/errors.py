"""What requests can get wrong, beyond what the store says of its runs."""

from __future__ import annotations

from ..store.errors import TelemetryError


class InvalidCursor(TelemetryError):
    """A cursor that no page of this query gave out."""


class InvalidRequest(TelemetryError):
    """A request that is well formed and asks for what cannot be."""


class MetricNotFound(TelemetryError):
    """No event of the run carries the metric."""


class StepNotFound(TelemetryError):
    """The run has no such step."""


class PolicyNotFound(TelemetryError):
    """No policy of that name is known to the server."""


class JobNotFound(TelemetryError):
    """No job of that id, or none any more."""


class JobNotDone(TelemetryError):
    """The job has no result (yet)."""


class NotYours(TelemetryError):
    """Somebody else's job."""


class NotAcceptable(TelemetryError):
    """The client accepts no form that there is."""


class Busy(TelemetryError):
    """As many as there may be are at it already."""


class NotModified(Exception):
    """The client has what it asks for."""

    def __init__(self, etag: str) -> None:
        super().__init__(etag)
        self.etag = etag
