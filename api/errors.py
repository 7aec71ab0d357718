"""Defines the errors of HTTP requests, beyond those that the store raises."""

from __future__ import annotations

from ..store.errors import TelemetryError


class InvalidCursor(TelemetryError):
    """A cursor that no page of this query returned."""


class InvalidRequest(TelemetryError):
    """A well-formed request that asks for the impossible."""


class MetricNotFound(TelemetryError):
    """No event of the run carries the metric."""


class StepNotFound(TelemetryError):
    """The run has no such step."""


class PolicyNotFound(TelemetryError):
    """No policy of that name is known to the server."""


class JobNotFound(TelemetryError):
    """No job has that id, or the job is no longer kept."""


class JobNotDone(TelemetryError):
    """The job has no result, or none yet."""


class NotYours(TelemetryError):
    """The job belongs to another token."""


class NotAcceptable(TelemetryError):
    """The client accepts none of the available formats."""


class Busy(TelemetryError):
    """All places are taken."""


class NotModified(Exception):
    """The client already has the response."""

    def __init__(self, etag: str) -> None:
        super().__init__(etag)
        self.etag = etag
