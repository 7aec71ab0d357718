"""A certificate: a chosen variant of a policy with a bound on its risk, and the runs that the bound holds for.

``steptape certify`` makes it, the recorder and backtests read it. JSON in, JSON out; no run is read here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from ..store.errors import TelemetryError, plain, require_version
from ..store.events import JsonObject
from ..store.run_info import flattened
from .policy_file.declarations import SEMANTICS_VERSION
from .policy_file.policy import Policy
from .readings.reading import Param

#: Version of the file.
FORMAT: Final = 4

#: Most values of a configuration key that a certificate lists. A key with more is not compared.
MOST_VALUES: Final = 50

_AGAIN: Final = "Use the steptape that certified it, or certify again"

#: Digits of a configuration's number in a reason: as many as each float keeps.
_DIGITS: Final = 15

#: Most entries that a reason names.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class CertifiedPolicy:
    """The chosen variant.

    Attributes:
        source: Where the policy was read from.
        digest: Digest of the policy with the chosen params.
        params: All params, as chosen.
        semantics_version: Version of the rule semantics.
    """

    source: str
    digest: str
    params: Mapping[str, Param]
    semantics_version: int


@dataclass(frozen=True, slots=True)
class CertifiedRisk:
    """The promise: in what share of the runs, or on average, the policy loses how much. Each family counts as one.

    Attributes:
        text: The risk, such as ``regret > 1%``.
        at_most: The limit: a share of runs, or a mean regret.
        confidence: Probability, over the choice of the families, that the promise holds.
        over: A run is broken if its regret exceeds this; None for a mean.
        cap: The most regret that a run counts with in a mean; None for a share of runs.
        is_relative: Whether regret is relative to a run's best value.
        is_deployable: Whether it is the regret of evaluations with a checkpoint.
        objectives: The metrics that judge the runs, each as ``METRIC:min`` or ``METRIC:max``.
        declared: Those that the user declared, the preferred one first; empty if they were guessed run by run.
        renames: The metrics that were renamed: new names by old ones.
        saves: Whether the loop's own checkpoints remain: ``keep`` or ``replace``.
        plans_by_length: Whether a completed run without a plan counted as planned for its length.
    """

    text: str
    at_most: float
    confidence: float
    over: float | None
    cap: float | None
    is_relative: bool
    is_deployable: bool
    objectives: tuple[str, ...]
    declared: tuple[str, ...]
    renames: Mapping[str, str]
    saves: str
    plans_by_length: bool


@dataclass(frozen=True, slots=True)
class VariantTests:
    """How the variant was chosen.

    Attributes:
        axes: The params that were varied, with their values.
        order: The order of the tests, in words.
        why: Where the order comes from.
        variants: Number of variants that might have been chosen.
        tested: Number of variants that were tested before their chains failed.
        passed: Number of variants that passed.
        error: Probability of error that each chain of tests used.
        tries: Number of choices that were made on these runs until then, with this one; None if nobody counted.
    """

    axes: Mapping[str, tuple[Param, ...]]
    order: str
    why: str
    variants: int
    tested: int
    passed: int
    error: float
    tries: int | None = None


@dataclass(frozen=True, slots=True)
class CertifiedEvidence:
    """What the runs say of the chosen variant.

    Attributes:
        broken: Number of broken runs; None for a mean.
        mean: Share of broken runs, or mean of the capped regret, averaged over the families.
        bound: Upper confidence bound of the same for this variant alone. What is promised is the limit: it takes into
            account that the variant was chosen.
        p_value: Probability of such a good result if the limit were exceeded.
        saved: Mean share of a run's steps that it saves, averaged over the families.
        could_not_fire: Number of runs in which it could not fire: they count as regret 0 and saving 0.
        unknown: Number of runs that count as broken because their record bounds no regret.
    """

    broken: int | None
    mean: float
    bound: float
    p_value: float
    saved: float
    could_not_fire: int
    unknown: int


@dataclass(frozen=True, slots=True)
class PopulationRun:
    """A run that the certificate rests on.

    Attributes:
        run_id, name: The run.
        family: Its family.
        log_digest: Digest of its log.
    """

    run_id: str
    name: str
    family: str
    log_digest: str


@dataclass(frozen=True, slots=True)
class MetricRange:
    """The evaluations of one metric in the population.

    Attributes:
        fewest, most: How many of them a run has.
        least, greatest: Their values.
    """

    fewest: int
    most: int
    least: float
    greatest: float

    def why_not(self, metric: str, found: Evaluations) -> Iterator[str]:
        """Yield why the evaluations of a run are not like these."""
        if not self.fewest <= found.number <= self.most:
            usual = _span(self.fewest, self.most)
            yield f"it has {found.number:,} evaluations of {metric}, the population has {usual}"
        if not self.least <= found.median <= self.greatest:
            span = f"{plain(self.least)} to {plain(self.greatest)}"
            yield f"the median of its {metric} is {plain(found.median)}, the population has values of {span}"


class Evaluations(NamedTuple):
    """The evaluations of one metric in a run: their number, and the median of the finite values."""

    number: int
    median: float


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The values of one configuration key in the population.

    Attributes:
        least, greatest: Of its numbers; None without any.
        others: Its other values, as JSON; None if there are more than ``MOST_VALUES``, which are then not compared.
        is_in_all: Whether every run has the key.
    """

    least: float | None
    greatest: float | None
    others: tuple[str, ...] | None
    is_in_all: bool

    def why_not(self, value: Any) -> str:
        """Return why a value is none of these; empty if it is one, or if they are not compared."""
        if self.others is None:
            return ""
        if is_number(value):
            is_known = self.least is not None and self.greatest is not None and self.least <= value <= self.greatest
        else:
            is_known = json_text(value) in self.others
        text = plain(value, _DIGITS) if is_number(value) else json_text(value)
        return "" if is_known else f"is {text}, the population has {self}"

    def __str__(self) -> str:
        numbers = []
        if self.least is not None and self.greatest is not None:
            numbers = [" to ".join(dict.fromkeys(plain(end, _DIGITS) for end in (self.least, self.greatest)))]
        return " or ".join([*numbers, *_some(self.others or ())])


@dataclass(frozen=True, slots=True)
class CertifiedPopulation:
    """The runs that the promise is about: those that are like these.

    Attributes:
        family_key: What tells families apart: a key, or the default.
        families: Number of families.
        runs: The runs in them.
        outside: Number of given runs that are not in the population, such as those without evaluations.
        config: The values of each configuration key, dotted where it is nested.
        fewest_steps, most_steps: Planned lengths of the runs; the recorded one of a run without a plan.
        metrics: The metrics that rules read, or that judge the runs, and every run has.
        evaluations: The evaluations of each metric that judges runs.
    """

    family_key: str
    families: int
    runs: tuple[PopulationRun, ...]
    outside: int
    config: Mapping[str, KeyRange]
    fewest_steps: int
    most_steps: int
    metrics: tuple[str, ...]
    evaluations: Mapping[str, MetricRange]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A chosen variant with a bound on its risk, and the population that it was chosen from.

    Attributes:
        steptape: The version that made it.
        policy: The chosen variant.
        risk: The promise.
        tests: How the variant was chosen.
        evidence: What the runs say of it.
        population: The runs.
    """

    steptape: str
    policy: CertifiedPolicy
    risk: CertifiedRisk
    tests: VariantTests
    evidence: CertifiedEvidence
    population: CertifiedPopulation

    def with_tries(self, tries: int | None) -> Self:
        """Return it with the number of choices that were made on its runs."""
        return dataclasses.replace(self, tests=dataclasses.replace(self.tests, tries=tries))

    @property
    def digest(self) -> str:
        """SHA-256, in hexadecimal, of everything that it says."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(f"steptape certificate {FORMAT}\n{text}".encode(errors="surrogatepass")).hexdigest()

    def to_json(self) -> JsonObject:
        """Return it as a JSON object, with its format and digest."""
        return {"format": FORMAT, **dataclasses.asdict(self), "digest": self.digest}

    @property
    def text(self) -> str:
        """The content of its file."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, document: Any, where: str = "certificate") -> Self:
        """Rebuild a certificate from its JSON object.

        Args:
            document: The object.
            where: The file, for errors.

        Raises:
            TelemetryError: A key is missing, unknown or of another type, or the content does not have its digest.
            UnsupportedVersion: It has another format, or its policy has other semantics.
        """
        if not isinstance(document, Mapping):
            raise TelemetryError("a certificate is a JSON object", where=where, got=document)
        require_version("certificate format", document.get("format"), FORMAT, where=where, fix=_AGAIN)
        content = {key: value for key, value in document.items() if key not in ("format", "digest")}
        certificate = _rebuilt(cls, content, where)
        assert isinstance(certificate, cls)
        if document.get("digest") != certificate.digest:
            fix = "Restore the file, or certify again"
            raise TelemetryError("the certificate was changed: its digest differs", where=where, fix=fix)
        own = certificate.policy.semantics_version
        require_version("rule semantics", own, SEMANTICS_VERSION, where=f"{where}.policy", fix=_AGAIN)
        return certificate

    def why_other_policy(self, policy: Policy) -> str:
        """Return how a policy differs from the certified one; empty if it is the same."""
        if policy.digest == self.policy.digest:
            return ""
        mine, own = self.policy.params, policy.params
        other = sorted(name for name in mine.keys() | own.keys() if mine.get(name) != own.get(name))
        if other:
            pairs = [f"{name} is {own.get(name)!r}, certified is {mine.get(name)!r}" for name in other]
            return f"its params differ: {'; '.join(_some(pairs))}"
        return "its rules, metrics or operations have changed"

    def why_outside(
        self,
        config: Mapping[str, Any],
        *,
        steps: int | None = None,
        metrics: Collection[str] | None = None,
        evaluations: Mapping[str, Evaluations] | None = None,
    ) -> tuple[str, ...]:
        """Return why a run is outside of the population, one reason each; empty if nothing says that it is.

        Args:
            config: The run's configuration.
            steps: Its planned length, or the recorded one of a run without a plan; None if it is not known.
            metrics: The metrics that it recorded; None if they are not known yet.
            evaluations: Its evaluations, by metric; None if they are not known yet.
        """
        found = [*self._reasons(flattened(dict(config)), steps, metrics)]
        for metric, own in (evaluations or {}).items():
            if metric in self.population.evaluations:
                found += self.population.evaluations[metric].why_not(metric, own)
        return tuple(found)

    def _reasons(self, config: Mapping[str, Any], steps: int | None, metrics: Collection[str] | None) -> Iterator[str]:
        population = self.population
        missing = [key for key, known in population.config.items() if known.is_in_all and key not in config]
        if missing:
            yield f"its config lacks {', '.join(_some(missing))}, which all runs of the population have"
        for key, known in population.config.items():
            if key in config and (why := known.why_not(config[key])):
                yield f"config {key} {why}"
        if steps is not None and not population.fewest_steps <= steps <= population.most_steps:
            lengths = _span(population.fewest_steps, population.most_steps)
            yield f"its length is {steps:,} steps, the population has {lengths}"
        if metrics is not None and (lacking := [name for name in population.metrics if name not in metrics]):
            yield f"it recorded no {', '.join(_some(lacking))}, which all runs of the population did"


def tries_sentence(tries: int | None) -> str:
    """Return what several choices on the same runs mean for a promise; empty for one, and if nobody counted."""
    if tries is None or tries < 2:
        return ""
    return f"This is try {tries:,} on these runs: the promise holds for one choice that is made before looking."


def read_certificate(path: str | Path) -> Certificate:
    """Read a certificate's file.

    Raises:
        TelemetryError: It cannot be read, or is not a certificate.
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise TelemetryError(f"the certificate cannot be read ({error.strerror})", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise TelemetryError(f"this is not a certificate ({error})", where=str(path)) from None
    return Certificate.from_json(document, str(path))


def is_number(value: Any) -> bool:
    """Whether a value of a configuration is a finite number, which belongs to a range."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def json_text(value: Any) -> str:
    """Return a value of a configuration as JSON, by which values are compared."""
    return json.dumps(value, sort_keys=True, default=str)


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _some(texts: Collection[str]) -> list[str]:
    """Return the first entries, and how many more there are."""
    more = [f"{len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return [*[*texts][:_NAMED], *more]


def _rebuilt(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as a value of an annotated type, strictly: nothing is converted but whole floats.

    Raises:
        TelemetryError: It is of another type. The message names the key.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _record(kind, value, where)
    if origin in (Union, types.UnionType):
        return _alternative(arguments, value, where)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_rebuilt(arguments[0], entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {key: _rebuilt(arguments[1], entry, f"{where}.{key}") for key, entry in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise TelemetryError(f"must be {getattr(kind, '__name__', kind)}", where=where, got=value)


def _alternative(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return a value of one of several types. An int stays one where both int and float may be."""
    if type(value) in kinds:
        return value
    (kind,) = [kind for kind in kinds if kind is not type(None)][-1:]
    return _rebuilt(kind, value, where)


def _record(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise TelemetryError("must be a JSON object", where=where, got=value)
    hints = get_type_hints(kind)
    missing, unknown = [*(hints.keys() - value.keys())], [*(value.keys() - hints.keys())]
    if missing or unknown:
        what = f"lacks {', '.join(sorted(missing))}" if missing else "has an unknown key"
        raise TelemetryError(what, where=where, got=None if missing else min(unknown))
    return kind(**{name: _rebuilt(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
