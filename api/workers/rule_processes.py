"""Runs each rule trial in its own process, within time and memory limits."""

from __future__ import annotations

import time
from typing import Any

from anyio import CapacityLimiter, to_thread

from ...store.child_process import ChildProcess
from ...store.child_protocol import BrokenFrame
from ..errors import Busy, InvalidRequest
from ..limits import Limits
from ..live import FollowerSlots


class RuleProcesses:
    """A launcher of one process per request, a few at a time.

    Args:
        limits: How many run, how many wait, and what each may use.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = FollowerSlots(limits.query_workers + limits.queries_waiting)
        # Separate threads: waiting trials never block other requests.
        self._threads = CapacityLimiter(limits.query_workers)

    async def ask(self, document: dict[str, Any]) -> Any:
        """Return the answer of ``rule_worker`` to a document.

        Raises:
            Busy: Too many trials are waiting, or the machine cannot start another process.
            InvalidRequest: The trial took too long or too much memory, or its answer is too long.
            PolicyError: A job's policy or its values are wrong.
            TelemetryError: A run cannot be read.
        """
        with self._places.place():
            return await to_thread.run_sync(self._answer, document, limiter=self._threads)

    def _answer(self, document: dict[str, Any]) -> Any:
        limits = self._limits
        try:
            process = ChildProcess(f"{__package__}.rule_worker", str(limits.query_worker_bytes), is_bound=True)
        except OSError as error:
            raise Busy(
                f"the process for the rules could not be started ({error.strerror})", fix="Try again later"
            ) from None
        until_s = time.monotonic() + limits.rules_s
        try:
            process.send(document, until_s=until_s)
            return process.receive(most_bytes=limits.job_result_bytes, until_s=until_s).head["answer"]
        except TimeoutError:
            what = f"the rules exceeded their time limit of {limits.rules_s:g} s and were stopped"
            raise InvalidRequest(what, fix="Use fewer steps, rules or runs") from None
        except BrokenFrame:
            what = f"the answer exceeds the limit of {limits.job_result_bytes:,} bytes"
            raise InvalidRequest(what, fix="Use fewer steps or rules") from None
        except (EOFError, OSError):
            fix = "It may have run out of memory: use fewer steps, rules or runs"
            raise InvalidRequest("the process that ran the rules ended early", fix=fix) from None
        finally:
            process.end()
