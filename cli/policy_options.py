"""Turns the options that commands about rule files share into objectives, renames, pools and values of params."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

import typer

from ..replay.policies.automatic_renames import near_names
from ..replay.ray_pool import RayPool
from ..replay.runs.event_stream import idle_renames
from ..replay.runs.objective import Objective, Saves, declared_objective
from ..replay.runs.risk import AT_MOST_TEXT, CONFIDENCE, RISK_TEXT, Risk, confidence_of, risk_of
from ..rules.policy_file.policy import Policy, load_variants
from ..rules.policy_file.sentences import is_sentence, values_to_try
from ..rules.readings.reading import Param
from ..store.errors import TelemetryError
from ..store.run import Run
from .lookup import runs_asked
from .options import JudgingOptions, ReplayingOptions, RiskOptions, RunsOptions
from .output import check_output
from .policy_lookup import rules_named, setting_value
from .streams import complain

#: The value of --rename that takes the nearest names.
_AUTO: Final = "auto"

#: Seconds to wait for the head of a Ray cluster.
_REACHABLE_S: Final = 10.0

#: The ends of a range, and its step, with colons between them.
_COLONS: Final = re.compile(r"([-+.\d]+):([-+.\d]+)(?::([-+.\d]+))?")


def judging_of(options: JudgingOptions) -> Judging:
    """Return what the options mean."""
    return Judging(
        objective=objectives_of(options.objective),
        renames=renames_of(rename for rename in options.renames or () if rename != _AUTO),
        plans_by_length=options.plan is not None,
        family=options.family,
        processes=options.processes,
    )


def replaying_of(options: ReplayingOptions) -> Replaying:
    """Return what the options mean."""
    judging = judging_of(options.judging)
    pool = ray_pool(options.ray, options.judging.processes)
    return Replaying(**judging, saves=Saves(options.saves), pool=pool)


def risk_asked(options: RiskOptions) -> Risk:
    """Return what a stop may lose: as the options say, else by default."""
    return risk_of(options.risk or RISK_TEXT, options.at_most or AT_MOST_TEXT, options.cap)


def confidence_asked(options: RiskOptions) -> float:
    """Return how sure an answer must be: as the options say, else by default."""
    return CONFIDENCE if options.confidence is None else confidence_of(options.confidence)


def objectives_of(metrics: Sequence[str] | None) -> tuple[Objective, ...]:
    """Return the objectives that --objective declares, in the user's order; empty if none is given."""
    return tuple(map(declared_objective, dict.fromkeys(metrics or ())))


def renames_of(renames: Iterable[str] | None) -> dict[str, str]:
    """Parse ``OLD=NEW`` settings into new names by old ones."""
    pairs = [rename.partition("=") for rename in renames or ()]
    for old, _, new in pairs:
        if not old or not new:
            raise typer.BadParameter(f"--rename takes OLD=NEW; got {old or new!r}")
    return {old: new for old, _, new in pairs}


def renames_over(renames: Sequence[str] | None, policies: Iterable[Policy], runs: Sequence[Run]) -> dict[str, str]:
    """Return the renames of ``--rename``, with those that its ``auto`` finds. Print the found."""
    found = renames_of(rename for rename in renames or () if rename != _AUTO)
    for old, new in idle_renames(runs, tuple(found.items())):
        complain(f"--rename {old}={new}: no run recorded {old}; they have {new}")
    if _AUTO not in (renames or ()):
        return found
    near = list(near_names(policies, runs, tuple(found.items())))
    for sentence in [one.sentence() for one in near] or ["no metric that the rules read and runs lack has a near name"]:
        complain(f"--rename auto: {sentence}")
    return found | {old: new for one in near for old, new in one.renames.items()}


def ray_pool(address: str | None, processes: int | None = None) -> RayPool | None:
    """Return the pool that --ray asks for; None without --ray. A bare --ray has an empty address."""
    if address is None:
        return None
    if processes is not None:
        raise typer.BadParameter("--ray takes the cores of the cluster: leave out --processes")
    _check_reachable(address)
    return RayPool(address or None)


def _check_reachable(address: str) -> None:
    """Check that a server listens at ``HOST:PORT``. Ray itself waits for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACHABLE_S).close()
    except (OSError, OverflowError) as error:
        fix = "'ray status' prints the address of a running cluster"
        raise TelemetryError(f"no Ray cluster answers ({error})", where=address, fix=fix) from None


class Judging(TypedDict):
    """Arguments of ``diff_policies`` that say how runs are read and judged."""

    objective: tuple[Objective, ...]
    renames: dict[str, str]
    plans_by_length: bool
    family: str | None
    processes: int | None


class Replaying(Judging):
    """Arguments that ``backtest``, ``sweep`` and ``certify`` share: how runs are read and judged."""

    saves: Saves
    pool: RayPool | None


class Variants(NamedTuple):
    """A rule file, the params to vary with their values, and the runs to replay the variants over."""

    policy: Policy
    axes: dict[str, list[Param]]
    runs: list[Run]


def variants_asked(policy: str, settings: Sequence[str] | None, options: RunsOptions, out: Path | None) -> Variants:
    """Load a rule file, the values to try and the runs. Print problems with other runs on stderr.

    Args:
        policy: The rule file, as the user named it.
        settings: The values of ``--set``.
        options: Which runs.
        out: The file to write; None for none. It is checked before the runs are read.
    """
    axes = axes_of(settings or ())
    if not axes and not is_sentence(policy):
        raise typer.BadParameter("give the values to try, such as --set patience=1,2,3 or --set patience=1..20")
    if out is not None:
        check_output(out)
    loaded, choices = load_variants(rules_named(policy))
    if not axes and not choices:
        raise typer.BadParameter("give the values to try in the sentence, such as {1, 2, 3} or {1..20}")
    check_numbers(axes, loaded.params)
    return Variants(loaded, {**choices, **axes}, runs_asked(options))


def axes_of(settings: Sequence[str]) -> dict[str, list[Param]]:
    """Parse the settings into the params that they vary, with their values.

    Raises:
        TelemetryError: Two settings vary the same param.
    """
    axes: dict[str, list[Param]] = {}
    for setting in settings:
        name, values = _axis(setting)
        if name in axes:
            raise TelemetryError("a param has two --set options", got=name, fix="Give all of its values in one --set")
        axes[name] = values
    return axes


def _axis(setting: str) -> tuple[str, list[Param]]:
    name, equals, text = setting.partition("=")
    if not equals or not name or not text:
        raise typer.BadParameter(f"--set takes PARAM=VALUES; got {setting!r}")
    if (colons := _COLONS.search(text)) is not None:
        first, last, step = colons.groups("1")
        fix = f"{first}..{last}" + f"..{step}" * (step != "1")
        raise typer.BadParameter(f"--set {name}: a range is FIRST..LAST..STEP; got {text!r}. Write {fix}.")
    try:
        return name, values_to_try(text, setting_value)
    except ValueError as error:
        raise typer.BadParameter(f"--set {name}: {error}; got {text!r}. Write 3..10 or 3..10..2.") from None


def check_numbers(axes: Mapping[str, Sequence[Param]], params: Mapping[str, Param]) -> None:
    """Refuse text for a number, such as ``1-2`` for a range."""
    for name, values in axes.items():
        text = next((value for value in values if isinstance(value, str)), None)
        if text is not None and not isinstance(params.get(name, ""), (str, bool)):
            shape = "a list, such as 1,2,3, or a range FIRST..LAST..STEP, such as 1..2..0.5"
            raise typer.BadParameter(f"--set {name} takes numbers: {shape}; got {text!r}")
