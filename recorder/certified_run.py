"""Compares a run with the certificate of its rules, and says once why the promise does not hold for it.

A certificate, and what is known of a run at its start and at its end, in; a warning and notes of the run out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..rules.certificate import Certificate, read_certificate
from ..store.errors import TelemetryError
from ..store.plan import Plan

if TYPE_CHECKING:
    from ..rules.policy_file.policy import Policy


logger = logging.getLogger("steptape")

_FIX: Final = "Load the policy with load_policy(path, params=certificate.policy.params), or certify these rules"


class CertifiedRun:
    """The certificate of a recorder's rules, and what was said of its run.

    Args:
        certificate: The certificate.
        policy: The rules; None without any.
    """

    def __init__(self, certificate: Certificate, policy: Policy | None) -> None:
        self._certificate = certificate
        self._policy = policy
        self._warned: set[str] = set()

    @property
    def other_rules(self) -> str:
        """How the rules differ from the certified ones; empty if they do not."""
        if self._policy is None:
            return "the recorder has no rules"
        found = self._certificate.why_other_policy(self._policy)
        return f"the rules are not the certified ones: {found}" if found else ""

    def compare(
        self,
        config: Mapping[str, Any],
        plan: Plan,
        note: Callable[[str, Mapping[str, Any]], object],
        *,
        steps: int | None = None,
        has_metric: Callable[[str], bool] | None = None,
    ) -> None:
        """Compare the run with the population of the certificate. Warn of each difference once, and note it.

        Args:
            config: The run's configuration.
            plan: What it declared.
            note: Records a note in the run: its text and attributes.
            steps: Updates that it made; None at its start.
            has_metric: Whether it recorded a metric; None if that is not known yet.
        """
        population = self._certificate.population
        length = plan.max_steps()
        if length is None and steps is not None and steps > population.most_steps:
            length = steps
        metrics = None if has_metric is None else list(filter(has_metric, population.metrics))
        reasons = [*self._certificate.why_outside(config, steps=length, metrics=metrics)]
        new = [why for why in filter(None, (self.other_rules, *reasons)) if why not in self._warned]
        if not new:
            return
        self._warned.update(new)
        text = f"outside of the certificate, whose promise does not hold for this run: {'; '.join(new)}"
        logger.warning("this run is %s", text)
        note(text, {"certificate": self._certificate.digest, "reasons": new})


def certified_run(certificate: str | Path | Certificate, policy: Policy | None, *, strict: bool) -> CertifiedRun | None:
    """Return the certificate that a recorder is given. One that cannot be read is warned of, and does not count.

    Args:
        certificate: The certificate, or its file.
        policy: The rules.
        strict: Raise instead of warning.

    Raises:
        TelemetryError: With ``strict``: it cannot be read, or is of other rules.
    """
    try:
        read = certificate if isinstance(certificate, Certificate) else read_certificate(certificate)
    except (TelemetryError, TypeError) as error:
        if strict:
            raise
        logger.warning("%s; the run is compared with no certificate", error)
        return None
    found = CertifiedRun(read, policy)
    if strict and found.other_rules:
        raise TelemetryError(found.other_rules, fix=_FIX)
    return found
