"""Small results in the user's cache: what is read was written whole, under the same key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from steptape.store.user_cache import CachedFiles

FILES = CachedFiles("results", most=20)

#: Writes results of one letter under the same key.
WRITE = """
import sys
from steptape.store.user_cache import CachedFiles
for count in range(300):
    CachedFiles("results", most=20).write("key", sys.argv[1].encode() * (1000 + count))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of the user's cache."""
    monkeypatch.setenv("STEPTAPE_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_written_under_a_key_is_read_under_it() -> None:
    """And nothing under another."""
    FILES.write("key", b"result")

    assert (FILES.read("key"), FILES.read("other")) == (b"result", None)


def test_a_file_that_was_cut_anywhere_counts_as_missing(cache: Path) -> None:
    """As a crash of the machine may leave it."""
    FILES.write("key", b"result")
    (file,) = (cache / "results").iterdir()
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])

        assert FILES.read("key") is None


def test_a_file_of_another_key_counts_as_missing(cache: Path) -> None:
    """Such as one that was copied or renamed."""
    FILES.write("key", b"result")
    (file,) = (cache / "results").iterdir()
    FILES.write("other", b"foreign")
    (foreign,) = set((cache / "results").iterdir()) - {file}
    foreign.replace(file)

    assert FILES.read("key") is None


def test_processes_that_write_at_once_never_mix() -> None:
    """A reader meanwhile finds the result of one of them, whole."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, letter]) for letter in "ab"]
    found = {FILES.read("key")}
    while any(writer.poll() is None for writer in writers):
        found.add(FILES.read("key"))

    assert {len(set(result)) for result in found - {None} if result is not None} == {1}
    assert {writer.returncode for writer in writers} == {0}
    assert found != {None}


def test_the_least_recently_written_results_are_deleted_first(cache: Path) -> None:
    """A folder holds no more than its limit."""
    for count in range(50):
        FILES.write(str(count), b"result")

    assert FILES.read("49") == b"result"
    assert len(list((cache / "results").iterdir())) <= FILES.most
