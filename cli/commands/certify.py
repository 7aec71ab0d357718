"""``steptape certify``: chooses the thriftiest variant of a rule file that keeps a risk limit, with a confidence."""

from __future__ import annotations

from pathlib import Path

import typer

from ...replay.choosing.certification_report import Certification, certification_json, certification_lines
from ...replay.choosing.certifying import certify as certify_runs
from ...replay.choosing.population import changes_since
from ...replay.columns.variants import policies_of
from ...rules.certificate import read_certificate, tries_sentence
from ...store.errors import counted
from ..lookup import runs_asked
from ..options import CertifyArguments
from ..output import output_file, print_blocks, print_json, reading_runs, say
from ..policy_options import confidence_asked, renames_over, replaying_of, risk_asked, variants_asked
from ..streams import FINDINGS, complain
from ..tries import counted_try


def certify(asked: CertifyArguments) -> None:
    """Choose the variant of a rule file that saves most while it keeps a stated risk."""
    if asked.check is not None:
        _check(asked, asked.check)
        return
    if asked.policy is None:
        raise typer.BadParameter("name RULES")
    limited, wanted = risk_asked(asked.risk), confidence_asked(asked.risk)
    replaying = replaying_of(asked.replaying)
    variants = variants_asked(asked.policy, asked.settings, asked.chosen, asked.output)
    read_by = policies_of(variants.policy, variants.axes)
    replaying["renames"] = renames_over(asked.replaying.judging.renames, read_by, variants.runs)
    with reading_runs() as on_progress:
        found = certify_runs(
            *variants,
            limited,
            confidence=wanted,
            on_progress=on_progress,
            **replaying,
        )
    _report(found, asked.output, as_json=asked.as_json)
    if found.params is None:
        raise typer.Exit(FINDINGS)


def _report(found: Certification, out: Path | None, *, as_json: bool) -> None:
    """Write the certificate, if a variant has one, and print the result."""
    question = [found.policy.digest, dict(found.sweep.axes), str(found.risk), found.risk.at_most, found.confidence]
    question += [found.family_key, str(found.declared), str(found.sweep.renames), str(found.sweep.saves)]
    tries = counted_try(question, [one.facts.log_digest for one in found.members])
    certificate = None if found.params is None else found.certificate().with_tries(tries)
    if certificate is not None and out is not None:
        with output_file(out) as file:
            file.write(certificate.text)
    if not as_json:
        print_blocks(certification_lines(found, certificate, None if out is None else str(out)))
        if sentence := tries_sentence(tries):
            say(sentence)
        return
    print_json(certification_json(found, certificate) | {"tries": tries})
    for run in found.outside:
        complain(f"Outside of the population, {run.name} ({run.run_id}): {run.reason}.")


def _check(asked: CertifyArguments, path: Path) -> None:
    """Print what has changed since a certificate was made, and exit with 1 if anything has."""
    certificate = read_certificate(path)
    chosen = None
    if any(asked.chosen[:3]):
        chosen = runs_asked(asked.chosen)
    source = asked.policy or certificate.policy.source
    changes = changes_since(certificate, source, chosen)
    if asked.as_json:
        print_json({"certificate": certificate.digest, "changes": changes, "logs_checked": chosen is not None})
    else:
        for change in changes:
            say(f"{path}: {change}")
        count = len(certificate.population.runs)
        logs = (
            f"the logs of {counted(count, 'run')}" if chosen is not None else "no log: give --store, or name the runs"
        )
        if changes:
            say("The certificate does not hold any more. Certify again.")
        else:
            say(f"The certificate holds: unchanged are the rule file {source} and {logs}.")
    if changes:
        raise typer.Exit(FINDINGS)
