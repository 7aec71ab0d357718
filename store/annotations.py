"""Appends and reads ``annotations.jsonl``: notes that people add to a run after it was recorded.

The recorder's own files and their digests stay as recorded. A note may give the run another name, add and remove tags,
or archive it: ``Notes.shown`` overlays them on what was recorded. A note may also ask the recorder of a running run for
an operation: it looks for such notes about once a second. FORMAT.md defines the format and the attributes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from .errors import DamagedLog, InvalidEvent, NotWritten, in_unicode
from .event_json import encoded_attrs
from .run_folder import ANNOTATIONS, read_file
from .run_info import RunInfo
from .user_cache import require_writable

#: Attribute that makes a note the label of an incident; its value names the incident.
INCIDENT: Final = "incident"

_LABEL: Final = "Write annotate(text, incident=..., first_step=1200, last_step=1260)"

#: Size limit of an annotations file, in bytes: it is read as a whole.
MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Annotation:
    """A note about a run.

    Attributes:
        id: Unique within the run.
        time_ns: Time of the note, nanoseconds since 1970 (UTC).
        text: The note itself.
        author: The author; None when unknown.
        first_step, last_step: The steps that the note covers, both inclusive; None for the whole run.
        attrs: Further JSON attributes.
        name: The run's name from now on; None if the note gives none.
        tag, untag: Tags that the run has from now on, and those that it has no more.
        archived: Whether lists leave the run out from now on; None if the note does not say.
    """

    id: str
    time_ns: int
    text: str
    author: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    tag: tuple[str, ...] = ()
    untag: tuple[str, ...] = ()
    archived: bool | None = None


def new_annotation_id() -> str:
    """Return twelve random hex digits."""
    return os.urandom(6).hex()


def append_annotation(folder: Path, *annotations: Annotation) -> None:
    """Append notes to the run in this folder, as one line each, which are durable on return.

    Safe to call from several processes at once. A line that a killed writer left unfinished is closed first, so that it
    spoils no other line.

    Raises:
        InvalidEvent: Attributes are not JSON, or a name or a tag is empty or not Unicode.
        ReadOnlyStore: The run is in object storage.
        NotWritten: The file is full or not a regular file, or the lines cannot be written.
    """
    require_writable(folder.parent, folder.name)
    path = folder / ANNOTATIONS
    try:
        _append(path, b"".join([_line_of(annotation, folder) for annotation in annotations]))
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise NotWritten(f"the annotation cannot be written ({reason})", where=str(path)) from None


def _line_of(annotation: Annotation, folder: Path) -> bytes:
    _check_words(annotation, folder)
    document: dict[str, Any] = {
        "id": annotation.id,
        "time_ns": annotation.time_ns,
        "text": annotation.text,
        "author": annotation.author,
        "first_step": annotation.first_step,
        "last_step": annotation.last_step,
        "attrs": json.loads(encoded_attrs(annotation.attrs)),
    }
    said = {key: getattr(annotation, key) for key in ("name", "tag", "untag", "archived")}
    document |= {key: value for key, value in said.items() if value not in (None, ())}
    return json.dumps(document).encode() + b"\n"


def _append(path: Path, lines: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotWritten("not a regular file", where=str(path), fix="Move it away")
        fcntl.flock(fd, fcntl.LOCK_EX)
        size = os.fstat(fd).st_size
        if size + len(lines) > MAX_BYTES:
            what = f"the annotations of a run are limited to {MAX_BYTES >> 20} MiB"
            raise NotWritten(what, where=str(path), fix="Move the file away")
        if size and os.pread(fd, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        if os.write(fd, lines) != len(lines):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
    finally:
        os.close(fd)


def read_annotations(folder: Path) -> list[Annotation]:
    """Return the notes on the run in this folder, in the order written. Malformed or truncated lines are skipped.

    Raises:
        DamagedLog: The file cannot be read, is no file, or is larger than ``MAX_BYTES``.
    """
    try:
        return list(annotations_in(read_file(folder, ANNOTATIONS, MAX_BYTES)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DamagedLog(f"annotations cannot be read ({error.strerror})", where=str(folder / ANNOTATIONS)) from None


def annotations_in(content: bytes) -> Iterator[Annotation]:
    """Yield the notes in these lines, in order. Malformed lines are skipped."""
    for line in content.splitlines():
        try:
            document = json.loads(line)
            yield Annotation(
                id=str(document["id"]),
                time_ns=int(document["time_ns"]),
                text=str(document["text"]),
                author=_text(document.get("author")),
                first_step=_whole(document.get("first_step")),
                last_step=_whole(document.get("last_step")),
                attrs=dict(document.get("attrs") or {}),
                name=next(iter(_words([document.get("name")])), None),
                tag=_words(document.get("tag") or ()),
                untag=_words(document.get("untag") or ()),
                archived=archived if isinstance(archived := document.get("archived"), bool) else None,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue


class Shown(NamedTuple):
    """Name, tags and archive of a run: as recorded, with people's later changes.

    Attributes:
        name: Its newest name.
        tags: Its tags, the recorded ones first.
        archived: Whether lists leave it out unless they are asked for archived runs.
    """

    name: str
    tags: tuple[str, ...]
    archived: bool = False


class Notes(NamedTuple):
    """The notes on a run, as its file was when it was read.

    Attributes:
        readable: The notes in the order written; none where the file is damaged.
        damage: Why it cannot be read; None if it can.
    """

    readable: Sequence[Annotation]
    damage: DamagedLog | None

    def required(self) -> Sequence[Annotation]:
        """Return the notes.

        Raises:
            DamagedLog: They cannot be read.
        """
        if self.damage is not None:
            raise self.damage
        return self.readable

    def shown(self, info: RunInfo) -> Shown:
        """Return what the run is shown as: the notes in the order of their times overlay ``run.json``.

        Notes that cannot be read, which ``steptape doctor`` finds, hide no run.
        """
        name, tags, archived = info.name, dict.fromkeys(info.tags), False
        for note in sorted(self.readable, key=lambda note: note.time_ns):
            name = note.name or name
            for tag in note.untag:
                tags.pop(tag, None)
            tags |= dict.fromkeys(note.tag)
            archived = archived if note.archived is None else note.archived
        return Shown(name, tuple(tags), archived)


def read_notes(folder: Path) -> Notes:
    """Read the notes on the run in this folder, once for all that is asked of them."""
    try:
        return Notes(read_annotations(folder), None)
    except DamagedLog as error:
        return Notes((), error)


def annotations_bytes(folder: str) -> int:
    """Return the size of a run's ``annotations.jsonl``; 0 without one."""
    path = f"{folder}/{ANNOTATIONS}"
    try:  # Most runs have none, and a stat that raises takes twice as long.
        return os.stat(path).st_size if os.access(path, os.F_OK) else 0
    except OSError:
        return 0


def _check_words(note: Annotation, where: Path) -> None:
    for what, words in (("name", [] if note.name is None else [note.name]), ("tag", [*note.tag, *note.untag])):
        for word in words:
            if not word.strip():
                raise InvalidEvent(f"a {what} must not be empty", where=str(where), got=word)
            if word != in_unicode(word):
                raise InvalidEvent(f"a {what} must be valid Unicode", where=str(where), got=word)


def _words(value: Any) -> tuple[str, ...]:
    return tuple(in_unicode(word) for word in value if isinstance(word, str) and word.strip())


def labelled_steps(attrs: Mapping[str, Any], step: int) -> tuple[int, int]:
    """Return the first and the last step that a training program's note labels as an incident.

    Args:
        attrs: The note's attributes. ``first_step`` or ``last_step``, but not both, defaults to ``step``.
        step: The step of the note.

    Raises:
        InvalidEvent: The attributes give no range of steps.

    >>> labelled_steps({"first_step": 1200.0, "last_step": 1260}, 2000)
    (1200, 1260)
    >>> labelled_steps({"first_step": 1200}, 2000)
    (1200, 2000)
    """
    given = [attrs.get(name) for name in ("first_step", "last_step")]
    if given == [None, None]:
        raise InvalidEvent("an incident without first_step and last_step counts in no backtest", fix=_LABEL)
    first, last = (step if value is None else _step_of(value) for value in given)
    if last < first:
        what = "an incident that ends before it begins counts in no backtest"
        raise InvalidEvent(what, got=(first, last), fix=_LABEL)
    return first, last


def whole_step(value: object) -> int | None:
    """Return the step in an attribute of a training program's note; None when it holds no step.

    >>> whole_step(1200), whole_step(1200.0), whole_step("1200"), whole_step(True)
    (1200, 1200, None, None)
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _step_of(value: object) -> int:
    step = whole_step(value)
    if step is None:
        what = "an incident whose steps are no whole numbers counts in no backtest"
        raise InvalidEvent(what, got=value, fix=_LABEL)
    return step


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


#: The attribute that makes a note a request, and what can be requested.
REQUEST: Final = "request"
REQUESTS: Final = ("stop", "save", "evaluate")


class RequestWatch:
    """Finds the requests that are made from now on.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._read_bytes = annotations_bytes(str(folder))

    def new(self, folder: Path) -> list[Annotation]:
        """Return the requests since the last call. Takes one ``stat`` where nothing was written.

        Args:
            folder: The run's folder, which may have been moved.

        Raises:
            OSError: The notes cannot be read.
        """
        if (size := annotations_bytes(str(folder))) <= self._read_bytes:
            self._read_bytes = size
            return []
        with open(folder / ANNOTATIONS, "rb") as file:
            file.seek(self._read_bytes)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [note for note in annotations_in(whole) if note.attrs.get(REQUEST) in REQUESTS]
