"""Describes the runs that a certificate is about: which count, and their families.

Takes a sweep and its runs; also checks a certificate against the policy and the logs that it rests on.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...rules.certificate import (
    MOST_VALUES,
    Certificate,
    CertifiedPopulation,
    CertifiedRisk,
    Evaluations,
    KeyRange,
    MetricRange,
    PopulationRun,
    is_number,
    json_text,
)
from ...rules.errors import PolicyError
from ...rules.policy_file.policy import Policy, load_policy
from ...rules.readings.vectors import Floats
from ...store.errors import TelemetryError
from ...store.event_json import event_to_line
from ...store.reading.snapshot import Snapshot
from ...store.run import Run
from ...store.run_info import RunInfo, flattened
from ..runs.objective import FEWEST_EVALUATIONS, Objective
from ..runs.risk import Risk
from ..runs.run_families import Family, family_of, is_of_one_run
from ..runs.run_result import Excluded
from ..sweeps.outcomes import MemberFacts, SweptRun
from ..sweeps.totals import Sweep
from .family_tests import digest_order

#: The family key of a certificate whose user named none.
DEFAULT_KEY: Final = "configuration, group or source folder"


@dataclass(frozen=True, slots=True)
class PopulationMember:
    """A run of the population.

    Attributes:
        swept: The run with the outcomes of all variants.
        facts: What is known of it.
    """

    swept: SweptRun
    facts: MemberFacts


def _evaluated(run: Run, metric: str, recorded: Collection[str], renames: Mapping[str, str]) -> Floats:
    """Return the finite values of a metric's evaluations, under its own name or the one that it was recorded with."""
    names = [name for name in recorded if metric in (name, renames.get(name))]
    try:
        found = np.concatenate([run.series(name, kind="evaluate")["value"].to_numpy() for name in names])
    except (TelemetryError, ValueError):  # No evaluation carries it.
        return np.empty(0)
    values: Floats = found[np.isfinite(found)]
    return values


def event_digest_of(run: Run) -> str:
    """Return the digest of the deciding rank's events, which does not depend on whether they are sealed.

    It identifies a run without a stored digest: a log gets one when it is sealed.
    """
    digest = hashlib.sha256(b"steptape events 1\n")
    for event in run.events():
        digest.update(event_to_line(event).encode(errors="surrogatepass") + b"\n")
    return f"events:{digest.hexdigest()}"


def members_of(
    sweep: Sweep, facts: Mapping[str, MemberFacts], judged_by: Objective | None = None
) -> tuple[list[PopulationMember], list[Excluded]]:
    """Return the runs of the population, and the others with the reason.

    Args:
        sweep: The variants over the runs.
        facts: The facts of the runs, by id.
        judged_by: The objective of the population; None if each run has its own.
    """
    inside, outside = [], [*sweep.excluded]
    for swept in sweep.runs:
        metric = None if swept.objective is None else swept.objective.metric
        reason = why_no_member(swept)
        if not reason and judged_by is not None and metric != judged_by.metric:
            reason = f"it is judged by {metric}"
        if reason:
            outside.append(Excluded(swept.run_id, swept.name, reason))
        else:
            inside.append(PopulationMember(swept, facts[swept.run_id]))
    return inside, outside


def why_no_member(swept: SweptRun) -> str:
    """Return why a run is not in the population, whatever a variant does; empty if it is."""
    if swept.objective is None:
        return "no metric judges it"
    if swept.best != swept.best:
        return f"it has no evaluation of {swept.objective.metric} that is a number"
    if swept.outcomes.has_few_evaluations.all():
        return f"it has fewer than {FEWEST_EVALUATIONS} evaluations of {swept.objective.metric}"
    return ""


def families_of(
    members: Iterable[PopulationMember], repeated: Iterable[MemberFacts] = (), key: str | None = None
) -> dict[Family, list[PopulationMember]]:
    """Return the members of each family, in the order of ``digest_order``. Families that share a log are one.

    Args:
        members: The runs of the population.
        repeated: Runs that are counted once, under another member: their families are not independent of its family.
        key: The key of families; None for the default.
    """
    joined: dict[Family, Family] = {}

    def first(family: Family) -> Family:
        while family in joined:
            family = joined[family]
        return family

    of_log: dict[str, Family] = {}
    known = sorted(members, key=lambda member: (member.facts.log_digest, member.swept.run_id))
    placed = [(member.facts, member.swept.family) for member in known]
    placed += [(facts, family_of(facts.info, key)) for facts in repeated]
    for facts, family in placed:
        one, other = sorted((first(family), first(of_log.setdefault(facts.log_digest, family))), key=_sorting)
        if one != other:
            joined[other] = one
    found: dict[Family, list[PopulationMember]] = defaultdict(list)
    for member in known:
        found[first(member.swept.family)].append(member)
    return {family: found[family] for family in digest_order(found)}


def _sorting(family: Family) -> tuple[str, str]:
    return family.key, family.value


def described_population(
    families: Mapping[Family, Sequence[PopulationMember]],
    *,
    key: str | None,
    outside: int,
    read: Iterable[str],
) -> CertifiedPopulation:
    """Describe the population as a certificate states it.

    Args:
        families: The members of each family.
        key: The key of families; None for the default.
        outside: Number of given runs outside of it.
        read: The metrics that rules read.
    """
    members = [member for family in families.values() for member in family]
    lengths = [member.facts.length(member.swept.steps) for member in members]
    judging = {member.swept.objective.metric for member in members if member.swept.objective is not None}
    # A new family has a value of its own in the key that tells families apart.
    configs = [{name: value for name, value in _config_of(member).items() if name != key} for member in members]
    common = frozenset.intersection(*(member.facts.metrics for member in members))
    return CertifiedPopulation(
        family_key=DEFAULT_KEY if key is None else key,
        families=len(families),
        runs=tuple(
            PopulationRun(one.swept.run_id, one.swept.name, family.value, one.facts.log_digest)
            for family, of_family in families.items()
            for one in of_family
        ),
        outside=outside,
        config=ranges_of(configs),
        fewest_steps=min(lengths),
        most_steps=max(lengths),
        metrics=tuple(sorted(common & {*read, *judging})),
        evaluations={metric: _range_of_metric(metric, members) for metric in sorted(judging)},
    )


def _range_of_metric(metric: str, members: Iterable[PopulationMember]) -> MetricRange:
    judged = [one for one in members if one.swept.objective is not None and one.swept.objective.metric == metric]
    values = [one.facts.values for one in judged]
    counts, every = [len(own) for own in values], np.concatenate(values)
    return MetricRange(min(counts), max(counts), float(every.min()), float(every.max()))


def _config_of(member: PopulationMember) -> dict[str, object]:
    return flattened(member.facts.info.config)


def ranges_of(configs: Sequence[Mapping[str, object]]) -> dict[str, KeyRange]:
    """Return the values of each key over all runs. Seeds, paths and names, which differ by design, are left out.

    Args:
        configs: The configuration of each run, flattened to one level.
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for config in configs:
        for name, value in config.items():
            if not is_of_one_run(name, value):
                values[name].append(value)
    return {name: _range_of(values[name], len(values[name]) == len(configs)) for name in sorted(values)}


def _range_of(values: Sequence[Any], is_in_all: bool) -> KeyRange:
    known = [float(value) for value in values if is_number(value)]
    others = sorted({json_text(value) for value in values if not is_number(value)})
    listed = tuple(others) if len(others) <= MOST_VALUES else None
    return KeyRange(min(known, default=None), max(known, default=None), listed, is_in_all)


def certified_risk(found: CertifiedRisk) -> Risk:
    """Return the risk that a certificate bounds."""
    return Risk(found.is_deployable, found.over, found.cap, found.at_most, found.is_relative)


def outside_of(certificate: Certificate, runs: Iterable[Run]) -> dict[str, tuple[str, ...]]:
    """Return for each run, by id, why it is outside of a certificate's population; empty for one that is not.

    A run that cannot be read is outside.
    """
    found: dict[str, tuple[str, ...]] = {}
    for run in runs:
        try:
            info, length, metrics = run.read(_known_facts)
        except TelemetryError as error:
            found[run.folder.name] = (f"it cannot be read ({error})",)
            continue
        renames = certificate.risk.renames
        called = {*metrics, *(new for old, new in renames.items() if old in metrics)}
        values = {name: _evaluated(run, name, metrics, renames) for name in certificate.population.evaluations}
        evaluations = {name: Evaluations(len(own), float(np.median(own))) for name, own in values.items() if len(own)}
        found[info.run_id] = certificate.why_outside(info.config, steps=length, metrics=called, evaluations=evaluations)
    return found


def _known_facts(snapshot: Snapshot) -> tuple[RunInfo, int | None, frozenset[str]]:
    """Return what a certificate compares of a run: its info, its planned or else its recorded length, its metrics."""
    length = snapshot.info.last.newest_plan.max_steps()
    if length is None:
        steps = snapshot.events_table(["step"]).column("step").to_numpy()
        length = int(steps.max()) if len(steps) else None
    return snapshot.info, length, frozenset(snapshot.columns.of_loop)


def certified_policy(certificate: Certificate, source: str) -> Policy:
    """Load a policy file, or sentences, with the certified params.

    Raises:
        TelemetryError: The file cannot be read.
        PolicyError: It does not load with these params.
    """
    return load_policy(source, params=certificate.policy.params)


def changes_since(certificate: Certificate, source: str, runs: Sequence[Run] | None) -> tuple[str, ...]:
    """Return what has changed since the certificate was made, one sentence each; empty if nothing has.

    Args:
        certificate: The certificate.
        source: The policy's file, or the name of a shipped policy.
        runs: The runs among which the certified ones are; None to check the policy alone.
    """
    return (*_changes_of_policy(certificate, source), *_changes_of_logs(certificate, runs))


def _changes_of_policy(certificate: Certificate, source: str) -> Iterator[str]:
    try:
        found = certificate.why_other_policy(certified_policy(certificate, source))
    except (PolicyError, TelemetryError) as error:
        found = f"it does not load with the certified params: {error}"
    if found:
        yield f"the rule file {source}: {found}"


def _changes_of_logs(certificate: Certificate, runs: Sequence[Run] | None) -> Iterator[str]:
    if runs is None:
        return
    found: Mapping[str, Run] = {run.run_id: run for run in runs}
    for certified in certificate.population.runs:
        own, name = certified.run_id, certified.name
        called = own if name == own else f"{name} ({own})"
        if own not in found:
            yield f"the run {called}: it is not here"
        elif why := _change_of_log(found[own], certified.log_digest):
            yield f"the run {called}: {why}"


def _change_of_log(run: Run, digest: str) -> str:
    """Return how a log differs from the one with this digest; empty if it is the same."""
    try:
        own = "" if digest.startswith("events:") else run.log_digest
        if (own or event_digest_of(run)) != digest:
            return "its log has changed"
        return "; ".join(run.digest_faults())
    except TelemetryError as error:
        return str(error)
