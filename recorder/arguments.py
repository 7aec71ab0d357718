"""Checks what a loop declares when it constructs a recorder, and describes the run and its attempt.

Arguments in, values of their types out, or an error. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ..store.errors import InvalidEvent, TelemetryError, shortened
from ..store.plan import Plan
from ..store.redaction import redacted
from ..store.run_info import Attempt, PolicyRecord, RunInfo
from .batch_samples import SampleChoice
from .control import Callbacks
from .environment import describe_environment
from .process.background_pushing import PushSettings
from .ranks.rank import Rank, this_rank
from .values import as_config, as_text, as_whole

if TYPE_CHECKING:
    from ..rules.policy_file.policy import Policy
    from .calls.certified_run import CertifiedRun

#: An address, or the path that ``Path`` makes of one.
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: The address of a server.
_SERVER: Final = re.compile(r"https?://", re.IGNORECASE)


def described_run(name: str | None, group: str | None, tags: Sequence[str], config: Any, attempt: Attempt) -> RunInfo:
    """Describe a run and its attempt, as the loop declares them. The run id is still empty.

    Args:
        name: The script's name when None.
        group, tags: Labels for sorting runs; a single tag may be text.
        config: Hyper-parameters, whose secrets are redacted.
        attempt: The new attempt.

    Raises:
        TelemetryError: The tags are no texts, or the config cannot be written as JSON.
    """
    return RunInfo(
        run_id="",
        name=as_text(name or Path(sys.argv[0] or "run").stem),
        attempts=(attempt,),
        group=None if group is None else as_text(group),
        tags=_texts(tags),
        config=declared_config(config),
    )


def _texts(tags: Any) -> tuple[str, ...]:
    if isinstance(tags, str):
        return (as_text(tags),)
    try:
        return tuple(as_text(tag) for tag in tags)
    except TypeError:
        raise TelemetryError("tags must be texts", got=tags, fix="Write tags=['one', 'two']") from None


def declared_config(config: Any) -> dict[str, Any]:
    """Return hyper-parameters as a JSON object, their secrets redacted.

    Raises:
        TelemetryError: They cannot be written as JSON.
    """
    try:
        return cast("dict[str, Any]", redacted(as_config(config)))
    except RecursionError:
        what = "config cannot be recorded: it holds itself, or is nested too deeply"
        raise TelemetryError(what, fix="Give a mapping of values") from None


def described_attempt(plan: Plan, policy: Policy | None, sync_every_s: float | None, rank: Rank) -> Attempt:
    """Describe an attempt that begins now. Its number is assigned later."""
    record = None
    if policy is not None:
        record = PolicyRecord(policy.digest, policy.source, policy.text, dict(policy.params), policy.semantics_version)
    environment = describe_environment()
    if rank.world_size > 1:
        environment["world_size"] = rank.world_size
    return Attempt(
        0, "running", time.time_ns(), plan=plan, policy=record, environment=environment, sync_every_s=sync_every_s
    )


def declared_store(store: Any) -> Path:
    """Return the folder of runs, with a leading ``~`` replaced by the user's home.

    Raises:
        TelemetryError: It is not the path of a folder but an address, empty, or of another type.
    """
    path = os.fspath(store) if isinstance(store, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path.strip() or _ADDRESS.match(path):
        fix = "Runs are recorded in a folder of this machine, such as 'runs', or for a server: http(s)://HOST[:PORT]"
        raise TelemetryError(f"the store must be the path of a folder; got {shortened(repr(store))}", fix=fix)
    return Path(os.path.expanduser(path))


def declared_push(store: Any, push: Any, push_wait_s: Any) -> tuple[Any, PushSettings | None]:
    """Return the store of a recorder, and where its run is pushed; None for nowhere.

    A server in place of the store means a local spool: ``STEPTAPE_SPOOL``, or a folder in the user's state folder.

    Raises:
        TelemetryError: The target is no address and no path, or there are two.
    """
    if not isinstance(push_wait_s, (int, float)) or not push_wait_s >= 0:
        raise TelemetryError("push_wait_s must be a number of at least 0", got=push_wait_s)
    if isinstance(store, str) and _SERVER.match(store):
        if push is not None:
            raise TelemetryError("a run that is recorded for a server has that server as its target", got=push)
        return _spool_of(store), PushSettings(store, float(push_wait_s))
    if push is None:
        return store, None
    target = os.fspath(push) if isinstance(push, (str, os.PathLike)) else push
    if not isinstance(target, str) or not target.strip():
        raise TelemetryError("push must be the address of a server, or a folder", got=push)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", target):
        target = os.path.abspath(os.path.expanduser(target))  # The program may change its working directory.
    return store, PushSettings(target, float(push_wait_s))


def _spool_of(server: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", server.partition("://")[2]).strip("-.")
    if spool := os.environ.get("STEPTAPE_SPOOL"):
        return Path(spool) / name
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "steptape", "spool", name)


def declared_plan(
    total_steps: Any, total_epochs: Any, steps_per_epoch: Any, world_size: Any, constants: Mapping[str, Any] | None
) -> Plan:
    """Build the plan of a run.

    Args:
        total_steps, total_epochs, steps_per_epoch: Its length, as far as the loop knows it.
        world_size: Processes that train together; detected by ``this_rank`` when None.
        constants: Numbers that describe the run, by name.

    Raises:
        InvalidEvent: A value is not a number, or not a valid one.
    """
    if world_size is None:
        world_size = this_rank().world_size
    return Plan(
        declared(total_steps, "total_steps"),
        declared(total_epochs, "total_epochs"),
        declared(steps_per_epoch, "steps_per_epoch"),
        declared(world_size, "world_size"),
        declared_constants(constants or {}),
    )


def declared_later(
    total_steps: Any, total_epochs: Any, steps_per_epoch: Any, world_size: Any, constants: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what is given of a plan as the attributes of a ``plan`` event; arguments as for ``declared_plan``.

    Raises:
        InvalidEvent: A value is not a number, or not a valid one.
    """
    world_size = declared(world_size, "world_size")
    plan = dataclasses.asdict(declared_plan(total_steps, total_epochs, steps_per_epoch, world_size or 1, constants))
    plan["world_size"] = world_size
    return {name: value for name, value in plan.items() if value}


def declared_policy(rules: Any, *, resumes: bool) -> Policy | None:
    """Return the policy that ``rules`` gives: itself, a file, or the name of a shipped one; None if not given.

    Args:
        rules: The argument.
        resumes: Whether a run is resumed, which may have recorded a policy that only earlier semantics accept.

    Raises:
        PolicyError: The policy does not load.
        TelemetryError: It is something else, or names neither a file nor a shipped policy.
    """
    if rules is None:
        return None
    # A run without rules does not load the rule engine, which is half of the modules.
    from .steering import policy_of

    return policy_of(rules, resumes=resumes)


def declared_certificate(certificate: Any, policy: Policy | None, *, strict: bool) -> CertifiedRun | None:
    """Return the certificate with which the run is compared; None without one.

    Raises:
        TelemetryError: With ``strict``: it cannot be read, or is of other rules.
    """
    if certificate is None:
        return None
    # A run without a certificate does not load it.
    from .calls.certified_run import certified_run

    return certified_run(certificate, policy, strict=strict)


def declared_callbacks(**callbacks: Callable[[], object] | None) -> Callbacks:
    """Return the callbacks ``on_save``, ``on_evaluate`` and ``on_stop``.

    Raises:
        TelemetryError: One is no function, or needs an argument.
    """
    for name, callback in callbacks.items():
        if callback is not None and not _takes_no_argument(callback):
            fix = f"Write {name}=function, or {name}=lambda: ..."
            raise TelemetryError(f"{name} must be a function without arguments", got=callback, fix=fix)
    return Callbacks({name.removeprefix("on_"): callback for name, callback in callbacks.items()})


def _takes_no_argument(callback: object) -> bool:
    if not callable(callback):
        return False
    try:
        inspect.signature(callback).bind()
    except TypeError:
        return False
    except ValueError:  # A built-in function without a signature.
        return True
    return True


def declared(value: Any, what: str) -> int | None:
    """Return a whole number above 0; None if it was not given.

    Raises:
        InvalidEvent: The value is something else.
    """
    return None if value is None else as_whole(value, what, least=1)


def declared_sync_s(durability: str, sync_every_s: float) -> float | None:
    """Return the seconds between syncs of the journal; None if it is never synced.

    Raises:
        TelemetryError: The durability is unknown, or the interval is not above 0.
    """
    if durability not in ("process", "power") or not sync_every_s > 0:
        what = "durability must be 'process' or 'power', and sync_every_s above 0"
        raise TelemetryError(what, got=(durability, sync_every_s))
    return sync_every_s if durability == "power" else None


def declared_agree_timeout_s(agree_timeout_s: float) -> float:
    """Return the seconds that an agreement may take.

    Raises:
        TelemetryError: They are not a number above 0.
    """
    if not isinstance(agree_timeout_s, (int, float)) or not 0 < agree_timeout_s < math.inf:
        raise TelemetryError("agree_timeout_s must be a finite number above 0", got=agree_timeout_s)
    return float(agree_timeout_s)


def declared_seal_wait_s(seal_wait_s: float) -> float:
    """Return the seconds that the program's exit waits for sealing.

    Raises:
        TelemetryError: They are not a number of at least 0.
    """
    if not isinstance(seal_wait_s, (int, float)) or not seal_wait_s >= 0:
        raise TelemetryError("seal_wait_s must be a number of at least 0", got=seal_wait_s)
    return float(seal_wait_s)


def declared_choice(samples_every: Any, samples_top: Any, token_losses_over: Any) -> SampleChoice:
    """Return the selection of sample losses to keep.

    Raises:
        InvalidEvent: ``samples_every`` or ``samples_top`` is not a whole number above 0.
        TypeError, ValueError: ``token_losses_over`` is not a number.
    """
    return SampleChoice(
        as_whole(samples_every, "samples_every", least=1),
        declared(samples_top, "samples_top"),
        None if token_losses_over is None else float(token_losses_over),
    )


def declared_constants(constants: Any) -> dict[str, float]:
    """Return the numbers that describe a run, by name.

    Raises:
        InvalidEvent: They are no mapping, or one is no finite number.
    """
    if not isinstance(constants, Mapping):
        raise InvalidEvent("constants must be a mapping of names to numbers", got=constants)
    return {as_text(name): _constant(name, value) for name, value in constants.items()}


def _constant(name: object, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InvalidEvent(f"the constant {name!r} must be a number", got=value) from None
    if number - number != 0.0:
        raise InvalidEvent(f"the constant {name!r} must be finite", got=value)
    return number
