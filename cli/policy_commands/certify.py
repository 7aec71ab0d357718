"""``steptape certify``: chooses the thriftiest variant of a policy whose risk is below a limit, with a confidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...replay.choosing.certification_report import (
    arming_lines,
    certification_json,
    headline,
    lines_without_certificate,
    population_lines,
    promise_lines,
    table_headings,
    table_rows,
    testing_lines,
)
from ...replay.choosing.certifying import DEFAULT_SEED, Certification
from ...replay.choosing.certifying import certify as certify_runs
from ...replay.choosing.checking import changes_since
from ...replay.choosing.risks import amount_of, risk_of
from ...replay.runs.saves import Saves
from ...rules.certificate import Certificate, read_certificate
from ...store.plural import counted
from ..exit_status import FINDINGS
from ..lookup import complain_of, runs_chosen
from ..options import JsonOption, StoreOption
from ..output import print_json, print_table, reading_runs, say
from ..output_file import output_file
from ..param_values import variants_asked
from ..policy_options import (
    FamilyOption,
    ModeOption,
    ObjectiveOption,
    ProcessesOption,
    RayOption,
    RenameOption,
    SavesOption,
    ValuesOption,
    objectives_of,
    ray_pool,
    renames_of,
)
from ..streams import complain

CertifiedPolicyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="POLICY",
        help="A policy file, or the name of a shipped policy. With --check, the certificate's own if left out.",
    ),
]
PastRunsArgument = Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Past runs to certify it on.")]
RiskOption = Annotated[
    str,
    typer.Option(
        metavar="RISK", help="What a run may not lose: 'regret > 1%', 'deployable_regret > 2%', or 'mean regret'."
    ),
]
LimitOption = Annotated[
    str, typer.Option(metavar="LIMIT", help="Share of runs in which it may; for 'mean regret', the mean itself.")
]
ConfidenceOption = Annotated[
    str, typer.Option(metavar="SHARE", help="Probability that the limit is kept, over the choice of the runs.")
]
CapOption = Annotated[
    str | None, typer.Option(metavar="REGRET", help="For 'mean regret': the most regret that one run counts with.")
]
OrderOption = Annotated[
    str | None,
    typer.Option(
        metavar="PARAM:asc|desc", help="Test the values of a param from the least (asc) or the greatest (desc) on."
    ),
]
SeedOption = Annotated[int, typer.Option(metavar="N", help="Seed by which one run of each family is drawn.")]
OutOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the certificate to this file.")]
CheckOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Check a certificate: are its policy and its logs unchanged?")
]


def certify(
    policy: CertifiedPolicyArgument = None,
    runs: PastRunsArgument = None,
    settings: ValuesOption = None,
    risk: RiskOption = "regret > 1%",
    at_most: LimitOption = "10%",
    confidence: ConfidenceOption = "90%",
    cap: CapOption = None,
    order: OrderOption = None,
    seed: SeedOption = DEFAULT_SEED,
    store: StoreOption = None,
    objective: ObjectiveOption = None,
    mode: ModeOption = None,
    renames: RenameOption = None,
    saves: SavesOption = Saves.KEEP,
    family: FamilyOption = None,
    processes: ProcessesOption = None,
    ray: RayOption = None,
    out: OutOption = None,
    check: CheckOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the variant of a policy that saves most while it keeps a stated risk.

    Every combination of the values is a variant. One run of each family is drawn, and each variant is tested on them:
    the chosen one keeps the limit on runs like these with the stated confidence, however many variants were tried.
    Exits with 1 if no variant can be certified, and with --check if something has changed.
    """
    if check is not None:
        _check(check, policy, runs, store, as_json=as_json)
        return
    if policy is None:
        raise typer.BadParameter("name a POLICY")
    limited, wanted = risk_of(risk, at_most, cap), amount_of(confidence, "--confidence").value
    declared, renaming = objectives_of(objective, mode), renames_of(renames)
    workers = ray_pool(ray, processes)
    asked = variants_asked(policy, settings, runs, store, out)
    with reading_runs() as on_progress:
        found = certify_runs(
            *asked,
            limited,
            confidence=wanted,
            order=order,
            family=family,
            seed=seed,
            objective=declared,
            renames=renaming,
            saves=saves,
            on_progress=on_progress,
            processes=processes,
            pool=workers,
        )
    _report(found, out, as_json=as_json)
    if found.params is None:
        raise typer.Exit(FINDINGS)


def _report(found: Certification, out: Path | None, *, as_json: bool) -> None:
    """Write the certificate, if a variant has one, and print the result."""
    certificate = None if found.params is None else found.certificate()
    if certificate is not None and out is not None:
        with output_file(out) as file:
            file.write(certificate.text)
    if not as_json:
        _print(found, certificate, out)
        return
    print_json(certification_json(found, certificate))
    for run in found.outside:
        complain(f"Outside of the population, {run.name} ({run.run_id}): {run.reason}.")


def _check(path: Path, policy: str | None, runs: list[str] | None, store: Path | None, *, as_json: bool) -> None:
    """Print what has changed since a certificate was made, and exit with 1 if anything has."""
    certificate = read_certificate(path)
    chosen = None
    if runs or store is not None:
        chosen, problems = runs_chosen(runs, store)
        complain_of(problems)
    source = policy or certificate.policy.source
    changes = changes_since(certificate, source, chosen)
    if as_json:
        print_json({"certificate": certificate.digest, "changes": changes, "logs_checked": chosen is not None})
    else:
        for change in changes:
            say(f"{path}: {change}")
        count = len(certificate.population.drawn)
        logs = (
            f"the logs of {counted(count, 'run')}" if chosen is not None else "no log: give --store, or name the runs"
        )
        if changes:
            say("The certificate does not hold any more. Certify again.")
        else:
            say(f"The certificate holds: unchanged are the policy {source} and {logs}.")
    if changes:
        raise typer.Exit(FINDINGS)


def _print(found: Certification, certificate: Certificate | None, out: Path | None) -> None:
    say(headline(found))
    for line in lines_without_certificate(found) if certificate is None else promise_lines(certificate):
        say(line)
    say()
    if rows := table_rows(found):
        headings = table_headings(found)
        print_table(headings, rows, numeric=[name for name in headings if name != "passed"])
        say()
    for line in (*testing_lines(found), *population_lines(found)):
        say(line)
    if certificate is not None:
        for line in arming_lines(certificate, None if out is None else str(out)):
            say(line)
