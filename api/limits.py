"""Defines the limits on the cost of one request, and of all requests together."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..shipping.intake import IntakeLimits
from ..store.sql.statements import QueryLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on everything that a client can ask for.

    Attributes:
        body_bytes: Largest request body, whether or not its length is declared.
        body_s: Timeout for receiving a body, in seconds.
        send_s: Timeout for a client to accept a piece of a response, in seconds.
        query: Limits of one SQL statement.
        query_workers: Most SQL statements that run at a time, each in its own process. A separate limit of the same
            size applies to rule trials.
        query_worker_bytes: Memory of such a process; beyond it, it fails or dies, and is replaced.
        queries_waiting: Most waiting statements, and most waiting rule trials; further ones are refused.
        rules_s: Processor time of a rule trial (a check, or a test file), in seconds. This limit, the next and that of
            a statement allow many times as long by the clock.
        jobs_waiting: Most waiting jobs; further ones are refused.
        jobs_kept: Number of finished jobs that are kept, with their results.
        job_s: Processor time of a job, in seconds.
        job_bytes: Memory of a job's process; beyond it, the job fails.
        job_result_bytes: Largest result of a job or a rule trial.
        series_values: Most values of all series in one response.
        streams: Most live tails and long polls at a time.
        heartbeat_s: Interval between heartbeats in a live tail, in seconds.
        wait_s: Longest wait of a long poll, in seconds.
        intake: Limits on what pushers bring.
        intake_body_s: Timeout for receiving a chunk, in seconds.
    """

    body_bytes: int = 1 << 20
    body_s: float = 10.0
    send_s: float = 30.0
    query: QueryLimits = field(default_factory=QueryLimits)
    query_workers: int = 2
    query_worker_bytes: int = 3 << 30
    queries_waiting: int = 16
    rules_s: float = 10.0
    jobs_waiting: int = 20
    jobs_kept: int = 200
    job_s: float = 3600.0
    job_bytes: int = 8 << 30
    job_result_bytes: int = 64 << 20
    series_values: int = 2_000_000
    streams: int = 1000
    heartbeat_s: float = 15.0
    wait_s: float = 60.0
    intake: IntakeLimits = field(default_factory=IntakeLimits)
    intake_body_s: float = 120.0


DEFAULT_LIMITS = Limits()
