"""The parent's side of a child process: starts one of our modules, exchanges frames with it, and ends it."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .module_command import module_command
from .protocol import MOST_BYTES, Frame, error_from_json, is_ready, read_frame, write_frame


class ChildProcess(subprocess.Popen[bytes]):
    """A process that runs a module, with a pipe for requests and one for answers.

    Args:
        module: The module's full name.
        arguments: Of its command line.
        environment: Its environment variables; this process's own unless given.
        shows_errors: Whether its stderr is this process's; otherwise it goes nowhere.

    Raises:
        OSError: No process could be started.
    """

    def __init__(
        self, module: str, *arguments: str, environment: Mapping[str, str] | None = None, shows_errors: bool = False
    ) -> None:
        super().__init__(
            module_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if shows_errors else subprocess.DEVNULL,
            env=environment,
            bufsize=0,
        )
        assert self.stdin is not None
        assert self.stdout is not None
        self.requests, self.answers = self.stdin, self.stdout
        # A child that does not read holds up nobody beyond a deadline.
        os.set_blocking(self.requests.fileno(), False)

    def send(self, head: Mapping[str, Any], *, until_s: float = math.inf) -> None:
        """Send a request, as ``write_frame`` does."""
        write_frame(self.requests.fileno(), head, until_s=until_s)

    def receive(self, *, most_bytes: int = MOST_BYTES, until_s: float = math.inf) -> Frame:
        """The next answer, as ``read_frame`` reads it.

        Raises:
            TelemetryError: The child's answer is this error.
        """
        frame = read_frame(self.answers.fileno(), most_bytes=most_bytes, until_s=until_s)
        if "error" in frame.head:
            raise error_from_json(frame.head["error"])
        return frame

    def has_answered(self, *, within_s: float) -> bool:
        """Whether an answer has begun within so many seconds, or none will come any more."""
        return is_ready(self.answers.fileno(), within_s=within_s)

    def close_pipes(self) -> None:
        """Close this process's ends, without a word to the child."""
        for pipe in (self.requests, self.answers):
            with suppress(OSError):
                pipe.close()

    def end(self) -> None:
        """Kill the process, whatever it computes, and wait for its end."""
        self.kill()
        self.wait()
        self.close_pipes()
