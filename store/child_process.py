"""The parent's side of a child process: starts a steptape module, exchanges frames with it, and ends it.

The child resolves modules as this process does. By default Python would search the working folder first, where a
training may well have its own ``queue.py`` or ``random.py``.
"""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, Final

from .child_protocol import MOST_BYTES, Frame, error_from_json, is_ready, read_frame, write_frame
from .own_process import LIFELINE, above_streams, inode_of

_STDERR: Final = 2


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the Python command that runs this module. It imports from the current folder only if this process does."""
    return [sys.executable, *(() if _imports_from_here() else ("-P",)), "-m", module, *arguments]


def import_path() -> str:
    """Join the entries of ``sys.path``. Skip empty ones and, as Python itself does, those that are not text."""
    return os.pathsep.join(path for path in sys.path if path and isinstance(path, str))


def _imports_from_here() -> bool:
    try:
        return not {"", os.getcwd()}.isdisjoint(sys.path)
    except FileNotFoundError:  # The folder was deleted and holds no modules.
        return False


class ChildProcess(subprocess.Popen[bytes]):
    """A process that runs a module, with one pipe for requests and one for answers.

    Args:
        module: The module's full name.
        arguments: Its command-line arguments.
        environment: Its environment variables; by default this process's own.
        shows_errors: Whether it shares this process's stderr, if that is open; otherwise its stderr is discarded.
        is_bound: Whether it gets a lifeline: a pipe that breaks when this process ends. See ``end_with_parent``.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        shows_errors: bool = False,
        is_bound: bool = False,
    ) -> None:
        ours = theirs = None
        if is_bound:
            theirs, ours = map(above_streams, os.pipe())
            environment = {**(os.environ if environment is None else environment), LIFELINE: str(theirs)}
        self._lifeline = ours
        try:
            super().__init__(
                module_command(module, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if shows_errors and inode_of(_STDERR) is not None else subprocess.DEVNULL,
                env=environment,
                pass_fds=() if theirs is None else (theirs,),
                bufsize=0,
            )
        except OSError:
            self._close_lifeline()
            raise
        finally:
            if theirs is not None:
                os.close(theirs)
        assert self.stdin is not None
        assert self.stdout is not None
        self.requests, self.answers = self.stdin, self.stdout = _clear(self.stdin), _clear(self.stdout)
        self._pipe = inode_of(self.requests.fileno())
        # A child that does not read cannot block this process beyond a deadline.
        os.set_blocking(self.requests.fileno(), False)

    def send(self, head: Mapping[str, Any], *, until_s: float = math.inf) -> None:
        """Send a request, as ``write_frame`` does.

        Raises:
            OSError: As ``write_frame``; or the program has closed the pipe, whose number may be another file's now.
        """
        if inode_of(self.requests.fileno()) != self._pipe:
            raise BrokenPipeError(errno.EBADF, "the program has closed this descriptor")
        write_frame(self.requests.fileno(), head, until_s=until_s)

    def receive(self, *, most_bytes: int = MOST_BYTES, until_s: float = math.inf) -> Frame:
        """Read the next answer, as ``read_frame`` does.

        Raises:
            TelemetryError: The child answered with this error.
        """
        frame = read_frame(self.answers.fileno(), most_bytes=most_bytes, until_s=until_s)
        if "error" in frame.head:
            raise error_from_json(frame.head["error"])
        return frame

    def has_answered(self, *, within_s: float) -> bool:
        """Whether an answer begins, or the answer pipe closes, within ``within_s`` seconds."""
        return is_ready(self.answers.fileno(), within_s=within_s)

    def close_pipes(self) -> None:
        """Close this process's ends of the pipes, without notifying the child."""
        for pipe in (self.requests, self.answers):
            with suppress(OSError):
                pipe.close()
        self._close_lifeline()

    def abandon(self) -> None:
        """Close this process's ends of the pipes and leave the child to itself, or to the parent of a forked child."""
        self.close_pipes()
        if self.returncode is None:
            self.returncode = 0  # Otherwise Popen's destructor warns of a child that is still running.

    def end(self) -> None:
        """Kill the process, whatever it is computing, and wait until it has ended."""
        self.kill()
        self.wait()
        self.close_pipes()

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def _clear(pipe: IO[bytes]) -> IO[bytes]:
    """Return the pipe on a descriptor that is none of the standard streams."""
    if pipe.fileno() > _STDERR:
        return pipe
    with pipe:
        return os.fdopen(above_streams(os.dup(pipe.fileno())), pipe.mode, 0)
