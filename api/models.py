"""What responses look like: one model a shape, so that the OpenAPI document describes every one of them.

Numbers that are not finite stand as the strings ``NaN``, ``Infinity`` and ``-Infinity``, as in the store's JSON lines.
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


#: Where the next page of a list begins.
Next = Annotated[
    str | None,
    Field(
        description="Opaque: as `cursor`, beside the same other parameters, it asks for what follows. Null at the end."
    ),
]


class Model(BaseModel):
    """A part of a response."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings", use_attribute_docstrings=True)


class Page(Model):
    """A part of a list."""

    next: Next

    @classmethod
    def row_model(cls) -> type[BaseModel]:
        """What the rows of a table hold, in forms other than JSON: the items, unless the page says otherwise."""
        model: type[BaseModel] = get_args(cls.model_fields["items"].annotation)[0]
        return model


class Health(Model):
    """The server answers, and reaches its store."""

    status: Literal["ok"] = "ok"


class ParameterError(Model):
    """One thing that is wrong with a request."""

    where: str
    """Place and name of the parameter, such as `query.limit`."""
    what: str
    got: str | None = None


class Problem(Model):
    """Problem details (RFC 9457)."""

    type: str
    """A URI that names the sort of problem; it says the same as `code`."""
    title: str
    status: int
    detail: str
    """What is wrong this time."""
    code: str
    """The sort of problem, for programs. Stable."""
    hint: str | None = None
    """How to go on."""
    errors: list[ParameterError] | None = None
    """Every parameter that was refused, where parameters were."""


class RunFacts(Model):
    """What lists of runs and the run's own page share."""

    run_id: str
    name: str
    group: str | None
    tags: list[str]
    status: str
    """`running`, `completed`, `stopped` (by a rule), `failed`, `interrupted` or `crashed`."""
    started: datetime
    """UTC, ISO 8601."""
    ended: datetime | None
    """UTC, ISO 8601; null while the run goes on, or when it crashed."""
    duration_s: Number
    steps: int
    """Optimizer updates finished; those that a resume rolled back do not count."""
    planned_steps: int | None
    """Updates that the loop declared; null when it did not."""
    policy_digest: str | None
    """Digest of the rule file in force at the end."""


class RunRow(RunFacts):
    """A run in one row."""

    attempts: int
    """Process lives of the run."""


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
    """Runs of this store that cannot be read, whatever the filters; they are in no page."""


class PlanItem(Model):
    """The length that a loop declared; null where it did not say."""

    total_steps: int | None
    total_epochs: int | None
    steps_per_epoch: int | None


class PolicyItem(Model):
    """The rule file that an attempt ran under, as it was."""

    digest: str
    source: str
    text: str
    params: dict[str, Any]
    semantics_version: int
    """Version of the rule engine's semantics; another one may decide differently."""


class AttemptItem(Model):
    """One process life of a run."""

    attempt: int
    status: str
    started_ns: int
    """Nanoseconds since 1970 (UTC)."""
    ended_ns: int | None
    steps: int | None
    """Optimizer updates finished at its end; null while open or after a crash."""
    plan: PlanItem
    policy: PolicyItem | None
    environment: dict[str, Any]
    failure: dict[str, str] | None
    """Type and message of the exception that ended it, if one did."""
    parent: int | None
    """The attempt that it goes on from; null when it began from nothing."""
    parent_seq: int | None
    """`seq` in the parent of the checkpoint that it was resumed from, that event included; null when only a step is
    known. What the parent recorded after it was rolled back."""
    from_step: int | None
    """The step that it went on from."""


class MetricItem(Model):
    """A metric of a run."""

    name: str
    kinds: list[str]
    """Kinds of the events that carry it."""
    count: int
    """Its values in the log, all kinds, ranks and attempts together."""


class RunDetail(RunFacts):
    """All that is known of a run beside its events."""

    config: dict[str, Any]
    attempts: list[AttemptItem]
    metrics: list[MetricItem]
    """In order of first appearance."""
    events: dict[str, int]
    """Events of each kind, all ranks and attempts together, what resumes rolled back included."""
    ranks: list[int]


class SeriesItem(Model):
    """The values of one metric in the events of one kind of one run, in event order. All lists are of one length."""

    run_id: str
    metric: str
    kind: str | None
    """Kind of the events; null when no event of this rank carries the metric."""
    n_raw: int
    """Values within `from` and `to`, before downsampling."""
    sampled: bool
    """Whether values were left out. First, last, smallest, largest, NaN and infinite ones never all are."""
    attempt: list[int]
    step: list[int]
    epoch: list[Number | None]
    elapsed_ns: list[int]
    """Monotonic clock, from each attempt's own start."""
    axis: str
    """What `x` is."""
    x: list[Number]
    """Where each value stands on the axis."""
    value: list[Number]


class SeriesRow(Model):
    """One value of a series, in forms other than JSON."""

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
    """Series, by runs and metrics in the order in which they were asked for."""

    items: list[SeriesItem]

    @classmethod
    def row_model(cls) -> type[BaseModel]:
        """A row a value."""
        return SeriesRow

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row a value."""
        lists = ("attempt", "step", "epoch", "elapsed_ns", "x", "value")
        for item in self.items:
            of_all = {"run_id": item.run_id, "metric": item.metric, "kind": item.kind}
            for row in zip(*(getattr(item, name) for name in lists), strict=True):
                yield of_all | dict(zip(lists, row, strict=True))


class EventItem(Model):
    """One event, as in the JSON lines that `steptape export` writes, and whether it still counts."""

    event: str
    """Its kind."""
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
    """Whether a resume left it behind: it was recorded after the checkpoint that the run went on from."""


class EventPage(Page):
    """Events, in (attempt, seq) order."""

    items: list[EventItem]


class SampleItem(Model):
    """The loss of one sample in one step."""

    attempt: int
    rank: int
    seq: int
    """Of the event that it was recorded with."""
    step: int
    micro_step: int
    position: int
    """Within the batch, from 0."""
    sample_id: str | None
    loss: Number
    tokens: int | None
    token_losses: list[Number] | None
    """Loss of each token, where the sample was flagged."""


class SamplePage(Page):
    """Sample losses."""

    items: list[SampleItem]


class SpikingSample(Model):
    """A sample that pushed the loss above normal."""

    step: int
    attempt: int
    rank: int
    position: int
    sample_id: str | None
    loss: Number
    typical: Number | None
    """Median of the finite losses before the spike."""
    excess: Number | None
    """What the loss is above it."""
    share: Number
    """Part of all excess around the spike, from 0 to 1."""
    seen: int | None
    """How often the sample was recorded before."""
    earlier_loss: Number | None
    """Mean of its finite losses then."""
    tokens: int | None


class SpikingSamplePage(Page):
    """Samples, the hardest first."""

    items: list[SpikingSample]


class DecisionItem(Model):
    """A controller that fired while the run was live."""

    kind: Literal["decision"] = "decision"
    attempt: int
    rank: int
    seq: int
    """Of the decision itself."""
    event_seq: int | None
    """Of the event that made it fire; -1 when that was `init_end`, which precedes the log."""
    step: int
    epoch: Number | None
    time_ns: int
    elapsed_ns: int
    controller: str | None
    trigger: str | None
    operations: list[str]
    values: dict[str, Any]
    """What the rule saw, by expression."""
    mode: str
    """`act`, or `shadow` for a decision whose operations were not carried out."""
    severity: str | None
    """`info`, `warning` or `critical`, where the controller declares one."""
    message: str | None
    """What the controller has to say, where it declares something."""


class RuleErrorItem(Model):
    """A rule that could not be evaluated, recorded once a controller."""

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
    """Those of the whole run, on every page."""
