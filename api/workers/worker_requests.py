"""Defines what the server asks of its workers, apart from jobs: statements, trials of rules, and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...rules.readings.reading import Param


class SqlQuestion(NamedTuple):
    """A statement for ``query_worker``.

    Attributes:
        store: The store's folder.
        limits: The fields of ``QueryLimits``.
        statement: SQL; None to read the store only.
        run: A run's id, or its name, the newest run's of several; None for the store.
    """

    store: str
    limits: Mapping[str, Any]
    statement: str | None = None
    run: str | None = None


class PolicyTrial(NamedTuple):
    """A rule file to check, also against the runs in ``folders``."""

    text: str
    params: Mapping[str, Param]
    folders: Sequence[str]


class FiringsTrial(NamedTuple):
    """A rule file to replay over runs: the folder of each, and a text that changes with its log."""

    text: str
    params: Mapping[str, Param]
    runs: Sequence[tuple[str, str]]


class ProposalTrial(NamedTuple):
    """A place of the curve of a metric in the run in a folder, for which a rule is wanted."""

    folder: str
    metric: str
    first_step: int
    last_step: int


class ScenarioTrial(NamedTuple):
    """Tests to run, with the texts of ``policies``, and the files of policies ``known`` to the server."""

    tests: str
    policies: Mapping[str, str]
    known: Mapping[str, str]


class JobTrial(NamedTuple):
    """A job's policy and its values to check before the job is queued.

    Attributes:
        text: The policy.
        source: Its name in messages.
        params: Values that replace its own.
        axes: The values that a sweep gives to params; empty for other jobs.
        seconds: Time limit for trying values; the job checks the rest.
    """

    text: str
    source: str
    params: Mapping[str, Param]
    axes: Mapping[str, Sequence[Param]]
    seconds: float


class HealthTrial(NamedTuple):
    """The run in a folder, the file of the policy that judges it, and renames of metrics: for ``health_worker``."""

    folder: str
    policy: str
    renames: tuple[tuple[str, str], ...] = ()


Trial: TypeAlias = PolicyTrial | FiringsTrial | ProposalTrial | ScenarioTrial | JobTrial
