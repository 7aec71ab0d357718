"""Defines the requests that start jobs, and what the process of a job gets to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from ...replay.runs.objective import declared_objective
from ...replay.runs.risk import AT_MOST_TEXT, CONFIDENCE, RISK_TEXT, Risk, risk_of
from ...rules.policy_file.sentences import is_sentence
from ...rules.readings.reading import Param
from ...store.errors import TelemetryError, shortened
from ..models import RequestModel

Kind = Literal["backtest", "sweep", "recommendation", "verification"]

_Metric = Annotated[str, Field(max_length=1000)]
_Keys = Annotated[list[str], Field(min_length=1, max_length=10_000)]


class JobRequest(RequestModel):
    """The fields of every job request."""

    kind: ClassVar[Kind]

    model_config = ConfigDict(allow_inf_nan=False)

    runs: _Keys | None = None
    """Ids of runs, or names: the newest run of several with it; by default every run of the store."""


class JudgingJobRequest(JobRequest):
    """The fields of a job request that judges runs."""

    objective: _Metric | Annotated[list[_Metric], Field(min_length=1, max_length=100)] | None = None
    """The evaluation metric that judges the runs, as `METRIC`, `METRIC:min` or `METRIC:max`; or several, in order of
    preference: each run is judged by the first that it evaluated. Guessed run by run if not given."""
    mode: Literal["min", "max"] | None = None
    """Whether lower (`min`) or higher (`max`) values of the one objective are better; inferred from the metric's name
    if given nowhere."""
    family: str | None = Field(default=None, min_length=1, max_length=1000)
    """The key that runs of one family share: `group`, `tags`, `name`, `folder`, `run` or a key of the configuration. By
    default it is the first of configuration, group and source folder that a run has. Intervals draw whole families."""
    risk: str | None = Field(default=None, max_length=100)
    """When a stop is lost: `regret > 1%` or `deployable_regret > 2%`. A number without a percent sign is in units of
    the metric. By default `regret > 1%`; a recommendation takes the least of 1, 2, 5 and 10% that the metric's noise
    does not hide."""
    at_most: str = Field(default=AT_MOST_TEXT, max_length=100)
    """Share of runs in which it may, each family as one."""
    confidence: float = Field(default=CONFIDENCE, gt=0, lt=1)
    """Probability that the limit is kept, over the choice of the runs."""

    @property
    def limited(self) -> Risk:
        """The risk with its limit."""
        return risk_of(self.risk or RISK_TEXT, self.at_most)

    @property
    def objectives(self) -> list[str]:
        """The objectives, the preferred one first; empty to guess."""
        return list(filter(None, [self.objective] if isinstance(self.objective, str) else self.objective or ()))

    @model_validator(mode="after")
    def _clear_objective(self) -> JudgingJobRequest:
        if self.mode is not None and len(self.objectives) != 1:
            raise ValueError("'mode' is the direction of the one metric 'objective'; write several as 'METRIC:min'")
        for metric in self.objectives:
            try:
                declared_objective(metric, self.mode)
            except TelemetryError as error:
                raise ValueError(f"'objective': {error}") from None
        try:
            _ = self.limited
        except TelemetryError as error:
            raise ValueError(f"'risk': {error}") from None
        return self


class PolicyJobRequest(JudgingJobRequest):
    """The fields of a job request about a rule file."""

    policy: str | None = Field(default=None, max_length=2_000)
    """Name of a rule file that `GET /policies` lists, or rules as sentences, such as `stop if not isfinite(loss)`."""
    policy_text: str | None = Field(default=None, max_length=200_000)
    """Alternatively, the text of a rule file, YAML."""
    renames: dict[_Metric, _Metric] = Field(default_factory=dict, max_length=100)
    """New names of metrics, as the rules call them, by the names that runs recorded."""
    plans_by_length: bool = False
    """Whether a completed run without a plan counts as planned for its length, as `--plan last` says."""
    saves: Literal["keep", "replace"] = "keep"
    """Whether checkpoints that rules order are added to the loop's own (`keep`) or replace them (`replace`)."""

    @model_validator(mode="after")
    def _one_policy(self) -> PolicyJobRequest:
        if (self.policy is None) == (self.policy_text is None):
            raise ValueError("give either 'policy' or 'policy_text'")
        return self


class BacktestRequest(PolicyJobRequest):
    """A request for a backtest: what a rule file would have saved and cost."""

    kind = "backtest"

    params: dict[str, Param] = Field(default_factory=dict, max_length=100)
    """Values that replace the rule file's own."""
    delay_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Further updates between the decision to stop and the stop. Late values delay the decision anyway."""
    tolerance_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Distance from an incident, in updates, at which an alarm still counts."""
    cost_per_hour: float | None = Field(default=None, ge=0)
    """Cost of one rank for one hour."""
    baselines: list[str] = Field(default_factory=list, max_length=100)
    """Simpler rules to compare with, by name; `all` for every one."""
    coverage: bool = False
    """Whether to report which clauses were ever true."""


class SweepRequest(PolicyJobRequest):
    """A request for a sweep: what every combination of some params' values would have saved and cost."""

    kind = "sweep"

    axes: dict[str, Annotated[list[Param], Field(min_length=1, max_length=10_000)]] = Field(
        default_factory=dict, max_length=20
    )
    """Values to try, by param. Sentences have theirs in braces: `stop if loss > {3..10}`."""
    split: Literal["families", "walk-forward"] | None = None
    """How to judge the best trade-offs on runs that did not choose them: by families, or by time."""
    certify: bool = False
    """Whether to choose the variant that saves most while it keeps the risk, with the confidence."""

    @model_validator(mode="after")
    def _values_to_try(self) -> SweepRequest:
        if not self.axes and not is_sentence(self.policy or ""):
            raise ValueError("give the values to try in 'axes'")
        return self

    @model_validator(mode="after")
    def _numbers_fit_into_columns(self) -> SweepRequest:
        for name, values in self.axes.items():
            for value in values:
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise ValueError(f"axis '{name}': {shortened(str(value))} does not fit into 64 bits")
        return self


class RecommendationRequest(JudgingJobRequest):
    """A request for a recommendation: which rule is worth arming, what it saves and what it risks."""

    kind = "recommendation"

    search: bool = False
    """Whether to judge halving by rank within each family, too."""
    cost_per_hour: float | None = Field(default=None, ge=0)
    """Cost of one rank for one hour."""


class VerificationRequest(JobRequest):
    """A request for a verification: whether recorded and replayed decisions agree."""

    kind = "verification"


#: The requests by the kinds of jobs that they start.
REQUESTS: Final[Mapping[Kind, type[JobRequest]]] = {
    request.kind: request for request in (BacktestRequest, SweepRequest, RecommendationRequest, VerificationRequest)
}


class JobOrder(NamedTuple):
    """The order of a job, which its process carries out.

    Attributes:
        kind: The kind of job.
        store: The store's folder.
        request: The request as JSON, checked.
        runs: Names of the folders of the runs that it covers.
        policy_text: The policy; empty without one.
        policy_source: Its name in messages.
    """

    kind: Kind
    store: str
    request: Mapping[str, Any]
    runs: Sequence[str]
    policy_text: str = ""
    policy_source: str = ""
