"""Asking the process in which rules are tried: a document in, its answer out, within a time and a memory limit."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Final

from anyio import CapacityLimiter, to_thread

from ...store.errors import DamagedLog, NotARun, RunNotFound, TelemetryError
from ...store.processes.module_command import module_command
from ..errors import Busy, InvalidRequest
from ..limits import Limits
from ..live import FollowerSlots

_KINDS: Final = {kind.__name__: kind for kind in (RunNotFound, NotARun, DamagedLog, InvalidRequest)}


class RuleProcesses:
    """Starts a process for each question, a few at a time.

    Args:
        limits: How many, how many wait, and what each may take.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = FollowerSlots(limits.query_workers + limits.queries_waiting)
        # Threads of their own: however many questions wait, other requests do not.
        self._threads = CapacityLimiter(limits.query_workers)

    async def ask(self, document: dict[str, Any]) -> dict[str, Any]:
        """The answer of ``rule_worker`` to a document.

        Raises:
            Busy: Too many are waiting, or the machine has no room for a process more.
            InvalidRequest: It took too long or too much, or the answer is too long.
            TelemetryError: A run cannot be read.
        """
        with self._places.place():
            return await to_thread.run_sync(self._answer, document, limiter=self._threads)

    def _answer(self, document: dict[str, Any]) -> dict[str, Any]:
        bounds = (self._limits.query_worker_bytes, self._limits.job_result_bytes)
        command = module_command("steptape.api.workers.rule_worker", *map(str, bounds))
        asked = json.dumps(document).encode()
        try:
            done = subprocess.run(
                command,
                input=asked,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self._limits.rules_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            what = f"the rules took longer than {self._limits.rules_s:g} s, and were ended"
            raise InvalidRequest(what, fix="Ask for fewer steps, rules or runs") from None
        except OSError as error:
            raise Busy(f"no process could be started ({error.strerror})", fix="Ask again later") from None
        if done.returncode != 0:
            fix = "They may have taken too much memory: ask for fewer steps, rules or runs"
            raise InvalidRequest("the process that tried the rules ended before it was done", fix=fix)
        told = json.loads(done.stdout)
        if "error" in told:
            kind = _KINDS.get(told["error"].pop("kind"), TelemetryError)
            raise kind(told["error"].pop("what"), **told["error"])
        answer: dict[str, Any] = told["answer"]
        return answer
