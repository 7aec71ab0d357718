"""Sends notices to people: a title and a text go to apprise's services by their addresses.

Takes addresses such as ``slack://...`` or ``mailto://...`` and a notice; returns a line for each service that did not
take it. Addresses hold secrets, so a line names an address by its place and its scheme alone.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from .errors import TelemetryError, on_one_line
from .redaction import REDACTED, redacted_text

#: The environment variables with the addresses, and with the address of the server whose pages notices link to.
NOTIFY_VARIABLE: Final = "STEPTAPE_NOTIFY"
URL_VARIABLE: Final = "STEPTAPE_URL"

_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S")
_PARTS: Final = re.compile(r"[/:@?&=#,;]+")

#: Fewest characters of a part of an address that is taken for a secret.
_SHORTEST_SECRET: Final = 6

#: Most seconds between two messages to one service. Apprise's own 5.5 s for mail outlast the end of a run.
_MOST_BETWEEN_S: Final = 1.0

#: A service that took so long to fail is left alone for this many times as long: mail to a dead host waits for 15 s.
_REST_TIMES: Final = 4

_INSTALL: Final = "Run pip install 'steptape[notify]'"


class Notice(NamedTuple):
    """What is sent to people.

    Attributes:
        title: One line.
        text: The lines below it.
    """

    title: str
    text: str


def addresses_in(given: object) -> tuple[str, ...]:
    """Return the addresses of an argument, else those of the environment.

    Args:
        given: Addresses in a text with blanks between them, or in a list; None for those of ``STEPTAPE_NOTIFY``.

    Raises:
        TelemetryError: It is something else.
    """
    if given is None:
        given = os.environ.get(NOTIFY_VARIABLE, "")
    listed = given.split() if isinstance(given, str) else given
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) for each in listed):
        what = f"notify must be addresses such as slack://...; got a {type(given).__name__}"
        raise TelemetryError(what, fix="Write them in one text with blanks between them, or in a list")
    return tuple(address for text in listed for address in text.split())


def run_notice(name: str, what: str, lines: Sequence[str], run_id: str, page: str = "") -> Notice:
    """Return a notice about a run.

    Args:
        name: Of the run.
        what: What happened to it.
        lines: More about it, each a line; empty ones are left out.
        run_id: Of the run.
        page: The address of a server that has the run. It precedes the link to the run's page.
    """
    link = f"{redacted_text(page).rstrip('/')}/runs/{run_id}" if page else f"Run {run_id}"
    title = on_one_line(f"{name}: {what}", 200)
    return Notice(title, "\n".join(filter(None, (*(redacted_text(line) for line in lines), link))))


@dataclass
class _Service:
    """The service of one address.

    Attributes:
        name: Its place and its scheme.
        address: The address.
        plugin: What apprise made of it.
        rests_until_s: When it is tried again after a failure, by the monotonic clock.
        failure: The line of its last failure.
    """

    name: str
    address: str
    plugin: Any
    rests_until_s: float = 0.0
    failure: str = ""


class Channels:
    """The services of some addresses.

    Constructing it loads apprise, which takes 0.4 to 1 s.

    Args:
        addresses: The addresses, as apprise writes them.

    Attributes:
        problems: A line for each address that is none, and for a missing package.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.problems: list[str] = []
        self._services: list[_Service] = []
        if find_spec("apprise") is None:
            self.problems.append(f"the package apprise is not installed. {_INSTALL}")
            return
        from apprise import Apprise  # An optional package.

        for number, address in enumerate(addresses, 1):
            name = f"address {number} ({address.partition('://')[0]}://)" if _ADDRESS.match(address) else ""
            with _apprise_said(address) as said:
                service = Apprise.instantiate(address) if name else None
            if service is None:
                why = f" ({said[0].rstrip('.')})" if said and name else ""
                what = f"{name or f'address {number}'} is the address of no service{why}"
                self.problems.append(f"{what}. Write it as apprise does, such as slack://TOKEN/TOKEN/TOKEN")
                continue
            service.request_rate_per_sec = min(service.request_rate_per_sec, _MOST_BETWEEN_S)
            # Followed, a POST becomes a GET: the page that it reaches would count as the service that took the message.
            service.redirects = "redirect=" in address and service.redirects
            self._services.append(_Service(name, address, service))

    def __len__(self) -> int:
        return len(self._services)

    def send(self, notice: Notice) -> list[str]:
        """Send a notice to each service, one after the other. Some take up to 15 s to fail, and then rest for a while.

        A service that rests counts as one that did not take the notice.

        Returns:
            A line for each service that did not take it. The notice reached somebody if it is shorter than ``len``.
        """
        for service in self._services:
            began_s = time.monotonic()
            if began_s >= service.rests_until_s:
                service.failure = _sent(service, notice)
                ended_s = time.monotonic()
                service.rests_until_s = ended_s + _REST_TIMES * (ended_s - began_s) if service.failure else 0.0
        return [service.failure for service in self._services if service.failure]


def _sent(service: _Service, notice: Notice) -> str:
    """Send a notice to a service. Return the line of the failure; empty if it took the notice."""
    with _apprise_said(service.address) as said:
        try:
            # The service is called itself: what Apprise.notify runs in a pool holds up the program's exit.
            is_taken = service.plugin.notify(title=notice.title, body=notice.text, body_format="text")
        except Exception as error:  # A plugin of apprise, which may be anybody's.
            is_taken = False
            said.append(_without_secrets(f"{type(error).__name__}: {error}", service.address))
    why = f": {said[-1].rstrip('.')}" if said else ""
    return "" if is_taken else f"{service.name} did not take a message{why}"


@contextmanager
def _apprise_said(address: str) -> Iterator[list[str]]:
    """Collect the warnings that apprise logs in this thread, in place of printing them."""
    said: list[str] = []
    thread = threading.get_ident()

    def collect(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        if record.levelno >= logging.WARNING:
            said.append(_without_secrets(record.getMessage(), address))
        return False

    log = logging.getLogger("apprise")
    log.addFilter(collect)
    try:
        yield said
    finally:
        log.removeFilter(collect)


def _without_secrets(text: str, address: str) -> str:
    """Return a text on one line, without any part of an address that may be a secret."""
    text = redacted_text(on_one_line(text, 300).replace(address, REDACTED))
    for part in _PARTS.split(address.partition("://")[2]):
        text = text.replace(part, REDACTED) if len(part) >= _SHORTEST_SECRET else text
    return text
