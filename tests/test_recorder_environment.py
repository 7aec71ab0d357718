"""Describing a run's environment leaves git's repository alone, and costs short runs little."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from steptape import Recorder, open_store


def run_script(folder: Path, body: str, *arguments: object, **variables: str) -> str:
    """Run a program in a folder and return what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(body), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository of a hundred committed files."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for number in range(100):
        (folder / f"{number}.txt").touch()
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for command in (("init", "--quiet"), ("add", "."), (*identity, "commit", "--quiet", "--message=first")):
        subprocess.run(("git", *command), cwd=folder, check=True)
    return folder


LIMITED = """
    import resource, sys
    from steptape import Recorder

    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
    with Recorder(sys.argv[1]) as rec:
        rec.step(loss=1.0)
"""


def test_asking_git_under_a_limit_of_file_sizes_leaves_no_lock_behind(repository: Path, tmp_path: Path) -> None:
    """Git would refresh its index, which is larger than the limit, and the user's next command would be refused."""
    for path in repository.glob("*.txt"):
        os.utime(path, (1, 1))

    run_script(repository, LIMITED, tmp_path / "runs")

    (run,) = open_store(tmp_path / "runs")
    assert run.info.last.environment["git"]["dirty"] is False
    assert not (repository / ".git" / "index.lock").exists()


COUNTED = """#!/bin/sh
echo asked >> "$ASKED"
exec {git} "$@"
"""


def test_runs_that_follow_each_other_at_once_ask_git_less_often_than_once_each(
    repository: Path, tmp_path: Path
) -> None:
    """The commit is that of each of them."""
    git, asked = tmp_path / "bin" / "git", tmp_path / "asked"
    git.parent.mkdir()
    git.write_text(COUNTED.format(git=shutil.which("git")))
    git.chmod(0o755)
    body = """
        import sys
        from steptape import Recorder
        for _ in range(20):
            Recorder(sys.argv[1]).close()
    """

    run_script(
        repository, body, tmp_path / "runs", PATH=f"{git.parent}{os.pathsep}{os.environ['PATH']}", ASKED=str(asked)
    )

    commits = {run.info.last.environment["git"]["commit"] for run in open_store(tmp_path / "runs")}
    assert len(commits) == 1
    assert 1 <= len(asked.read_text().splitlines()) < 20


def test_the_metadata_of_a_run_are_synchronized_with_the_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the run's end: until then only a power failure could lose them."""
    fsync, synced = os.fsync, list[str]()

    def noted(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with Recorder(tmp_path) as rec:
        rec.step(loss=1.0)

    assert len([name for name in synced if "run.json" in name]) == 1


def test_a_recorder_without_rules_imports_no_module_that_is_slow_to_import() -> None:
    """Each of them takes 5 to 20 ms, which a short run would feel."""
    slow = ("email", "importlib.metadata", "secrets", "socket", "zipfile")
    body = "import sys; before = set(sys.modules); import steptape; from steptape import Recorder\n"

    loaded = run_script(Path.cwd(), f"{body}print([name for name in {slow} if name in set(sys.modules) - before])")

    assert loaded == "[]\n"
