"""What one request, and all of them together, may cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..store.sql.bounded_query import QueryLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on everything that a client can ask for.

    Attributes:
        body_bytes: Of a request's body, whether its length is declared or not.
        body_s: Until a body has to be there.
        send_s: Until a piece of an answer has to be taken.
        query: What one statement of SQL may cost.
        query_workers: Statements that run at a time, each in a process of its own; and trials of rules, likewise.
        query_worker_bytes: What such a process may hold; beyond it, it fails or dies, and is replaced.
        queries_waiting: Statements that wait for their turn, and trials of rules; further ones are refused.
        rules_s: Until a trial of rules is ended: a check, or a file of tests.
        jobs_waiting: Jobs that wait for their turn; further ones are refused.
        jobs_kept: Finished jobs that are remembered, with their results.
        job_s: Until a job is ended.
        job_bytes: What its process may hold; beyond it, the job fails.
        job_result_bytes: Of a job's result, and of what a trial of rules comes to.
        series_values: Values of all series of one answer.
        streams: Live tails at a time.
        heartbeat_s: Between two signs of life in a live tail.
        wait_s: What a long poll may wait.
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
    streams: int = 64
    heartbeat_s: float = 15.0
    wait_s: float = 60.0


DEFAULT_LIMITS = Limits()
