"""Runs the examples of a Markdown page and compares what they print with what the page shows.

A page is true if its blocks, run from top to bottom in an empty folder, do what it shows. The conventions:

* A ``console`` block holds commands, one per line after ``$``, each followed by its exact output: stdout and stderr
  as a terminal shows them. A line that ends with a backslash continues on the next. Each command has a shell of its
  own, in the page's folder. ``steptape`` and ``python`` are those of the interpreter that runs the tests.
* In the output a line ``...`` stands for any lines, and ``...`` within a line for any text of that line. Trailing
  blanks and blank lines at the end do not count. A traceback that the page does not show is always a mismatch.
* ``python`` blocks run in order, in one process per page. A ``text`` block right after one, with nothing but blank
  lines between, is its exact output. Without such a block the output is not compared. An exception is a mismatch.
* A block of any language whose first line is ``# file: NAME`` is written to that file, that line included, and not run.
* Blocks of other languages are not run. A comment ``<!-- documents: skip -->`` on the line before a block leaves it
  out; ``<!-- documents: needs PACKAGE -->`` does where that package is not installed, also if the comment goes on
  and hides the block.
* A comment ``<!-- documents: continue PAGE -->`` runs another page first, in the same folder; PAGE is relative to the
  page. A block within an HTML comment runs too, so a page can prepare its folder out of sight.

``read_steps`` parses a page, ``run_page`` runs it and returns its mismatches, and ``broken_links`` checks its links.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from waiting import PATIENCE_S

#: The child process that runs the Python blocks of a page in one namespace. It reads one JSON list of file name and
#: code per line from the first descriptor, and writes one line per block to the second.
_PYTHON_HOST: Final = """
import json, linecache, os, sys, traceback
requests, replies = (int(argument) for argument in sys.argv[1:])
sys.argv, sys.path[0] = [""], ""
def host(namespace):
    for line in os.fdopen(requests, encoding="utf-8"):
        name, code = json.loads(line)
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        reply = b"ok\\n"
        try:
            exec(compile(code, name, "exec"), namespace)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            traceback.print_exception(error)
            reply = b"failed\\n"
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(replies, reply)
host(sys.modules["__main__"].__dict__)
"""

#: Variables of the test's own environment that change what commands print.
_NOT_OF_A_USER: Final = frozenset(("COLUMNS", "FORCE_COLOR", "STEPTAPE_QUIET"))

_FENCE: Final = re.compile(r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*\{?[ \t]*\.?(?P<language>[\w+-]*)")
_SKIP: Final = re.compile(r"^\s*<!-- documents: skip -->\s*$")
_NEEDS: Final = re.compile(r"^\s*<!-- documents: needs (?P<module>\w+)(?: -->)?\s*$")
_CONTINUE: Final = re.compile(r"^\s*<!-- documents: continue (?P<page>\S+) -->\s*$")
_FILE: Final = re.compile(r"# file: (?P<name>\S+)")
_LINK: Final = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing that a reader of a page does.

    Attributes:
        page: The page.
        line: The line of the page at which the step stands, from 1.
    """

    page: Path
    line: int


@dataclass(frozen=True, kw_only=True)
class FileStep(Step):
    """A file to write."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class PythonStep(Step):
    """Python code to run; ``output`` is None if the page does not show it."""

    code: str
    output: str | None = None


@dataclass(frozen=True, kw_only=True)
class CommandStep(Step):
    """A shell command to run and the output that the page shows."""

    command: str
    output: str


@dataclass(frozen=True)
class Mismatch:
    """A step whose output is not the one that the page shows.

    Attributes:
        step: The step.
        reason: The reason in one line.
        shown: The output on the page.
        printed: The output of the run.
    """

    step: Step
    reason: str
    shown: str
    printed: str

    def __str__(self) -> str:
        """Return the place, the reason and the difference."""
        difference = difflib.unified_diff(
            self.shown.splitlines(), self.printed.splitlines(), "page", "run", lineterm="", n=1_000
        )
        return "\n".join([f"{self.step.page}:{self.step.line}: {self.reason}", *difference])


@dataclass(frozen=True)
class _Block:
    """A fenced block: its language, text without indentation, and the line of its fence, from 1."""

    language: str
    text: str
    line: int
    follows: bool  # Only blank lines lie between the block before and this one.


def read_steps(page: Path) -> list[Step]:
    """Return the steps of a page, in order, after those of the pages that it continues."""
    lines = page.read_text(encoding="utf-8").splitlines()
    steps: list[Step] = []
    for line in lines:
        if found := _CONTINUE.match(line):
            steps += read_steps((page.parent / found["page"]).resolve())
    python: int | None = None  # The index of the Python step to which a text block would belong.
    for block in _blocks(lines):
        first = block.text.partition("\n")[0]
        before, python = python, None
        if found := _FILE.fullmatch(first.strip()):
            steps.append(FileStep(page=page, line=block.line, name=found["name"], text=block.text))
        elif block.language == "python":
            python = len(steps)
            steps.append(PythonStep(page=page, line=block.line, code=block.text))
        elif block.language == "console":
            steps += _commands(page, block)
        elif block.language == "text" and before is not None and block.follows:
            step = steps[before]
            assert isinstance(step, PythonStep)
            steps[before] = PythonStep(page=page, line=step.line, code=step.code, output=block.text)
    return steps


def run_page(page: Path, folder: Path) -> list[Mismatch]:
    """Run a page's steps in a folder and return those whose output differs from the page's.

    Args:
        page: The Markdown file.
        folder: The folder, empty or new. Helper files are put next to it, not into it.
    """
    steps = read_steps(page)
    folder.mkdir(parents=True, exist_ok=True)
    with _Workplace(folder) as workplace:
        return [mismatch for step in steps if (mismatch := workplace.run(step)) is not None]


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page whose file or heading does not exist, each as ``line: target``."""
    broken = []
    for number, line in _prose(page):
        for found in _LINK.finditer(line):
            target = found["target"].strip("<>")
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
                broken.append(f"{number}: {target}")
    return broken


def matches(shown: str, printed: str) -> bool:
    """Whether printed output is the one that a page shows, in which ``...`` stands for any lines or text."""
    pattern = ""
    for line in _trimmed(shown):
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += "[^\n]*".join(re.escape(part) for part in line.split("...")) + "\n"
    if "Traceback (most recent call last)" in printed and "Traceback (most recent call last)" not in shown:
        return False
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _trimmed(printed))) is not None


class _Workplace:
    """The folder in which a page's steps run, the Python process that they share, and the commands left running."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        tools = folder.parent / f"{folder.name}-tools"
        tools.mkdir(exist_ok=True)
        for name, command in (("steptape", "-m steptape"), ("python", ""), ("python3", "")):
            (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {command} "$@"\n')
            (tools / name).chmod(0o755)
        self._output = tools / "output.txt"
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in _NOT_OF_A_USER},
            "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "STEPTAPE_CACHE": str(tools / "cache"),
            "PYTHONIOENCODING": "utf-8",
            "NO_COLOR": "1",
            "TERM": "dumb",
            "TZ": "UTC",
        }
        self._groups: list[int] = []
        self._python: _PythonHost | None = None

    def __enter__(self) -> _Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        if self._python is not None:
            self._python.close()
        for group in self._groups:
            _end(group)

    def run(self, step: Step) -> Mismatch | None:
        """Run one step and return its mismatch, if any."""
        if isinstance(step, FileStep):
            path = self._folder / step.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
            return None
        if isinstance(step, PythonStep):
            return self._run_python(step)
        assert isinstance(step, CommandStep)
        return self._run_command(step)

    def _run_command(self, step: CommandStep) -> Mismatch | None:
        with self._output.open("wb") as output:  # A file and not a pipe: a command may leave a server running.
            process = subprocess.Popen(
                ["bash", "-c", step.command],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._groups.append(process.pid)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            _end(process.pid)
            process.wait()
            return Mismatch(step, f"'{step.command}' took over {PATIENCE_S:g} s", step.output, self._printed())
        printed = self._printed()
        if matches(step.output, printed):
            return None
        return Mismatch(step, f"'{step.command}' prints something else", step.output, printed)

    def _run_python(self, step: PythonStep) -> Mismatch | None:
        if self._python is None:
            self._python = _PythonHost(self._folder, self._environment, self._output.with_name("python.txt"))
        reply, printed = self._python.run(f"{step.page.name}:{step.line}", step.code)
        if reply == "ok" and (step.output is None or matches(step.output, printed)):
            return None
        if reply == "failed" and step.output is not None and matches(step.output, printed):
            return None  # The page shows the traceback.
        reasons = {"ok": "the Python block prints something else", "failed": "the Python block fails"}
        return Mismatch(step, reasons.get(reply, f"the Python block {reply}"), step.output or "", printed)

    def _printed(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")


class _PythonHost:
    """A process that runs blocks of Python in one namespace."""

    def __init__(self, folder: Path, environment: dict[str, str], output: Path) -> None:
        requests, self._requests_to = os.pipe()
        self._replies, replies_to = os.pipe()
        self._file: IO[bytes] = output.open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PYTHON_HOST, str(requests), str(replies_to)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=self._file,
            pass_fds=(requests, replies_to),
            start_new_session=True,
        )
        os.close(requests)
        os.close(replies_to)

    def run(self, name: str, code: str) -> tuple[str, str]:
        """Run a block; return ``ok``, ``failed`` or another end, and what it printed."""
        start = os.fstat(self._file.fileno()).st_size
        try:
            os.write(self._requests_to, json.dumps([name, code]).encode() + b"\n")
        except BrokenPipeError:
            return "finds no process", ""
        ready, _, _ = select.select([self._replies], [], [], PATIENCE_S)
        reply = os.read(self._replies, 100).decode().strip() if ready else f"took over {PATIENCE_S:g} s"
        if not ready:
            _end(self._process.pid)
        printed = os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size - start, start)
        return reply or "ended the process", printed.decode(errors="replace")

    def close(self) -> None:
        """End the process."""
        os.close(self._requests_to)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        _end(self._process.pid)
        self._process.wait()
        os.close(self._replies)
        self._file.close()


def _end(group: int) -> None:
    """Kill the processes of a group that are still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Yield the fenced blocks of a page that are not to be skipped."""
    index, end = 0, -1
    while index < len(lines):
        opened = _FENCE.match(lines[index])
        if opened is None:
            index += 1
            continue
        start, fence, indent = index, opened["fence"], opened["indent"]
        index += 1
        while index < len(lines) and not _closes(lines[index], fence):
            index += 1
        text = "".join(f"{line.removeprefix(indent)}\n" for line in lines[start + 1 : index])
        follows = end >= 0 and not any(line.strip() for line in lines[end + 1 : start])
        if not (start and _is_left_out(lines[start - 1])):
            yield _Block(opened["language"], textwrap.dedent(text) if indent else text, start + 1, follows)
        end = index
        index += 1


def _is_left_out(line: str) -> bool:
    """Whether the line above a block says not to run it: at all, or not without a package that is missing here."""
    needs = _NEEDS.match(line)
    return bool(_SKIP.match(line)) or (needs is not None and importlib.util.find_spec(needs["module"]) is None)


def _closes(line: str, fence: str) -> bool:
    """Whether a line closes a block that this fence opened."""
    text = line.strip()
    return len(text) >= len(fence) and set(text) == {fence[0]}


def _commands(page: Path, block: _Block) -> Iterator[CommandStep]:
    """Yield the commands of a ``console`` block, each with the lines up to the next one."""
    command: list[str] = []
    output: list[str] = []
    place = block.line
    continued = False
    for number, line in enumerate(block.text.splitlines(), start=block.line + 1):
        if line.startswith("$ ") and not continued:
            if command:
                yield CommandStep(page=page, line=place, command="\n".join(command), output=_joined(output))
            command, output, place = [line[2:]], [], number
        elif continued:
            command.append(line)
        elif command:
            output.append(line)
        else:
            raise ValueError(f"{page}:{number}: a console block begins with a line '$ command'")
        continued = bool(command) and not output and command[-1].endswith("\\")
    if command:
        yield CommandStep(page=page, line=place, command="\n".join(command), output=_joined(output))


def _joined(lines: list[str]) -> str:
    """Return lines as one text."""
    return "".join(f"{line}\n" for line in lines)


def _trimmed(text: str) -> list[str]:
    """Return the lines of a text without trailing blanks, and without blank lines at its end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside of fenced blocks, with their numbers from 1 and without code spans."""
    fence = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if fence:
            fence = "" if _closes(line, fence) else fence
        elif opened := _FENCE.match(line):
            fence = opened["fence"]
        else:
            yield number, re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", lambda code: "x" * len(code[0]), line)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, as GitHub and MkDocs make them, and explicit ids."""
    text = page.read_text(encoding="utf-8")
    anchors = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    fence = ""
    for line in text.splitlines():
        if fence:
            fence = "" if _closes(line, fence) else fence
        elif opened := _FENCE.match(line):
            fence = opened["fence"]
        elif heading := re.match(r"#{1,6}\s+(.*?)\s*(?:\{\s*#([\w-]+)\s*\}\s*)?$", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").lower()
            slug = re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", words).strip())
            anchors.add(heading[2] or slug)
    return anchors
