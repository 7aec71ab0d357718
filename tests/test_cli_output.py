"""Output files appear whole or stay as they were, and an impossible path is reported before the work begins."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from command_line import call as steptape

from steptape import Recorder, TelemetryError
from steptape.cli.output import check_output, output_file


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one run with one step."""
    path = tmp_path_factory.mktemp("runs")
    with Recorder(path, name="one") as rec:
        rec.step(loss=1.0)
    return path


@pytest.mark.parametrize(
    "arguments",
    [("export", "one", "--output"), ("backtest", "loss_spike", "--html")],
    ids=["export", "backtest"],
)
def test_a_folder_that_is_not_there_is_named_before_anything_is_done(
    store: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """The command reports it on one line."""
    path = tmp_path / "nowhere" / "out"
    result = steptape(*arguments, path, "--store", store)

    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"error: {path.parent}: there is no such folder. Create it, or write out elsewhere\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [("folder", "this is a folder"), ("file/out", "file: is not a folder")],
    ids=["folder", "in a file"],
)
def test_what_cannot_be_a_file_is_told(tmp_path: Path, name: str, said: str) -> None:
    """The cases are a folder, and a path inside a file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(TelemetryError, match=said):
        check_output(tmp_path / name)


def test_a_file_stays_as_it_was_when_writing_another_fails(tmp_path: Path) -> None:
    """Nothing remains of the incomplete file."""
    path = tmp_path / "out"
    path.write_text("before")
    with contextlib.suppress(RuntimeError), output_file(path) as file:
        file.write("half")
        raise RuntimeError

    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_that_is_replaced_keeps_its_mode_and_the_links_to_it(tmp_path: Path) -> None:
    """The effect is that of overwriting it."""
    path, link = tmp_path / "out", tmp_path / "link"
    path.touch(mode=0o600)
    link.symlink_to(path)
    with output_file(link) as file:
        file.write("größer")

    assert link.is_symlink()
    assert path.read_text(encoding="utf-8") == "größer"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """A named pipe shows it; ``/dev/null`` must not be replaced."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with output_file(path) as file:
        file.write("through")

    assert os.read(reader, 100) == b"through"
    assert path.is_fifo()
    os.close(reader)


def test_a_full_disk_is_told_with_the_file_s_name() -> None:
    """Linux has a device that is always full."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no such device")
    with pytest.raises(TelemetryError, match=r"^/dev/full: cannot be written"), output_file(Path("/dev/full")) as file:
        file.write("more than nothing")
