"""Frames arrive whole or not at all, within limits of length and time, and errors arrive with their type."""

from __future__ import annotations

import importlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from package_modules import module_names

from steptape.rules.errors import ExpressionError, Fault, PolicyError, PolicyProblem
from steptape.rules.scenarios.scenario import NotationError
from steptape.store.child_protocol import (
    BrokenFrame,
    Frame,
    error_from_json,
    error_to_json,
    frames,
    read_frame,
    write_frame,
)
from steptape.store.errors import QueryRefused, QueryTimedOut, TelemetryError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)

MESSAGES = [Frame({"asked": "\ud800 é", "numbers": [1, 2.5, None]}, b""), Frame({}, bytes(range(256)))]


@contextmanager
def pipe() -> Iterator[tuple[io.FileIO, io.FileIO]]:
    """Yield the ends of a pipe: one to read from, and one to write to."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as reader, open(writing, "wb", buffering=0) as writer:
        yield reader, writer


def written(messages: list[Frame], path: Path) -> bytes:
    """Return the bytes that messages are encoded as."""
    with open(path, "wb", buffering=0) as file:
        for head, body in messages:
            write_frame(file.fileno(), head, body)
    return path.read_bytes()


@given(head=st.dictionaries(st.text(), JSON), body=st.binary())
def test_a_frame_is_read_as_it_was_written(head: dict[str, Any], body: bytes) -> None:
    """The head is any JSON object, the body any bytes."""
    with pipe() as (reader, writer):
        write_frame(writer.fileno(), head, body)

        assert read_frame(reader.fileno()) == (head, body)


def test_frames_that_are_cut_at_any_byte_are_a_prefix_of_what_was_written(tmp_path: Path) -> None:
    """A process that dies midway has sent its earlier frames, and a partial frame is never accepted."""
    content = written(MESSAGES, tmp_path / "frames")
    ends = [len(written(MESSAGES[:count], tmp_path / "prefix")) for count in range(len(MESSAGES) + 1)]

    for cut in range(len(content) + 1):
        whole = sum(end <= cut for end in ends) - 1
        (tmp_path / "cut").write_bytes(content[:cut])
        with open(tmp_path / "cut", "rb", buffering=0) as file:
            assert list(frames(file.fileno())) == MESSAGES[:whole]
            with pytest.raises(EOFError):
                read_frame(file.fileno())


def test_a_frame_larger_than_a_pipe_arrives_in_pieces() -> None:
    """The rows of a query may be as large."""
    body = bytes(range(256)) * (1 << 14)
    with pipe() as (reader, writer):
        thread = threading.Thread(target=write_frame, args=(writer.fileno(), {"rows": 1}, body))
        thread.start()
        frame = read_frame(reader.fileno())
        thread.join()

    assert frame == ({"rows": 1}, body)


@pytest.mark.parametrize(("head", "body"), [({"text": "x" * 89}, b""), ({}, b"x" * 99)], ids=["head", "body"])
def test_a_frame_longer_than_the_limit_is_refused_before_it_is_read(head: dict[str, Any], body: bytes) -> None:
    """The declared length costs its reader nothing; with a limit of one byte more the frame is read."""
    with pipe() as (reader, writer):
        write_frame(writer.fileno(), head, body)
        write_frame(writer.fileno(), head, body)
        assert read_frame(reader.fileno(), most_bytes=101) == (head, body)

        with pytest.raises(BrokenFrame, match="a frame of 101 bytes exceeds the limit of 100"):
            read_frame(reader.fileno(), most_bytes=100)


@pytest.mark.parametrize(
    "content",
    [b"Import hooks are there\n", b"\0\0\0\x02" + bytes(8) + b"{]"],
    ids=["print", "no JSON"],
)
def test_bytes_that_are_no_frame_are_refused(content: bytes) -> None:
    """Python's start-up files may print such bytes."""
    with pipe() as (reader, writer):
        writer.write(content)

        with pytest.raises(BrokenFrame):
            read_frame(reader.fileno())


def test_a_frame_that_is_not_whole_in_time_is_not_waited_for() -> None:
    """A reader that does not read is not waited for either."""
    with pipe() as (reader, writer):
        writer.write(bytes(5))
        with pytest.raises(TimeoutError):
            read_frame(reader.fileno(), until_s=time.monotonic() + 0.05)
        os.set_blocking(writer.fileno(), False)
        with pytest.raises(TimeoutError):
            write_frame(writer.fileno(), {}, bytes(1 << 21), until_s=time.monotonic() + 0.05)


def test_a_frame_for_a_process_that_has_ended_is_refused() -> None:
    """The system refuses it."""
    with pipe() as (reader, writer):
        reader.close()

        with pytest.raises(BrokenPipeError):
            write_frame(writer.fileno(), {})


def kinds_of(root: type[TelemetryError]) -> Iterator[type[TelemetryError]]:
    """Yield a class of errors and all its subclasses."""
    yield root
    for kind in root.__subclasses__():
        yield from kinds_of(kind)


@cache
def all_kinds() -> list[type[TelemetryError]]:
    """Return the classes of errors of all modules."""
    for name in module_names():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("steptape"):
                raise  # Only packages of others are optional.
    return sorted({kind for kind in kinds_of(TelemetryError) if kind.__module__.startswith("steptape.")}, key=str)


#: Classes whose constructor takes something else than a fact.
FAULTS = [Fault(3, "unknown name", "los", "Did you mean 'loss'?"), Fault(9, "no rule")]
OWN: dict[type[TelemetryError], Callable[[], TelemetryError]] = {
    ExpressionError: lambda: ExpressionError(FAULTS),
    PolicyError: lambda: PolicyError(
        [PolicyProblem("p.yaml", 2, 1, "no name"), PolicyProblem("p.yaml", 1, 4, "no 'rule'")]
    ),
    NotationError: lambda: NotationError(FAULTS[0]),
}


def sent(error: TelemetryError) -> TelemetryError:
    """Return the error as another process receives it."""
    with pipe() as (reader, writer):
        write_frame(writer.fileno(), {"error": error_to_json(error)})
        return error_from_json(read_frame(reader.fileno()).head["error"])


def test_an_error_of_every_kind_arrives_as_it_was_raised() -> None:
    """Its class, its message and its place are preserved, whatever module defines it."""
    for kind in all_kinds():
        error = OWN[kind]() if kind in OWN else kind("it is broken", where="run/x", got=("a" * 200, 1), fix="Mend it")

        arrived = sent(error)

        assert (type(arrived), str(arrived)) == (kind, str(error))
        assert {**vars(arrived), "got": None} == {**vars(error), "got": None}
        assert sent(arrived).args == error.args


def test_no_two_kinds_of_errors_have_one_name() -> None:
    """The name identifies the class."""
    assert len({kind.__name__ for kind in all_kinds()}) == len(all_kinds()) > 20


def test_an_error_of_an_unknown_kind_arrives_as_the_nearest_known_one() -> None:
    """A parent need not load the modules of its child."""
    document = error_to_json(QueryTimedOut("it took too long"))
    kinds = document["kinds"]
    assert isinstance(kinds, list)
    kinds[0] = "QueryTimedOutElsewhere"

    arrived = error_from_json(document)

    assert (type(arrived), str(arrived)) == (QueryRefused, "it took too long")
