"""Checks a certificate against the policy and the logs that it rests on. Takes these, returns what has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...rules.certificate import Certificate
from ...rules.errors import PolicyError
from ...rules.policy_file.policy import Policy, load_policy
from ...store.errors import TelemetryError
from ...store.run import Run
from .population import event_digest_of


def certified_policy(certificate: Certificate, source: str) -> Policy:
    """Load a policy file with the certified params.

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
        runs: The runs among which the drawn ones are; None to check the policy alone.
    """
    return (*_changes_of_policy(certificate, source), *_changes_of_logs(certificate, runs))


def _changes_of_policy(certificate: Certificate, source: str) -> Iterator[str]:
    try:
        found = certificate.why_other_policy(certified_policy(certificate, source))
    except (PolicyError, TelemetryError) as error:
        found = f"it does not load with the certified params: {error}"
    if found:
        yield f"the policy {source}: {found}"


def _changes_of_logs(certificate: Certificate, runs: Sequence[Run] | None) -> Iterator[str]:
    if runs is None:
        return
    found: Mapping[str, Run] = {run.run_id: run for run in runs}
    for drawn in certificate.population.drawn:
        called = drawn.run_id if drawn.name == drawn.run_id else f"{drawn.name} ({drawn.run_id})"
        if drawn.run_id not in found:
            yield f"the run {called}: it is not here"
        elif why := _change_of_log(found[drawn.run_id], drawn.log_digest):
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
