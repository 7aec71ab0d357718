"""``steptape alert``: sends a message when a run of a store dies, stalls, runs again or ends, or when its rules act.

Takes the entries of a scan and what was told before; sends notices, and keeps what was told in the store. It is kept
after each notice: a killed process repeats one at most, and none is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import typer

from ...store.amounts import duration
from ...store.errors import QuestionRefused, StoreAway, TelemetryError, counted, require_version
from ...store.events import STALLED
from ...store.notices import NOTIFY_VARIABLE, URL_VARIABLE, Channels, Notice, addresses_in, run_notice
from ...store.own_process import pause_after
from ...store.questions import parse, selected
from ...store.reading.catalog import Look
from ...store.reading.headline import headline_of
from ...store.reading.summary import Entry
from ...store.run import unread_run
from ...store.run_folder import replace_file
from ...store.run_info import LIVE_STATUSES
from ...store.store import Store
from ...store.user_cache import require_writable
from ..lookup import open_store_named
from ..options import AlertArguments
from ..output import say
from ..streams import FINDINGS, INTERRUPTED, complain

#: The file of what was told, and the number of its format. Any other number is refused.
ALERTS_JSON: Final = "alerts.json"
FORMAT: Final = 2

#: Least seconds between two looks.
_PAUSE_S: Final = 5.0

#: Seconds between two messages about the rules of one run. The next one names what acted meanwhile.
_RULES_EVERY_S: Final = 300

#: Messages of one look that are sent one by one. More news are one message: a machine that dies takes all its runs.
_MOST_APART: Final = 5

#: Most runs that such a message names.
_MOST_NAMED: Final = 20

#: Statuses after which somebody waits for the run to go on.
_LOST: Final = ("crashed", "failed", "interrupted", "stalled")

#: The message about such a run once it writes events again.
_AGAIN: Final = "running again"

_US_PER_S: Final = 1_000_000
_NS_PER_US: Final = 1_000
_ACT: Final = "act"


@dataclass
class _Told:
    """The last alert about a run, or its state when the watch began.

    Attributes:
        status: Its status.
        attempts: How many attempts it had.
        stalled_us: Time of its newest event if it is stalled; 0 otherwise.
        rules: The last step at which each rule acted.
        rules_us: When rules were told last; 0 for never.
        lost_us: Time of its newest event when it was told as dead or stalled; 0 if it was not, or is running again.
    """

    status: str = "running"
    attempts: int = 0
    stalled_us: int = 0
    rules: dict[str, int] = field(default_factory=dict)
    rules_us: int = 0
    lost_us: int = 0

    @property
    def state(self) -> tuple[str, int, int]:
        """The parts in which two states of a run differ."""
        return self.status, self.attempts, self.stalled_us


class _News(NamedTuple):
    """An alert to send: the run, what happened to it, and what to remember once the alert is sent.

    For a run that runs again, also the time of its last event before.
    """

    entry: Entry
    what: str
    told: _Told
    lost_us: int = 0


@dataclass
class _Memory:
    """The last alert about each run of a store.

    Attributes:
        since_us: When the store was watched first. What happened to runs before is not told.
        runs: By run id; runs that had ended before are left out.
    """

    since_us: int
    runs: dict[str, _Told]

    @classmethod
    def read(cls, path: Path) -> _Memory | None:
        """Read the file; None without one.

        Raises:
            UnsupportedVersion: Another version wrote it.
            TelemetryError: It is damaged.
        """
        fix = "Move it away; the watch then begins anew, and does not tell what has happened so far"
        try:
            document = json.loads(path.read_bytes())
            require_version("the format of what was told", document["format"], FORMAT, where=str(path), fix=fix)
            return cls(document["since_us"], {key: _Told(**told) for key, told in document["runs"].items()})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise TelemetryError("not the file of what was told, or a damaged one", where=str(path), fix=fix) from None

    def write(self, path: Path) -> None:
        """Replace the file."""
        runs = {key: vars(told) for key, told in self.runs.items()}
        document = {"format": FORMAT, "since_us": self.since_us, "runs": runs}
        replace_file(path, json.dumps(document).encode())

    def news(self, entry: Entry, now_us: int, *, is_asked: bool) -> _News | None:
        """Return what is to be told or remembered of a run; None if there is nothing new.

        Args:
            entry: The run.
            now_us: The time.
            is_asked: Whether it matches the question. The state of a live run is remembered all the same.
        """
        row, before = entry.summary, self.runs.get(entry.summary.run_id)
        if before is None and row.status not in LIVE_STATUSES and _us(row.last_event) < self.since_us:
            return None
        before = before or _Told()
        last_us = _us(row.last_event)
        stalled_us = last_us if row.status == "stalled" else 0
        told = _Told(row.status, row.attempts, stalled_us, dict(before.rules), before.rules_us, before.lost_us)
        is_live = row.status in LIVE_STATUSES
        if row.status == "running" and 0 < before.lost_us < last_us:  # Asked for or not.
            told.lost_us = 0
            return _News(entry, _AGAIN, told, before.lost_us)
        if not is_asked:
            return _News(entry, "", told) if told != before and is_live else None
        has_state = told.state != before.state and row.status != "running"
        if not (has_state or is_live):
            return None  # It has ended, and nothing acts in it any more.
        acted = _acted(entry)
        new = sorted(rule for rule, step in acted.items() if before.rules.get(rule) != step)
        if has_state:
            told.lost_us = last_us if row.status in _LOST else 0
        if new and (has_state or now_us - before.rules_us >= _RULES_EVERY_S * _US_PER_S):
            told.rules, told.rules_us = acted, now_us
        elif not has_state:
            return _News(entry, "", told) if told != before else None
        rules = f"{'rule' if len(new) == 1 else 'rules'} {', '.join(new)} acted"
        return _News(entry, row.status if has_state else rules, told)


def _acted(entry: Entry) -> dict[str, int]:
    """Return the rules that acted, each with the last step at which it did."""
    return {one.controller: one.last_step for one in entry.firings if one.mode == _ACT}


def _us(moment: datetime | None) -> int:
    """Return microseconds since 1970; 0 for an unknown moment."""
    return 0 if moment is None else int(moment.replace(tzinfo=UTC).timestamp() * _US_PER_S)


class _Watch:
    """The watch of one store.

    Args:
        store: The store.
        channels: Where notices go.
        where: The question that runs must match.
        page: The address of a server that shows the store; empty if unknown.
    """

    def __init__(self, store: Store, channels: Channels, where: str, page: str) -> None:
        self._store, self._channels, self._where, self._page = store, channels, where, page
        self._path = store.path / ALERTS_JSON
        self._memory = _Memory.read(self._path)
        self._complaints: dict[str, str] = {}
        self._is_saved = True

    def look(self) -> bool:
        """Tell what is new. Return whether all of it was taken."""
        now_us = time.time_ns() // 1000
        try:
            look = self._store.catalog.look()
        except (OSError, StoreAway) as error:
            self._complain("store", f"the store cannot be read now: {error}")
            return False
        self._complain("store", "")
        if self._memory is None:
            self._memory = self._begun(look.entries, now_us)
            return True
        asked = self._asked(look)
        said = (self._news(each, now_us, is_asked=each.name in asked) for each in look.entries)
        found = [each for each in said if each is not None]
        quiet, news = [each for each in found if not each.what], [each for each in found if each.what]
        if quiet or not self._is_saved:
            self._remember(quiet)
        groups = [[each] for each in news] if len(news) <= _MOST_APART else [news]
        for group in groups:
            notice = self._notice(group)
            failures = self._channels.send(notice)
            self._complain("channels", "; ".join(failures))
            if len(failures) == len(self._channels):
                return False  # The next look tries again.
            self._remember(group)
            say(notice.title)
        return True

    def _news(self, entry: Entry, now_us: int, *, is_asked: bool) -> _News | None:
        assert self._memory is not None
        try:
            return self._memory.news(entry, now_us, is_asked=is_asked)
        except (TelemetryError, OSError):  # It was deleted or changed meanwhile: the next look reads it.
            return None

    def _asked(self, look: Look) -> set[str]:
        """Return the folders of the runs that match the question."""
        try:
            return {entry.name for entry in selected(look, self._where)}
        except QuestionRefused as error:  # No run has the field yet.
            self._complain("question", str(error))
            return set()

    def _begun(self, entries: Sequence[Entry], now_us: int) -> _Memory:
        """Return what counts as told when the watch begins: everything so far."""
        memory = _Memory(now_us, {})
        for entry in entries:
            row = entry.summary
            if row.status in LIVE_STATUSES:
                stalled_us = _us(row.last_event) if row.status == "stalled" else 0
                with contextlib.suppress(TelemetryError, OSError):  # As in ``_news``.
                    memory.runs[row.run_id] = _Told(row.status, row.attempts, stalled_us, _acted(entry))
        memory.write(self._path)
        live = len(memory.runs)
        say(f"watching {self._store.address} from now on: {counted(len(entries), 'run')}, {live} of them live")
        return memory

    def _remember(self, news: Sequence[_News]) -> None:
        assert self._memory is not None
        self._memory.runs |= {each.entry.summary.run_id: each.told for each in news}
        try:
            self._memory.write(self._path)
        except OSError as error:  # A full disk: this process repeats nothing, and the next look writes again.
            self._complain("file", f"what was told cannot be kept: {error}")
            self._is_saved = False
        else:
            self._complain("file", "")
            self._is_saved = True

    def _notice(self, group: Sequence[_News]) -> Notice:
        if len(group) == 1:
            ((entry, what, _, lost_us),) = group
            row = entry.summary
            return run_notice(row.name, what, [_silence(entry, lost_us), _headline(entry)], row.run_id, self._page)
        counts: dict[str, int] = {}
        for each in group:
            counts[each.what] = counts.get(each.what, 0) + 1
        said = ", ".join(f"{count} {what}" for what, count in counts.items())
        named = [f"{each.entry.summary.name}: {each.what} ({each.entry.summary.run_id})" for each in group]
        left_out = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
        lines = [*named[:_MOST_NAMED], *left_out, self._page]
        return Notice(f"{len(group)} runs: {said}"[:200], "\n".join(filter(None, lines)))

    def _complain(self, subject: str, text: str) -> None:
        """Print a failure once, until it is another one or, with an empty text, over."""
        if text and text != self._complaints.get(subject):
            complain(f"steptape alert: {text}")
        self._complaints[subject] = text


def _headline(entry: Entry) -> str:
    try:
        return headline_of(entry.snapshot, time.time_ns()).text
    except (TelemetryError, OSError):  # It was deleted or changed meanwhile.
        return ""


def _silence(entry: Entry, lost_us: int) -> str:
    """Say how long a run was silent after a moment; empty without one."""
    if not lost_us:
        return ""
    later = f"kind <> '{STALLED}' AND time_ns >= {(lost_us + 1) * _NS_PER_US}"
    try:
        (first,) = unread_run(entry.folder).rows(f"SELECT step, time_ns FROM events WHERE {later} ORDER BY 2 LIMIT 1")
    except (TelemetryError, OSError, ValueError):  # It was deleted or changed meanwhile.
        return ""
    silent_s = (first["time_ns"] / _NS_PER_US - lost_us) / _US_PER_S
    return f"Silent for {duration(silent_s)} before step {first['step']}."


def alert(asked: AlertArguments) -> None:
    """Send a message when a run dies, stalls, runs again or ends, or when its rules act."""
    channels = _channels(asked.notify)
    if asked.test:
        failures = channels.send(Notice("steptape: test", "Messages about runs arrive here."))
        for failure in failures:
            complain(failure)
        say(f"{len(channels) - len(failures)} of {counted(len(channels), 'message')} taken")
        raise typer.Exit(FINDINGS if failures else 0)
    page = _page(asked.url)
    parse(asked.where or "")
    store = open_store_named(asked.store)
    require_writable(store.path)
    with _only_watch(store.path):
        watch = _Watch(store, channels, asked.where or "", page)
        try:
            while True:
                began_s = time.monotonic()
                is_told = watch.look()
                if asked.once:
                    raise typer.Exit(0 if is_told else FINDINGS)
                time.sleep(pause_after(began_s, _PAUSE_S))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _channels(given: Sequence[str] | None) -> Channels:
    """Return the channels of the addresses.

    Raises:
        TelemetryError: There is no address, or one of them is none.
    """
    addresses = addresses_in(list(given) if given else None)
    if not addresses:
        fix = f"Give --notify an address such as slack://..., or set {NOTIFY_VARIABLE}"
        raise TelemetryError("no address is given", fix=fix)
    channels = Channels(addresses)
    if channels.problems:
        raise TelemetryError(channels.problems[0])
    return channels


def _page(url: str | None) -> str:
    page = url or os.environ.get(URL_VARIABLE, "")
    if page and not page.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--url and {URL_VARIABLE} take http(s)://HOST[:PORT]; got {page!r}")
    return page


@contextlib.contextmanager
def _only_watch(store: Path) -> Iterator[None]:
    """Keep other processes from watching the store: two would tell everything twice.

    Raises:
        TelemetryError: One watches it.
    """
    fd = os.open(store, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        fix = "Give that one more addresses, or end it"
        raise TelemetryError("another 'steptape alert' watches this store", where=str(store), fix=fix) from None
    finally:
        os.close(fd)
