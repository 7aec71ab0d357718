"""Annotations are appended to a run's folder by several writers at once, survive truncation, and stay readable."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from steptape.store.annotations import Annotation, append_annotation, new_annotation_id, read_annotations
from steptape.store.errors import InvalidEvent, NotWritten
from steptape.store.run_folder import ANNOTATIONS

SAMPLE = Path(__file__).parent / "data" / "annotations"


def test_a_file_of_before_is_read(tmp_path: Path) -> None:
    """A truncated line is skipped, and optional keys may be missing."""
    found = read_annotations(SAMPLE)

    assert found == [
        Annotation("5ea1ed5ea1ed", 1767323045000000000, "bad shard", "write person", 1200, 1260, {"shard": 7}),
        Annotation("abcdefabcdef", 1767323047000000000, "the whole run"),
    ]
    assert read_annotations(tmp_path) == []


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    """All fields are read, in order."""
    notes = [
        Annotation(new_annotation_id(), time_ns, f"näht\n{time_ns}", "me", 1, 2, {"x": [1.5]}) for time_ns in range(3)
    ]

    for note in notes:
        append_annotation(tmp_path, note)

    assert read_annotations(tmp_path) == notes


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    """The next annotation begins on its own line."""
    (tmp_path / ANNOTATIONS).write_bytes(b'{"id": "half')

    append_annotation(tmp_path, Annotation("a", 1, "whole"))

    assert [note.text for note in read_annotations(tmp_path)] == ["whole"]


def test_several_note_at_once(tmp_path: Path) -> None:
    """No line is lost or mixed with another."""

    def note(writer: int) -> None:
        for number in range(20):
            append_annotation(tmp_path, Annotation(f"{writer}-{number}", number, "x" * 1000))

    threads = [threading.Thread(target=note, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({found.id for found in read_annotations(tmp_path)}) == 80


def test_attributes_that_are_no_json_are_refused(tmp_path: Path) -> None:
    """The error comes before anything is written."""
    with pytest.raises(InvalidEvent):
        append_annotation(tmp_path, Annotation("a", 1, "x", attrs={"path": Path("x")}))

    assert read_annotations(tmp_path) == []


def test_a_note_is_not_written_through_a_link(tmp_path: Path) -> None:
    """The file that the link names is left as it is."""
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / ANNOTATIONS).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(NotWritten, match=r"annotations.jsonl: .* cannot be written \(it is a symbolic link\)"):
        append_annotation(tmp_path, Annotation("a", 1, "x"))
    assert (tmp_path / "elsewhere").read_text() == "mine"
