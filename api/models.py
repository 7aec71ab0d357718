"""Defines the models of responses, one per shape, so that the OpenAPI document describes all of them.

Non-finite numbers are the strings ``NaN``, ``Infinity`` and ``-Infinity``, as in the store's JSON lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

#: A float64 that may be NaN or infinite.
Number = Annotated[
    float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]})
]


#: Cursor of the next page of a list.
Next = Annotated[
    str | None,
    Field(
        description="Opaque. To get the next page, pass it as `cursor` with the same other parameters. Null at the end."
    ),
]


class Model(BaseModel):
    """A part of a response."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", use_attribute_docstrings=True)


class Page(Model):
    """One page of a list."""

    next: Next

    @classmethod
    def row_model(cls) -> type[BaseModel]:
        """Return the model of one table row, for formats other than JSON; by default the model of an item."""
        model: type[BaseModel] = get_args(cls.model_fields["items"].annotation)[0]
        return model


class Health(Model):
    """The server is up and reaches its store."""

    status: Literal["ok"] = "ok"


class ParameterError(Model):
    """One error in a request."""

    where: str
    """Location and name of the parameter, such as `query.limit`."""
    what: str
    got: str | None = None


class Problem(Model):
    """Problem details (RFC 9457)."""

    type: str
    """URI of the problem type; equivalent to `code`."""
    title: str
    status: int
    detail: str
    """The problem with this request, in a sentence."""
    code: str
    """Stable code of the problem type, for programs."""
    hint: str | None = None
    """How to fix the request."""
    errors: list[ParameterError] | None = None
    """Every refused parameter, if any were refused."""


class RunFacts(Model):
    """The fields that lists of runs and a single run share."""

    run_id: str
    name: str
    group: str | None
    tags: list[str]
    status: str
    """`running`, `completed`, `stopped` (by a rule), `failed`, `interrupted` or `crashed`."""
    started: datetime | None
    """UTC, ISO 8601; null if the source of an imported run has no clock."""
    ended: datetime | None
    """UTC, ISO 8601; null while the run is live, or if it crashed."""
    duration_s: Number
    steps: int
    """Optimizer updates finished, without those that a resume rolled back."""
    planned_steps: int | None
    """Updates that the training loop declared; null if it declared none."""
    policy_digest: str | None
    """Digest of the rule file in force at the end."""


class RunRow(RunFacts):
    """A run in a list."""

    attempts: int
    """Number of attempts: process lifetimes of the run."""


class RunProblem(Model):
    """A run folder that cannot be read."""

    run: str
    """Name of its folder."""
    code: str
    detail: str
    hint: str | None = None


class RunPage(Page):
    """Runs, newest first."""

    items: list[RunRow]
    problems: list[RunProblem]
    """Runs of this store that cannot be read, independent of the filters. No page lists them as items."""


class PlanItem(Model):
    """The length of training that the loop declared; null where it declared none."""

    total_steps: int | None
    total_epochs: int | None
    steps_per_epoch: int | None


class PolicyItem(Model):
    """The rule file of an attempt, as it was at the time."""

    digest: str
    source: str
    text: str
    params: dict[str, Any]
    semantics_version: int
    """Version of the rule engine's semantics; another version may decide differently."""


class AttemptItem(Model):
    """One attempt of a run: the lifetime of one process."""

    attempt: int
    status: str
    started_ns: int
    """Nanoseconds since 1970 (UTC)."""
    ended_ns: int | None
    steps: int | None
    """Optimizer updates finished at its end; null while it is running or after a crash."""
    plan: PlanItem
    policy: PolicyItem | None
    environment: dict[str, Any]
    failure: dict[str, str] | None
    """Type and message of the exception that ended it, if any."""
    parent: int | None
    """The attempt that it continues; null if it started from scratch."""
    parent_seq: int | None
    """`seq` of the parent's checkpoint event that it resumed from, which still counts; null when only a step is known.
    Later events of the parent were rolled back."""
    from_step: int | None
    """The step that it resumed from."""


class MetricItem(Model):
    """A metric of a run."""

    name: str
    kinds: list[str]
    """Kinds of the events that carry the metric."""
    count: int
    """Number of its values in the log, over all kinds, ranks and attempts."""


class RunDetail(RunFacts):
    """Everything known about a run except its events."""

    config: dict[str, Any]
    attempts: list[AttemptItem]
    metrics: list[MetricItem]
    """In order of first appearance."""
    events: dict[str, int]
    """Number of events of each kind, over all ranks and attempts, including those that resumes rolled back."""
    ranks: list[int]


class SeriesItem(Model):
    """The values of one metric in one run's events of one kind, in event order. All lists have the same length."""

    run_id: str
    metric: str
    kind: str | None
    """Kind of the events; null when no event of this rank carries the metric."""
    n_raw: int
    """Number of values within `from` and `to`, before downsampling."""
    sampled: bool
    """Whether values were left out. The first, last, smallest and largest value always stay, and a NaN or infinity if
    any."""
    attempt: list[int]
    step: list[int]
    epoch: list[Number | None]
    elapsed_ns: list[int]
    """Monotonic clock in nanoseconds, from the start of each attempt."""
    axis: str
    """The quantity in `x`."""
    x: list[Number]
    """Position of each value on the axis."""
    value: list[Number]


class SeriesRow(Model):
    """One value of a series, in formats other than JSON."""

    run_id: str
    metric: str
    kind: str | None
    attempt: int
    step: int
    epoch: Number | None
    elapsed_ns: int
    x: Number
    value: Number


class SeriesPage(Page):
    """Series, ordered by run and metric as requested."""

    items: list[SeriesItem]

    @classmethod
    def row_model(cls) -> type[BaseModel]:
        """Return the model of one row per value."""
        return SeriesRow

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per value."""
        lists = ("attempt", "step", "epoch", "elapsed_ns", "x", "value")
        for item in self.items:
            of_all = {"run_id": item.run_id, "metric": item.metric, "kind": item.kind}
            for row in zip(*(getattr(item, name) for name in lists), strict=True):
                yield of_all | dict(zip(lists, row, strict=True))


class EventItem(Model):
    """One event, as in the JSON lines of `steptape export`, and whether it was rolled back."""

    event: str
    """Kind of the event."""
    step: int
    epoch: Number | None
    attempt: int
    rank: int
    seq: int
    """Position within (attempt, rank), gap-free from 0."""
    micro_step: int
    time_ns: int
    elapsed_ns: int
    value_lag: int
    metrics: dict[str, Number]
    attrs: dict[str, Any]
    rolled_back: bool
    """Whether a resume discarded the event: it was recorded after the checkpoint where the run resumed."""


class EventPage(Page):
    """Events, in (attempt, seq) order."""

    items: list[EventItem]


class SampleItem(Model):
    """The loss of one sample in one step."""

    attempt: int
    rank: int
    seq: int
    """`seq` of the event that recorded it."""
    step: int
    micro_step: int
    position: int
    """Position within the batch, from 0."""
    sample_id: str | None
    loss: Number
    tokens: int | None
    token_losses: list[Number] | None
    """Loss of each token, if the sample was flagged."""


class SamplePage(Page):
    """Sample losses."""

    items: list[SampleItem]


class SpikingSample(Model):
    """A sample that raised the loss above normal."""

    step: int
    attempt: int
    rank: int
    position: int
    sample_id: str | None
    loss: Number
    typical: Number | None
    """Median of the finite losses before the spike."""
    excess: Number | None
    """Loss above `typical`."""
    share: Number
    """Share of the total excess around the spike, from 0 to 1."""
    seen: int | None
    """How many times the sample was recorded before."""
    earlier_loss: Number | None
    """Mean of its finite losses in those earlier records."""
    tokens: int | None


class SpikingSamplePage(Page):
    """Samples, hardest first."""

    items: list[SpikingSample]


class DecisionItem(Model):
    """A decision of a controller while the run was live."""

    kind: Literal["decision"] = "decision"
    attempt: int
    rank: int
    seq: int
    """`seq` of the decision itself."""
    event_seq: int | None
    """`seq` of the event that triggered it; -1 for `init_end`, which precedes the log."""
    step: int
    epoch: Number | None
    time_ns: int
    elapsed_ns: int
    controller: str | None
    trigger: str | None
    operations: list[str]
    values: dict[str, Any]
    """The values that the rule read, by expression."""
    mode: str
    """`act`, or `shadow` if its operations were not carried out."""
    severity: str | None
    """`info`, `warning` or `critical`, if the controller declares one."""
    message: str | None
    """The controller's message, if it declares one."""
    member: str | None
    """The series whose controller it is, if there is one for each of a family."""
    stage: int | None
    """The stage of its escalation, from 1, if the controller escalates."""


class RuleErrorItem(Model):
    """A rule that could not be evaluated, recorded once per controller."""

    kind: Literal["rule_error"] = "rule_error"
    attempt: int
    rank: int
    seq: int
    event_seq: int | None
    step: int
    epoch: Number | None
    time_ns: int
    elapsed_ns: int
    controller: str | None
    trigger: str | None
    error: str | None


class DecisionPage(Page):
    """Decisions, in (attempt, rank, seq) order."""

    items: list[DecisionItem]
    rule_errors: list[RuleErrorItem]
    """The errors of the whole run, on every page."""
