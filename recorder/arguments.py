"""Defines the groups of a recorder's arguments, and checks what a loop declares.

Arguments in, values of their types out, or an error that names what replaces an argument of an earlier release or of
another tool. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from ..store.errors import InvalidEvent, TelemetryError, shortened
from ..store.notices import URL_VARIABLE, addresses_in
from ..store.plan import Plan
from .control import Callbacks
from .device_values import VALUE_LAG
from .loop_values import as_text, as_whole
from .process.pushing_process import PushSettings
from .ranks.rank import this_rank

if TYPE_CHECKING:
    from ..rules.policy_file.policy import Policy
    from .notifying import Notifier

#: An address, or the path that ``Path`` makes of one.
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

#: The orders that callbacks can serve.
_CALLED_BACK: Final = frozenset(("save", "evaluate", "stop"))

#: The address of a server.
_SERVER: Final = re.compile(r"https?://", re.IGNORECASE)


class Push(NamedTuple):
    """Where a process of its own brings the run while it grows.

    Attributes:
        to: ``http(s)://HOST[:PORT]``, ``s3://BUCKET/PREFIX``, ``file://PATH`` or a folder. Leave it out where the store
            is a server. ``STEPTAPE_TOKEN`` holds the token of a server.
        wait_s: Maximum number of seconds that the program's exit waits until the run is pushed, and that a resume waits
            for a target that is away.
    """

    to: str | Path | None = None
    wait_s: float = 60.0


class Ranks(NamedTuple):
    """This process in a distributed job.

    Attributes:
        rank: This process's rank; detected if not given.
        world_size: Processes that train together; detected if not given.
        agree_timeout_s: The most seconds that ``agree`` waits for the other ranks; 30 if not given.
    """

    rank: int | None = None
    world_size: int | None = None
    agree_timeout_s: float | None = None


class Journal(NamedTuple):
    """How the log of the run reaches the disk.

    Attributes:
        sync_every_s: Seconds between syncs to disk, off the training thread, which are what a power loss can cost. None
            never syncs. A SIGKILL loses no recorded step in either case.
        value_lag: The most updates after which the values of device tensors are recorded. Those of ``value_lag - 1``
            consecutive updates are copied together, and recorded at the second update after the last of them; where
            rules read the values of all ranks, each update is copied by itself. The recorder waits for copies earlier
            only before an event other than ``step`` or ``log``, and in ``state_dict``.
        seal_wait_s: Maximum number of seconds that the program's exit waits until its closed runs are Parquet. After
            that, sealing continues without the program. The largest of all recorders counts.
    """

    sync_every_s: float | None = None
    value_lag: int = VALUE_LAG
    seal_wait_s: float = 10.0


class Samples(NamedTuple):
    """The selection of sample losses that a run keeps.

    Attributes:
        every: Keep those of every n-th step.
        top: Keep this many of each batch, the highest and NaN first; all when None.
        tokens_over: Keep token losses of samples whose loss is above this, or NaN; of all when None.
    """

    every: int = 1
    top: int | None = None
    tokens_over: float | None = None

    @property
    def is_everything(self) -> bool:
        """Whether all sample losses are kept."""
        return self.every == 1 and self.top is None


#: What replaces an argument that ``Recorder`` had; ``{}`` is its value.
MOVED_ARGUMENTS: Final = {
    **{name: f"plan=Plan({name}={{}})" for name in ("total_epochs", "steps_per_epoch", "constants")},
    **{name: f"ranks=Ranks({name}={{}})" for name in ("rank", "world_size", "agree_timeout_s")},
    **{name: f"journal=Journal({name}={{}})" for name in ("sync_every_s", "value_lag", "seal_wait_s")},
    **{f"on_{order}": f"callbacks={{{{{order!r}: function}}}}" for order in ("save", "evaluate", "stop")},
    "durability": "journal=Journal(sync_every_s=1) for durability='power'; 'process' is the default",
    "samples_every": "samples=Samples(every={})",
    "samples_top": "samples=Samples(top={})",
    "token_losses_over": "samples=Samples(tokens_over={})",
    "push_wait_s": "push=Push(to=..., wait_s={})",
    "resume_step": "resume=(run_id, {})",
}

#: What replaces an argument of another tool's run.
_ARGUMENTS: Final = {
    **dict.fromkeys(("project", "experiment"), "Use group= for related runs, name= for this one"),
    **dict.fromkeys(("entity", "job_type", "team"), "Use group= or tags="),
    **dict.fromkeys(("run_name", "experiment_name", "display_name"), "Use name="),
    **dict.fromkeys(("hparams", "params", "hyperparameters"), "Use config="),
    **dict.fromkeys(("dir", "logdir", "log_dir", "save_dir", "path"), "Give the store's folder as first argument"),
    **dict.fromkeys(("notes", "description"), "Use annotate(text)"),
    **dict.fromkeys(("policy", "policies"), "Use rules="),
    "rename": "Use rules=load_policy(RULES, rename={'recorded name': 'name in the rules'})",
    **dict.fromkeys(("silent", "verbose"), "Use quiet="),
    "id": "Use run_id=",
}

#: What replaces a method of another tool's run.
_METHODS: Final = {
    **dict.fromkeys(("finish", "end", "end_run", "stop", "flush"), "Use close()"),
    **dict.fromkeys(
        ("log_metrics", "log_metric", "log_scalar", "log_dict", "add_scalar", "add_scalars", "track", "append"),
        "Use step(...) for an update, log(...) for other values",
    ),
    **dict.fromkeys(
        ("init", "start", "log_params", "log_param", "log_hyperparams", "log_config", "add_hparams", "config"),
        "Give config= to Recorder(...)",
    ),
    **dict.fromkeys(("log_artifact", "save_checkpoint", "log_model"), "Use save(path) for a checkpoint"),
    **dict.fromkeys(("summary", "set_summary"), "Use log(...), or annotate(text) for a note"),
    **dict.fromkeys(("add_text", "log_text"), "Use annotate(text)"),
    "alert": 'Write a rule: notify "text" if CONDITION',
    **dict.fromkeys(("name", "id", "dir", "path", "url"), "Use folder or run_id"),
}

#: The call for a kind of event that ``Recorder.event`` does not record.
OWN_METHODS: Final = {
    "step_end": "Use step(...)",
    **{kind: f"Use {kind}(...)" for kind in ("log", "evaluate", "save", "epoch_begin", "epoch_end")},
    "annotation": "Use annotate(text)",
    "failure": "Use fail(error)",
    "plan": "Use declare(...)",
    "ranks": "Use agree()",
    "span": "Use 'with rec.span(name):'",
    "system": "Use watch_system()",
    **dict.fromkeys(("init_end", "train_begin", "train_end"), "The recorder records it itself"),
}

#: Seconds that ``agree`` waits for the other ranks, if the loop says nothing.
_AGREE_TIMEOUT_S: Final = 30.0

#: Keyword arguments of ``Recorder``, or of one of its groups.
Arguments: TypeAlias = dict[str, Any]

_Group = TypeVar("_Group", Plan, Samples, Push, Ranks, Journal)

#: The class of each group, by the argument of ``Recorder`` that takes it.
GROUPS: Final[Mapping[str, type[Any]]] = {
    "plan": Plan,
    "samples": Samples,
    "push": Push,
    "ranks": Ranks,
    "journal": Journal,
}


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


def declared_push(store: Any, push: Any) -> tuple[Any, PushSettings | None]:
    """Return the store of a recorder, and where its run is pushed; None for nowhere.

    A server in place of the store means a local spool: ``STEPTAPE_SPOOL``, or a folder in the user's state folder.

    Raises:
        TelemetryError: The target is no address and no path, or there are two.
    """
    to, wait_s = push if isinstance(push, Push) else Push(push)
    if not isinstance(wait_s, (int, float)) or not wait_s >= 0:
        raise TelemetryError("Push.wait_s must be a number of at least 0", got=wait_s)
    if isinstance(store, str) and _SERVER.match(store):
        if to is not None:
            raise TelemetryError("a run that is recorded for a server has that server as its target", got=to)
        return _spool_of(store), PushSettings(store, float(wait_s))
    if push is None:
        return store, None
    target = os.fspath(to) if isinstance(to, (str, os.PathLike)) else to
    if not isinstance(target, str) or not target.strip():
        raise TelemetryError("push must be the address of a server, a folder, or Push(to=...)", got=push)
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", target):
        target = os.path.abspath(os.path.expanduser(target))  # The program may change its working directory.
    return store, PushSettings(target, float(wait_s))


def declared_notifier(notify: Any, policy: Policy | None, push: PushSettings | None) -> Notifier | None:
    """Return what sends the notices that rules order; None if they order none.

    Args:
        notify: The argument.
        policy: The rules.
        push: Where the run is pushed. A server that gets it has its page, unless ``STEPTAPE_URL`` names another.

    Raises:
        TelemetryError: The argument is something else than addresses.
    """
    addresses = addresses_in(notify)
    if policy is None:
        return None
    # A run without rules does not load the language of rules, and most rules send no notices.
    from ..rules.effects import NOTICE

    if not any(NOTICE in each.operations and not each.is_shadow for each in policy.controllers):
        return None
    from .notifying import Notifier

    server = push.target if push is not None and _SERVER.match(push.target) else ""
    return Notifier(addresses, os.environ.get(URL_VARIABLE) or server)


def _spool_of(server: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", server.partition("://")[2]).strip("-.")
    if spool := os.environ.get("STEPTAPE_SPOOL"):
        return Path(spool) / name
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "steptape", "spool", name)


def declared_plan(given: Any, total_steps: Any = None, world_size: int | None = None) -> Plan:
    """Return the plan of a run.

    Args:
        given: The plan as the loop knows it; None if it knows none.
        total_steps, world_size: More of it, given apart. Without any, the world size is detected by ``this_rank``.

    Raises:
        InvalidEvent: A value is not a number, or not a valid one.
        TelemetryError: It is no plan, or a value is given twice.
    """
    plan = _declared_group(given, Plan)
    total_steps = _once(total_steps, plan.total_steps, "total_steps", "total_steps=")
    world_size = _once(world_size, plan.world_size, "world_size", "ranks=Ranks(world_size=...)")
    return Plan(
        declared_whole(total_steps, "total_steps"),
        declared_whole(plan.total_epochs, "total_epochs"),
        declared_whole(plan.steps_per_epoch, "steps_per_epoch"),
        declared_whole(this_rank().world_size if world_size is None else world_size, "world_size"),
        _declared_constants(plan.constants or {}),
    )


def _once(apart: Any, planned: Any, name: str, where: str) -> Any:
    if apart is not None and planned is not None:
        raise TelemetryError(f"{name} is given twice", got=(apart, planned), fix=f"Give it in {where} or in the plan")
    return planned if apart is None else apart


def declared_later(
    total_steps: Any, total_epochs: Any, steps_per_epoch: Any, world_size: Any, constants: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return what is given of a plan as the attributes of a ``plan`` event; arguments as for ``Plan``.

    Raises:
        InvalidEvent: A value is not a number, or not a valid one.
    """
    world_size = declared_whole(world_size, "world_size")
    given = Plan(total_steps, total_epochs, steps_per_epoch, world_size or 1, constants or {})
    plan = dataclasses.asdict(declared_plan(given))
    plan["world_size"] = world_size
    return {name: value for name, value in plan.items() if value}


def declared_policy(rules: Any) -> Policy | None:
    """Return the policy that ``rules`` gives: itself, a file, a shipped one's name, or sentences; None if not given.

    Args:
        rules: The argument.

    Raises:
        PolicyError: The policy does not load.
        TelemetryError: It is something else, or names neither a file nor a shipped policy.
    """
    if rules is None:
        return None
    # A run without rules does not load the language of rules.
    from ..rules.policy_file.policy import Policy, given_policy

    is_named = isinstance(rules, (str, os.PathLike)) and str(rules)
    is_listed = isinstance(rules, (list, tuple)) and rules and all(isinstance(each, str) for each in rules)
    if not (is_named or is_listed or isinstance(rules, Policy)):
        fix = "Write sentences such as 'stop if not isfinite(loss)', or the path of a YAML file"
        what = "rules must be sentences, a rule file, the name of a shipped one or a Policy"
        raise TelemetryError(what, got=rules, fix=fix)
    return given_policy(Path(rules) if isinstance(rules, os.PathLike) else rules)


def declared_callbacks(given: Any) -> Callbacks:
    """Return the loop's callbacks by order.

    Raises:
        TelemetryError: There is no such order, or a callback is no function, or needs an argument.
    """
    callbacks = {} if given is None else given
    if not isinstance(callbacks, Mapping) or not _CALLED_BACK.issuperset(callbacks):
        fix = "Write callbacks={'save': function}, with any of 'save', 'evaluate' and 'stop'"
        raise TelemetryError("callbacks must be a mapping of orders to functions", got=given, fix=fix)
    for order, callback in callbacks.items():
        if callback is not None and not _takes_no_argument(callback):
            fix = f"Write callbacks={{{order!r}: function}}, or {{{order!r}: lambda: ...}}"
            raise TelemetryError(f"the callback {order!r} must be a function without arguments", got=callback, fix=fix)
    return Callbacks(callbacks)


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


def _declared_constants(constants: Any) -> dict[str, float]:
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


def _declared_group(given: Any, kind: type[_Group]) -> _Group:
    """Return a group of arguments as given; its defaults when None.

    Raises:
        TelemetryError: It is something else.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        argument, name = kind.__name__.lower(), kind.__name__
        fields = ", ".join(f"{field}=..." for field in kind.__match_args__)
        fix = f"Write {argument}={name}(...), with any of {fields}"
        raise TelemetryError(f"{argument} must be a {name}", got=given, fix=fix)
    return given


def completed(arguments: Mapping[str, Any], kind: type[_Group], **values: Any) -> Arguments:
    """Return arguments of ``Recorder`` with these values in a group where the caller gave none.

    Args:
        arguments: The caller's. What they name outside of the group is not added, and a wrong group is left alone.
        kind: The group.
        **values: Of its fields.
    """
    argument = kind.__name__.lower()
    given = arguments.get(argument)
    own = kind() if given is None else given
    if not isinstance(own, kind):
        return {**arguments}
    fields: Arguments = {name: getattr(own, name) for name in kind.__match_args__}
    fields |= {name: value for name, value in values.items() if fields[name] is None and name not in arguments}
    return {**arguments, argument: kind(**fields)}


def declared_samples(given: Any) -> Samples:
    """Return the selection of sample losses to keep.

    Raises:
        InvalidEvent: ``every`` or ``top`` is not a whole number above 0.
        TypeError, ValueError: ``tokens_over`` is not a number.
    """
    group = _declared_group(given, Samples)
    return Samples(
        as_whole(group.every, "Samples.every", least=1),
        declared_whole(group.top, "Samples.top"),
        None if group.tokens_over is None else float(group.tokens_over),
    )


def declared_ranks(given: Any) -> tuple[int | None, int | None, float]:
    """Return rank and world size, None for those to detect, and the seconds that an agreement may take.

    Raises:
        InvalidEvent: The rank is not a whole number from 0, or the world size none from 1.
        TelemetryError: The timeout is not a finite number above 0.
    """
    rank, world_size, timeout_s = _declared_group(given, Ranks)
    timeout_s = _AGREE_TIMEOUT_S if timeout_s is None else timeout_s
    if not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < math.inf:
        raise TelemetryError("Ranks.agree_timeout_s must be a finite number above 0", got=timeout_s)
    rank = None if rank is None else as_whole(rank, "Ranks.rank")
    return rank, declared_whole(world_size, "Ranks.world_size"), float(timeout_s)


def declared_journal(given: Any) -> Journal:
    """Return how the log reaches the disk.

    Raises:
        InvalidEvent: ``value_lag`` is not a whole number from 0.
        TelemetryError: Seconds are not a number above 0, or of at least 0 for ``seal_wait_s``.
    """
    group = _declared_group(given, Journal)
    sync_every_s, seal_wait_s = group.sync_every_s, group.seal_wait_s
    if sync_every_s is not None and not (isinstance(sync_every_s, (int, float)) and sync_every_s > 0):
        raise TelemetryError("Journal.sync_every_s must be a number above 0, or None", got=sync_every_s)
    if not isinstance(seal_wait_s, (int, float)) or not seal_wait_s >= 0:
        raise TelemetryError("Journal.seal_wait_s must be a number of at least 0", got=seal_wait_s)
    return Journal(sync_every_s, as_whole(group.value_lag, "Journal.value_lag"), float(seal_wait_s))


def declared_whole(value: Any, what: str) -> int | None:
    """Return a whole number above 0; None if it was not given.

    Raises:
        InvalidEvent: The value is something else.
    """
    return None if value is None else as_whole(value, what, least=1)


def unknown_argument(name: str, value: object, known: Iterable[str]) -> str:
    """Return the message for an argument that ``Recorder`` does not take."""
    if name in MOVED_ARGUMENTS:
        return f"Recorder takes no argument {name!r}. Write {MOVED_ARGUMENTS[name].format(shortened(repr(value)))}"
    return f"Recorder takes no argument {name!r}. {_ARGUMENTS.get(name) or _nearest(name, known)}".rstrip()


def unknown_attribute(name: str, known: Iterable[str]) -> str:
    """Return the message for an attribute that a recorder does not have."""
    public = [each for each in known if not each.startswith("_")]
    return f"Recorder has no {name!r}. {_METHODS.get(name) or _nearest(name, public)}".rstrip()


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # Only a wrong call needs it.

    close = get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else ""
