"""Formats the server's log on stderr, as text or as one JSON object a line.

Requests are records of the level ``info`` with their facts in the attribute ``request``. No record holds a header, a
query or a body: these may carry tokens.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum


class LogLevel(StrEnum):
    """The least serious records that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """The form of a record."""

    TEXT = "text"
    JSON = "json"


class _Text(logging.Formatter):
    """Formats a record as a line: time, level, logger and message, and after it the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        # A path may hold a line feed, which would begin a forged record.
        message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in record.getMessage())
        line = f"{_time_of(record)} {record.levelname} {record.name}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    """Formats a record as a JSON object with ``time``, ``level``, ``logger``, ``message`` and a request's facts."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "request", {}),
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts)


def write_log(level: LogLevel, format_: LogFormat) -> None:
    """Write the records of this process, from a level on, to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if format_ == LogFormat.JSON else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level == LogLevel.DEBUG:
        logging.getLogger("botocore").setLevel(logging.INFO)  # Below, it writes headers with session tokens.


def _time_of(record: logging.LogRecord) -> str:
    """Return when the record was made, in ISO 8601 (UTC)."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
