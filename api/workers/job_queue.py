"""Queues long jobs: a bounded queue, one process at a time, results cached by the request and the state of the logs."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from ...store.child_process import ChildProcess
from ...store.child_protocol import BrokenFrame
from ...store.errors import TelemetryError
from ..limits import Limits
from ..middleware.gate import Holder, Scope
from ..problems import Busy, JobNotFound, NotYours, without_path
from .job_requests import JobOrder
from .pool import exchange, start_worker

_LOGGER: Final = logging.getLogger("steptape.api")

Status = Literal["queued", "running", "done", "failed", "cancelled"]


@dataclass(slots=True)
class Job:
    """One job. Only the queue changes it.

    Attributes:
        id: Digest of the request and the logs: the same request again gets this job.
        order: What the job's process does.
        owner: Name of the token that started it.
        runs_done: Number of runs that are done.
        error: Why it failed; empty otherwise.
        result: The result as JSON text; None until it is done.
        page: The result as HTML, for backtests.
    """

    id: str
    order: JobOrder
    owner: str
    status: Status = "queued"
    runs_done: int = 0
    error: str = ""
    result: str | None = None
    page: str | None = None
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: datetime | None = None
    ended: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has finished, failed or been cancelled."""
        return self.status in ("done", "failed", "cancelled")


class JobQueue:
    """A queue that runs one job at a time, each in its own process.

    Args:
        limits: How many jobs wait and are kept, and what each may use.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._process: ChildProcess | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, job: Job) -> Job:
        """Queue a job, or return the known job of the same id unless that failed or was cancelled.

        Raises:
            Busy: Too many jobs are waiting.
        """
        with self._changed:
            known = self._jobs.get(job.id)
            if known is not None and known.status not in ("failed", "cancelled"):
                return known
            if len(self._waiting) >= self._limits.jobs_waiting:
                raise Busy(f"{len(self._waiting)} jobs are already waiting", fix="Try again later, or cancel one")
            self._jobs[job.id] = job
            self._jobs.move_to_end(job.id)
            self._waiting.append(job)
            self._forget()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return job

    def job(self, job_id: str) -> Job:
        """Return the job of that id.

        Raises:
            JobNotFound: There is none, or it is no longer kept.
        """
        with self._changed:
            if job_id not in self._jobs:
                raise JobNotFound(
                    "no job has this id; the server may have dropped it", got=job_id, fix="GET /api/v1/jobs lists them"
                )
            return self._jobs[job_id]

    def jobs(self) -> list[Job]:
        """Return all jobs that are kept, newest first."""
        with self._changed:
            return list(reversed(self._jobs.values()))

    def cancel(self, job_id: str, holder: Holder) -> Job:
        """Cancel a waiting or running job; a finished one stays as it is.

        Raises:
            JobNotFound: There is none, or it is no longer kept.
            NotYours: Another token started it, and the holder is no admin.
        """
        job = self.job(job_id)
        if job.owner != holder.name and holder.scope < Scope.ADMIN:
            raise NotYours(
                "another token started this job", got=job_id, fix="Use that token, or one with the scope admin"
            )
        with self._changed:
            if not job.is_over:
                is_running = job.status == "running"
                self._end(job, "cancelled")
                with suppress(ValueError):
                    self._waiting.remove(job)
                if is_running and self._process is not None:
                    self._process.kill()
        return job

    def counts(self) -> dict[str, int]:
        """Return the numbers of queued and running jobs."""
        with self._changed:
            running = sum(job.status == "running" for job in self._jobs.values())
            return {"queued": len(self._waiting), "running": running}

    def close(self) -> None:
        """Stop all jobs."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            if self._process is not None:
                self._process.kill()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _forget(self) -> None:
        over = [job.id for job in self._jobs.values() if job.is_over]
        for job_id in over[: max(0, len(self._jobs) - self._limits.jobs_kept)]:
            del self._jobs[job_id]

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                job = self._waiting.popleft()
                job.status, job.started = "running", datetime.now(UTC)
                try:
                    self._process = start_worker("job_worker", self._limits.job_bytes)
                except OSError as error:
                    self._fail(job, f"the job's process could not be started ({error.strerror})")
                    continue
            try:
                self._follow(job, self._process)
            except Exception as error:  # One job's failure must not end the thread that runs them all.
                _LOGGER.exception("job %s", job.id)
                self._fail(job, f"communication with the job's process failed ({type(error).__name__})")
            finally:
                self._process.end()

    def _follow(self, job: Job, process: ChildProcess) -> None:
        """Send the process its job, and receive progress and the result."""

        def progressed(runs_done: int) -> None:
            job.runs_done = runs_done

        limits, request = self._limits, job.order._asdict()
        try:
            frame = exchange(
                process,
                request,
                within_s=limits.job_s,
                most_bytes=limits.job_result_bytes,
                on_progress=progressed,
            )
            self._keep(job, **json.loads(frame.body))
        except TimeoutError:
            self._fail(job, f"the job exceeded its limit of {limits.job_s:g} s of processor time")
        except BrokenFrame:
            self._fail(job, "the result is too large, or incomplete")
        except EOFError:
            self._fail(job, "the job's process ended before the job was done")
        except TelemetryError as error:
            self._fail(job, without_path(str(error), Path(job.order.store)))

    def _keep(self, job: Job, document: object, page: str | None) -> None:
        """Store the result, unless the job was cancelled."""
        text = json.dumps(document)
        with self._changed:
            if not job.is_over:
                job.result, job.page = text, page
                self._end(job, "done")

    def _fail(self, job: Job, error: str) -> None:
        """Store the error, unless the job is over: cancelled, or done."""
        with self._changed:
            if not job.is_over:
                job.error = error
                self._end(job, "failed")

    def _end(self, job: Job, status: Status) -> None:
        job.status, job.ended = status, datetime.now(UTC)
        self._changed.notify_all()
