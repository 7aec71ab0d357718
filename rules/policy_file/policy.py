"""A policy: a rule file that is read, checked, and identified by a digest of its meaning.

A file is read into declarations key by key: first the keys that others refer to, last the controllers. To add a key at
the top of the file, write a row of ``DOCUMENT_KEYS`` and the function that reads it.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import yaml

from ...store.errors import TelemetryError
from ...store.run_info import PolicyRecord
from .. import habits
from ..effects import CALLS, Effect, call_name, is_call
from ..errors import PolicyError, phrase, suggestion
from ..language.bound_rule import NameScope
from ..language.clock import Span
from ..readings.fact import ContextValue
from ..readings.reading import Param
from .blueprint import Blueprint, draw_blueprint
from .classes import ArgumentValue, Registry
from .controllers import CONTROLLER_KEYS, read_controllers, read_name, read_span, read_states
from .declarations import (
    SEMANTICS_VERSION,
    AdmittedSeries,
    Controller,
    Declarations,
    Ends,
    MetricDeclaration,
    OperationDeclaration,
    Recorded,
    StateDeclaration,
    digest_of,
)
from .document import Document, Place, read_text, written_value
from .fields import FieldReader, Fields, Key, NameForm, SeriesPlace, is_null
from .full_text import check_renames, expanded, full_text, is_resolved, merged, names_left, of_own_file, renames_in
from .metrics import METRIC_CLASSES, Metric
from .operations import DEFAULT_OPERATION, OPERATION_CLASSES, HFControls, LogControl, Operation
from .sentences import Choices, choices_in, expand_sentences, is_sentence, sentences_in
from .written_expressions import read_define, read_ranges, read_record

_SHIPPED: Final = Path(__file__).parents[1] / "policies"

#: The policies that pickles described, by all that they described.
_UNPICKLED: Final[dict[tuple[object, ...], Policy]] = {}
_MOST_UNPICKLED: Final = 16


_Class = TypeVar("_Class", bound=type[Metric] | type[Operation])

#: How the keys begin that a file may have at the top for its own use, such as a place for anchors.
_FREE_KEYS: Final = "x-"
_CLASS_KEYS: Final = ("name", "class", "arguments")


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy that loads. Two are equal when their digests are.

    Attributes:
        source: The origin of the text, as error messages name it.
        text: The file, unchanged; if it extends another one or renames metrics, its full text.
        digest: SHA-256, in hexadecimal, of the policy's meaning; comments, blanks, name, description, ranges and what
            is recorded do not count.
        name: As in the file; empty when absent.
        description: As in the file; empty when absent.
        params: Params with their values, overrides applied.
        definitions: The text of each defined expression, by name.
        ranges: The least and the greatest value of metrics, by name, as far as the file says.
        admitted: The definitions that have ``admit``, in file order.
        metrics: Controller metrics, in file order.
        states: States, in file order.
        recorded: The definitions and states that a run records.
        operations: Operations, in file order; ``hfcontrols`` is always among them.
        controllers: Controllers, in file order.
        blueprint: The parts that its engines share.
        sentences: The sentences that it was given as, whose full form the text is; empty for a file.
        is_merged: Whether the text is that of a file and of another one that it extends, or renames.
    """

    source: str
    text: str
    digest: str
    name: str
    description: str
    params: Mapping[str, Param]
    definitions: Mapping[str, str]
    ranges: Mapping[str, Ends]
    admitted: tuple[AdmittedSeries, ...]
    metrics: tuple[MetricDeclaration, ...]
    states: tuple[StateDeclaration, ...]
    recorded: tuple[Recorded, ...]
    operations: tuple[OperationDeclaration, ...]
    controllers: tuple[Controller, ...]
    blueprint: Blueprint = field(repr=False)
    sentences: tuple[str, ...] = ()
    is_merged: bool = False

    @property
    def reads_samples(self) -> bool:
        """Whether the events that it is folded over must carry their sample losses and vectors."""
        return self.reads_sample_losses or any(declaration.metric_class.reads_vectors for declaration in self.metrics)

    @property
    def reads_sample_losses(self) -> bool:
        """Whether its controller metrics read sample losses."""
        return any(declaration.metric_class.reads_samples for declaration in self.metrics)

    @property
    def reads_ranks(self) -> frozenset[str]:
        """The metrics whose newest values on all ranks rules read: those that an agreement of the ranks gathers."""
        return frozenset[str]().union(*(controller.ranks for controller in self.controllers))

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the series, the classes of controller metrics and the facts that its rules read."""
        series = {key.name for controller in self.controllers for key in controller.series_read if not key.is_derived}
        references = (
            reading
            for controller in self.controllers
            for rule in controller.conditions
            for reading in rule.bound.references.values()
        )
        facts = {each.name for each in references if isinstance(each, ContextValue)} - {"undefined"}
        classes = (metric.class_name for metric in self.metrics)
        return (*sorted(series | self.reads_ranks), *classes, *sorted(facts))

    @property
    def calls(self) -> tuple[str, ...]:
        """The operations with arguments that its controllers order, in file order, each once, as the file has them."""
        named = (name for one in self.controllers if not one.is_shadow for name in one.operations if is_call(name))
        return tuple(dict.fromkeys(named))

    @property
    def is_self_contained(self) -> bool:
        """Whether it uses only steptape's own classes. The code of other classes is not part of the digest."""
        return all(METRIC_CLASSES.is_own(declaration.class_name) for declaration in self.metrics) and all(
            OPERATION_CLASSES.is_own(declaration.class_name) for declaration in self.operations
        )

    @property
    def is_installed(self) -> bool:
        """Whether any process finds the classes that it uses: none of them is registered in this program alone."""
        return all(METRIC_CLASSES.is_installed(declaration.class_name) for declaration in self.metrics) and all(
            OPERATION_CLASSES.is_installed(declaration.class_name) for declaration in self.operations
        )

    def to_record(self) -> PolicyRecord:
        """Return what a run records of it."""
        return PolicyRecord(self.digest, self.source, self.text, dict(self.params), SEMANTICS_VERSION)

    def effects(self, operation: str) -> Effect:
        """Return the effect on the training loop of an operation, written ``name.action`` or as a call.

        Raises:
            TelemetryError: The policy has no such operation.
        """
        if is_call(operation) and (form := CALLS.get(call_name(operation))) is not None:
            return form.effect
        name, _, action = operation.partition(".")
        for declaration in self.operations:
            if declaration.name == name:
                effect = declaration.operation_class.actions.get(action)
                if effect is not None:
                    return effect
        raise TelemetryError("no such operation", where=self.source, got=operation)

    @property
    def saving_controllers(self) -> list[int]:
        """Indices of the controllers that save."""
        return [
            index
            for index, controller in enumerate(self.controllers)
            if not controller.is_shadow and any(self.effects(name) is Effect.SAVE for name in controller.operations)
        ]

    @property
    def asks_for_checkpoints(self) -> bool:
        """Whether rules of the policy save."""
        return bool(self.saving_controllers)

    def trigger_log_level(self, name: str, trigger: str, operations: Sequence[str]) -> str:
        """Return the level at which the live side logs a decision.

        Controllers may share a name: the trigger and the operations of the decision then identify the controller.
        """
        for controller in self.controllers:
            is_it = controller.name == name and controller.may_order(tuple(operations))
            if is_it and trigger in controller.triggers:
                return controller.trigger_log_level
        return "DEBUG"

    def part(self, names: Collection[str]) -> Policy:
        """Return the controllers of some names, with what they read, to decide what they decide here.

        Args:
            names: The names, with those of the controllers that they ask about or share a cooldown with.
        """
        controllers = tuple(each for each in self.controllers if each.name in names)
        states = tuple(state for state in self.states if any(state in each.states for each in controllers))
        admitted = tuple(series for series in self.admitted if any(series in each.admitted for each in controllers))
        read = {metric for each in controllers for rule in each.bound_rules for metric in rule.metrics}
        blueprint = draw_blueprint(controllers, states, admitted, (), self.blueprint.names)
        needs = {key: self.blueprint.needs[key] for key in blueprint.needs}
        return replace(
            self,
            digest=f"{self.digest}: {sorted(names)}",
            metrics=tuple(metric for metric in self.metrics if metric.name in read),
            states=states,
            recorded=(),
            admitted=admitted,
            controllers=controllers,
            blueprint=replace(blueprint, needs=needs),
        )

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled rules cannot be pickled; the other process parses the text again.
        return _unpickled, (self.text, self.source, tuple(self.params.items()))


def text_as_judged(policy: Policy) -> str:
    """Return the text of a policy's file with the values of its params in place of those that were overridden."""
    return Document(policy.text, policy.source).with_values("params", policy.params)


def load_policy(
    rules: str | Path | Sequence[str],
    *,
    params: Mapping[str, Param] | None = None,
    rename: Mapping[str, str] | None = None,
) -> Policy:
    """Read, check and compile a policy.

    Args:
        rules: The path of a file, UTF-8; the name of a shipped policy; or rules as sentences, such as
            ``stop if not isfinite(loss)``: one or several in a text, separated by semicolons, or a list of them.
        params: Values that override those of the policy's params, or take the place of the values to try in sentences.
        rename: The names that rules have for metrics, by the names under which runs record them, such as
            ``{"l2_grad_norm_total": "grad_norm"}``.

    Raises:
        PolicyError: The file cannot be read, or anything in it is wrong. The error holds all problems.
        TelemetryError: A metric that is to be renamed is none that the rules read.
    """
    if not isinstance(rules, (str, Path)) or is_sentence(str(rules)):
        texts = [str(rules)] if isinstance(rules, (str, Path)) else rules
        sentences = [each for text in texts for each in sentences_in(text)]
        found = choices_in(sentences)
        is_chosen = found.values.keys() <= (params or {}).keys()
        policy = _parsed(sentences, found if is_chosen else None, params)
    else:
        path = policy_path(str(rules))
        policy = _loaded(read_text(path), str(path), params or {}, path.parent)
    return renamed(policy, rename) if rename else policy


def renamed(policy: Policy, renames: Mapping[str, str]) -> Policy:
    """Return a policy that reads metrics by other names.

    Args:
        policy: The policy.
        renames: The names that its rules have for metrics, by the names under which runs record them.

    Raises:
        TelemetryError: A name is none that the rules read, or is read where it cannot be renamed.
    """
    document = expanded(Document(policy.text, policy.source))
    reader = FieldReader(document, takes_last=True)
    text = _renamed_text(document, read_with(reader, policy.params), reader, renames, policy.source)
    return _loaded(text, policy.source, _renamed_params(policy.params, renames))


def given_policy(rules: str | Path | Sequence[str] | Policy) -> Policy:
    """Return the policy that a caller gives: itself, or what ``load_policy`` takes.

    Raises:
        PolicyError: The rules do not load.
        TelemetryError: They name neither a file nor a shipped policy.
    """
    if isinstance(rules, Policy):
        return rules
    if isinstance(rules, (str, Path)) and not is_sentence(str(rules)):
        require_file(policy_path(str(rules)))
    return load_policy(rules)


def load_variants(rules: str | Path) -> tuple[Policy, Mapping[str, list[Param]]]:
    """Read, check and compile a policy whose sentences may have values to try, such as ``{3..10}``.

    Args:
        rules: As ``load_policy`` takes them.

    Returns:
        The policy, with the first of the values of each param, and all values by param.

    Raises:
        PolicyError: As in ``load_policy``.
    """
    if not is_sentence(str(rules)):
        return load_policy(rules), {}
    sentences = sentences_in(str(rules))
    found = choices_in(sentences)
    return _parsed(sentences, found, None), found.values


def _parsed(sentences: Sequence[str], found: Choices | None, params: Mapping[str, Param] | None) -> Policy:
    """Return the policy of sentences in their full form; values to try are params if given, and else are refused."""
    source = "; ".join(sentences)
    meant = [] if found is None else list(zip(found.sentences, found.indices, strict=True))
    document = Document.of_lines(sentences, source, meant, {} if found is None else found.params)
    document, reader = expanded(document), FieldReader(document, takes_last=True)
    text = full_text(document, read_with(reader, {}), reader)
    return replace(parse_policy(text, source=source, params=params), sentences=tuple(sentences))


def parse_policy(text: str, *, source: str = "<policy>", params: Mapping[str, Param] | None = None) -> Policy:
    """Check and compile the text of a policy; see ``load_policy``. It may extend shipped rule files alone."""
    return _loaded(text, source, params or {})


def text_with_params(text: str, params: Mapping[str, Param]) -> str:
    r"""Return the text of a rule file with other values of its params, and nothing else changed.

    >>> text_with_params("params: {a: 1, b: x}  # Kept\ncontrollers: [stop if loss > a]\n", {"a": 2.5})
    'params: {a: 2.5, b: x}  # Kept\ncontrollers: [stop if loss > a]\n'

    Raises:
        PolicyError: It does not load.
        TelemetryError: Its text has no place for a value, as where it takes its params from another file.
    """
    before = parse_policy(text).params
    changed = {name: value for name, value in params.items() if before.get(name) != value}
    if not changed:
        return text
    whole = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(whole, yaml.MappingNode)
    own = {key.value: node for key, node in whole.value}.get("params")
    nodes = {} if own is None else {key.value: node for key, node in own.value}
    if missing := changed.keys() - nodes.keys():
        fix = "Write it under 'params' of this file"
        raise TelemetryError("the rule file takes the value of this param from another one", got=min(missing), fix=fix)
    places = sorted(
        ((nodes[name], value) for name, value in changed.items()), key=lambda each: each[0].start_mark.index
    )
    for node, value in reversed(places):
        text = text[: node.start_mark.index] + written_value(value) + text[node.end_mark.index :]
    if dict(parse_policy(text).params) != {**before, **changed}:
        raise TelemetryError("the values of these params cannot be written into the text", got=", ".join(changed))
    return text


def _loaded(text: str, source: str, params: Mapping[str, Param], folder: Path | None = None) -> Policy:
    """Return the policy of a text.

    Args:
        folder: Where files are that it may extend; None for shipped ones alone.
    """
    document = Document(text, source)
    is_merged = not is_resolved(document)
    if is_merged:
        text = resolved_text(document, lambda name: _base(name, folder, source), params)
        document = Document(text, source)
    declared = read_declarations(document, params)
    admitted, states = tuple(declared.admitted.values()), tuple(declared.states.values())
    return Policy(
        source=source,
        text=text,
        digest=digest_of(declared),
        name=declared.name,
        description=declared.description,
        params=declared.params,
        definitions=declared.definitions,
        ranges=declared.ranges,
        admitted=admitted,
        metrics=declared.metrics,
        states=states,
        recorded=declared.recorded,
        operations=declared.operations,
        controllers=declared.controllers,
        blueprint=draw_blueprint(declared.controllers, states, admitted, declared.recorded, declared.names),
        is_merged=is_merged,
    )


def expanded_text(rules: str | Path) -> str:
    """Return the text of a rule file in its full form: with what it extends, and each sentence with its keys.

    Args:
        rules: As for ``load_policy``.
    """
    policy = load_variants(rules)[0]
    document = expanded(Document(policy.text, policy.source))
    reader = FieldReader(document, takes_last=True)
    return full_text(document, read_with(reader, {}), reader)


def _base(name: str, folder: Path | None, source: str) -> Document:
    """Return the document that a rule file extends.

    Raises:
        TelemetryError: There is none.
    """
    path = shipped_policies().get(name)
    if path is None and folder is None:
        known = suggestion(name, shipped_policies())
        raise TelemetryError("only shipped rule files can be extended here", got=name, fix=known)
    path = path or require_file((folder or Path()) / name)
    if path.resolve() == Path(source).resolve():
        raise TelemetryError("a file cannot extend itself", got=name)
    return Document(read_text(path), str(path))


def triggering_kinds(rules: str | Path | Sequence[str] | Policy | None) -> frozenset[str]:
    """Return the kinds of events at which the controllers of rules are judged; empty without rules.

    Raises:
        PolicyError: The rules do not load.
        TelemetryError: They are neither a file nor a shipped policy.
    """
    if rules is None:
        return frozenset()
    return frozenset(
        trigger.removeprefix("on_") for each in given_policy(rules).controllers for trigger in each.triggers
    )


def registered_classes() -> tuple[type[Metric] | type[Operation], ...]:
    """Return the classes from outside steptape that this process knows, for another to ``register_classes``."""
    return (*METRIC_CLASSES.registered, *OPERATION_CLASSES.registered)


def register_classes(classes: Iterable[type[Metric] | type[Operation]]) -> None:
    """Register classes of metrics and operations that another process knows."""
    for cls in classes:
        if issubclass(cls, Metric):
            METRIC_CLASSES.register(cls)
        else:
            OPERATION_CLASSES.register(cls)


# --- files ----------------------------------------------------------------------------------------------------------


def policy_path(name: str) -> Path:
    """Return the rule file that a name refers to: a path, or the name of a shipped policy."""
    path = Path(name)
    return path if path.exists() else shipped_policies().get(name, path)


def tests_path(name: str) -> Path:
    """Return the file of tests that a name refers to: a path, or the name of a shipped policy."""
    path = Path(name)
    return path if path.exists() else shipped_tests().get(name, path)


def require_file(path: Path) -> Path:
    """Return the path of a rule file, or of a pipe that carries one.

    Raises:
        TelemetryError: There is none. The error suggests shipped rule files.
    """
    if path.is_dir() or not path.exists():
        what, fix = "no such file, and steptape ships no rules of that name", suggestion(str(path), shipped_policies())
        if " " in str(path):
            what = "no sentence, which has the word 'if', and no file"
            fix = "Write 'stop if elapsed_s > 36000', 'save if step % 500 == 0' or 'evaluate if milestone(every=0.05)'"
        raise TelemetryError(what, where=str(path), fix=fix)
    return path


def shipped_policies() -> Mapping[str, Path]:
    """Return the policies that come with steptape: name to path."""
    tests = set(shipped_tests().values())
    return MappingProxyType({path.stem: path for path in sorted(_SHIPPED.glob("*.yaml")) if path not in tests})


def shipped_tests() -> Mapping[str, Path]:
    """Return the tests of the shipped policies: name of the policy to path."""
    return MappingProxyType({path.name.partition(".")[0]: path for path in sorted(_SHIPPED.glob("*.test.yaml"))})


# --- pickles --------------------------------------------------------------------------------------------------------


def _unpickled(text: str, source: str, params: tuple[tuple[str, Param], ...]) -> Policy:
    """Return the policy that a pickle describes. A pool's answers hold the same one, so it is parsed once."""
    key = text, source, repr(params)
    policy = _UNPICKLED.get(key)
    if policy is None:
        policy = parse_policy(text, source=source, params=dict(params))
        # Another class may be registered under the name of one from outside steptape.
        if policy.is_self_contained:
            if len(_UNPICKLED) == _MOST_UNPICKLED:
                _UNPICKLED.clear()
            _UNPICKLED[key] = policy
    return policy


# --- the keys at the top of a file ---------------------------------------------------------------------------------


def read_declarations(document: Document, overrides: Mapping[str, object]) -> Declarations:
    """Return the declarations of a document, with params overridden.

    Args:
        document: The file.
        overrides: Values of params that replace those of the file.

    Raises:
        PolicyError: The policy is invalid. The error holds every problem of the file and of the overrides.
    """
    return read_with(FieldReader(document, takes_last=True), overrides)


def read_with(reader: FieldReader, overrides: Mapping[str, object]) -> Declarations:
    """Return the declarations of a reader's document; see ``read_declarations``."""
    declared = _declared(reader.document.root, overrides, reader)
    if reader.problems:
        raise PolicyError(reader.problems)
    return declared


def resolved_text(own: Document, base_of: Callable[[str], Document], params: Mapping[str, Param]) -> str:
    """Return the full text of a rule file that extends another one, or renames metrics.

    Raises:
        PolicyError: One of the files is wrong. The error points into the one that has the fault.
    """
    document = expanded(merged(own, base_of, lambda reader: read_with(reader, {})))
    reader = FieldReader(document, takes_last=True)
    try:
        declared = read_with(reader, params)
    except PolicyError as error:
        raise (error if document is own else of_own_file(error, own)) from None
    renames, node = renames_in(own)
    if node is None:
        return full_text(document, declared, reader)
    try:
        return _renamed_text(document, declared, reader, renames)
    except TelemetryError as error:
        message = phrase(error.fact, None, error.fix, where="rename")
        raise PolicyError([own.problem(own.place(node), message)]) from error


def _renamed_text(
    document: Document, declared: Declarations, reader: FieldReader, renames: Mapping[str, str], where: str = ""
) -> str:
    """Return the full text of a rule file that reads metrics by other names; see ``renamed``."""
    check_renames(renames, declared, reader, where)
    text = full_text(document, declared, reader, renames)
    left = names_left(read_declarations(Document(text, document.source), _renamed_params(declared.params, renames)))
    for old, new in renames.items():
        if new in left and new not in renames:
            fix = f'Name it as series("{new}"), outside of texts'
            raise TelemetryError(
                f"'{new}' is read where a rename does not reach", where=where, got=f"{old}={new}", fix=fix
            )
    return text


def _renamed_params(params: Mapping[str, Param], renames: Mapping[str, str]) -> dict[str, Param]:
    """Return params of which those that name a metric have its other name."""
    given: dict[Param, str] = {new: old for old, new in renames.items()}
    return {name: given.get(value, value) if isinstance(value, str) else value for name, value in params.items()}


def _as_read(_node: yaml.Node, _where: str, declared: Declarations, _reader: FieldReader) -> Declarations:
    """Leave a key alone that is resolved before the others are read."""
    return declared


def _declared(root: yaml.Node | None, overrides: Mapping[str, object], reader: FieldReader) -> Declarations:
    if root is None or is_null(root):
        reader.refuse_at(Place(1, 1), "", "the file is empty", None, "Declare rules under 'controllers:'.")
        return Declarations()
    if not isinstance(root, yaml.MappingNode):
        reader.refuse(root, "", "a rule file must be a mapping", "Its top level holds keys such as 'controllers:'.")
        return Declarations()
    named = [key.value for key, _ in root.value if isinstance(key, yaml.ScalarNode)]
    known = (*(key.name for key in DOCUMENT_KEYS), *(key for key in named if key.startswith(_FREE_KEYS)))
    fields = reader.fields(root, "", known, habits=habits.ROOT_KEYS)
    if "controllers" in fields:
        fields["controllers"] = expand_sentences(fields["controllers"], reader)
    declared = replace(_names_ahead(fields, reader), overrides=overrides)
    # A file without params may be given some, and one without operations has the default one: both read as null.
    mark = yaml.Mark("", 0, 0, 0, "", 0)
    nothing = yaml.ScalarNode("tag:yaml.org,2002:null", "", mark, mark)
    fields = {"params": nothing, "operations": nothing, **fields}
    for key in DOCUMENT_KEYS:
        if key.name in fields:
            declared = key.read(fields[key.name], key.name, declared, reader)
    return declared


def _names_ahead(fields: Fields, reader: FieldReader) -> Declarations:
    """Return the names to which keys above them may refer. A refused entry keeps its name: one mistake, one problem."""
    metrics = _names_in(fields, "controller_metrics", reader)
    states = tuple(reader.keys_of(fields["states"])) if "states" in fields else ()
    defined = reader.keys_of(fields["define"]) if "define" in fields else {}
    scope = NameScope(
        metrics=(*metrics, *states),
        controllers=_names_in(fields, "controllers", reader),
        states=states,
        admitted=tuple(name for name, node in defined.items() if isinstance(node, yaml.MappingNode)),
    )
    return Declarations(scope, metrics)


def _names_in(fields: Fields, key: str, reader: FieldReader) -> tuple[str, ...]:
    """Return the names of a list's entries; reading the entries reports their problems."""
    node = fields.get(key)
    entries = map(reader.keys_of, node.value if isinstance(node, yaml.SequenceNode) else [])
    named = (entry["name"] for entry in entries if "name" in entry)
    return tuple(dict.fromkeys(node.value for node in named if isinstance(node, yaml.ScalarNode)))


# --- texts, params and cooldowns ----------------------------------------------------------------------------------


def _read_text(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    text = "" if is_null(node) else reader.text(node, where) or ""
    return replace(declared, name=text) if where == "name" else replace(declared, description=text)


def _read_params(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    params: dict[str, Param] = {}
    for name, value_node in reader.entries(node, where).items():
        where = f"param '{name}'"
        if not name.isidentifier() or keyword.iskeyword(name) or "__" in name:
            reader.refuse(value_node, where, "a param's name must be an identifier", shows=False)
        elif name in declared.own_metrics:
            reader.refuse(value_node, where, "a controller metric has the same name", shows=False)
        else:
            value = reader.param(value_node, where)
            # A refused param keeps its name, so that one mistake is one problem.
            params[name] = 0 if value is None else value
    for name, given in declared.overrides.items():
        _override(params, name, given, reader.document.place(node), reader)
    return replace(declared, scope=replace(declared.scope, params=MappingProxyType(params)))


def _override(params: dict[str, Param], name: str, given: object, place: Place, reader: FieldReader) -> None:
    if name not in params:
        reader.refuse_at(place, "params", "the rule file has no such param", repr(name), suggestion(name, params))
        return
    value = _plain_param(given)
    if value is None or _type_name(value) != _type_name(params[name]):
        what = f"an override must be {_type_name(params[name])}, as in the file"
        reader.refuse_at(place, f"param '{name}'", what, repr(given), "")
        return
    params[name] = value


def _plain_param(value: object) -> Param | None:
    """Return a param as one of the four plain types, also from their subclasses; None for anything else."""
    for type_ in (bool, int, float, str):
        if isinstance(value, type_):
            return type_(value)
    return None


def _type_name(value: Param) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "text" if isinstance(value, str) else "a number"


def _read_cooldowns(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    # A refused cooldown keeps its name, so that one mistake is one problem.
    spans = {
        name: read_span(value, f"cooldown '{name}'", declared, reader) or Span(1)
        for name, value in reader.entries(node, where).items()
    }
    return replace(declared, cooldowns=spans)


# --- metrics and operations: entries that ask for classes ---------------------------------------------------------


def _read_metrics(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    metrics: list[MetricDeclaration] = []
    for entry in [] if is_null(node) else reader.items(node, where):
        name, found, fields = _class_entry(entry, "controller metric", METRIC_CLASSES, declared, reader)
        if name is not None and found is not None:
            values = _class_arguments(fields, f"controller metric '{name}'", entry, found, declared, reader)
            metrics.append(MetricDeclaration(name, found.__name__, values))
    return replace(declared, metrics=tuple(metrics))


def _read_operations(node: yaml.Node, where: str, declared: Declarations, reader: FieldReader) -> Declarations:
    actions: dict[str, tuple[str, ...]] = {}
    operations: list[OperationDeclaration] = []
    for entry in [] if is_null(node) else reader.items(node, where):
        name, found, fields = _class_entry(entry, "operation", OPERATION_CLASSES, declared, reader)
        if name is None:
            continue
        if name in actions:
            reader.refuse(fields["name"], where, "an operation of this name is already declared")
            continue
        actions[name] = tuple(found.actions) if found else ()
        if found is not None:
            values = _class_arguments(fields, f"operation '{name}'", entry, found, declared, reader)
            operations.append(OperationDeclaration(name, found.__name__, values))
    if DEFAULT_OPERATION not in actions:
        actions[DEFAULT_OPERATION] = tuple(HFControls.actions)
        operations.append(OperationDeclaration(DEFAULT_OPERATION, HFControls.__name__, MappingProxyType({})))
    return replace(declared, actions=actions, operations=tuple(operations))


def _class_entry(
    node: yaml.Node, what: str, classes: Registry[_Class], declared: Declarations, reader: FieldReader
) -> tuple[str | None, _Class | None, Fields]:
    """Return name, class and keys of an entry that asks for a class; None for what is missing or unknown."""
    fields = reader.fields(node, what, _CLASS_KEYS, ("name", "class"))
    name = read_name(fields["name"], f"{what}, name", declared, reader) if "name" in fields else None
    class_name = reader.text(fields["class"], f"{what}, class") if "class" in fields else None
    if class_name is None:
        return name, None, fields
    where = f"{what} '{name}'" if name else what
    try:
        found = classes.find(class_name)
    except TelemetryError as error:
        reader.refuse(fields["class"], where, str(error), shows=False)
        return name, None, fields
    if found is None:
        reader.refuse(fields["class"], where, "unknown class", suggestion(class_name, classes.names()))
    return name, found, fields


def _class_arguments(
    fields: Fields,
    where: str,
    owner: yaml.Node,
    found: type[Metric] | type[Operation],
    declared: Declarations,
    reader: FieldReader,
) -> Mapping[str, ArgumentValue]:
    """Return the ``arguments:`` of an entry, each checked alone and then all together."""
    problems = len(reader.problems)
    node = fields.get("arguments")
    values = MappingProxyType(reader.arguments(node, where, owner, found.arguments, declared.scope))
    if issubclass(found, LogControl) and node is not None:
        _note_keys(reader.keys_of(node).get("log_format"), reader)
    if len(reader.problems) == problems:
        try:
            found.validate(values)
        except ValueError as error:
            reader.refuse(node or owner, f"{where}, arguments", str(error), shows=False)
    return values


#: A metric of the event in a log message.
_METRIC_KEY: Final = re.compile(r"\{(?:logs|metrics)(\[([^\]]+)\]|\.([^.\[\]{}!:]+))")


def _note_keys(node: yaml.Node | None, reader: FieldReader) -> None:
    """Note the metrics that a log message names."""
    if not isinstance(node, yaml.ScalarNode):
        return
    for match in _METRIC_KEY.finditer(node.value):
        place = SeriesPlace(node, match.start(1), match.end(1), match[2] or match[3], NameForm.KEY)
        reader.series_places.append(place)


#: The keys of a policy file, each after those that it refers to. A reader takes what is declared so far, and returns it
#: with what its key declares.
DOCUMENT_KEYS: Final[tuple[Key[Declarations], ...]] = (
    Key("name", _read_text, "text | For people."),
    Key("description", _read_text, "text | For people."),
    Key("extends", _as_read, "text | A shipped rule file, or one by its path, that this file changes."),
    Key("without", _as_read, "list | Rules of the extended file to leave out, by name."),
    Key("rename", _as_read, "mapping | The rules' names of metrics, by the names under which runs record them."),
    Key(
        "params",
        _read_params,
        "mapping | Constants for rules: number, `true`/`false` or text. The caller can override them when"
        " the file is loaded.",
    ),
    Key(
        "controller_metrics",
        _read_metrics,
        "list | Named values with a memory.",
    ),
    Key("operations", _read_operations, "list | Operations in addition to `hfcontrols`, which is always available."),
    Key(
        "define",
        read_define,
        "mapping | Names for expressions, and for admitted values.",
    ),
    Key("ranges", read_ranges, "mapping | What metrics lie between, for `steptape check`."),
    Key("states", read_states, "mapping | Classes into which the run is sorted."),
    Key("record", read_record, "list | Definitions and states that the run records, as series `derived/NAME`."),
    Key("cooldowns", _read_cooldowns, "mapping | Spans by name, which rules can share."),
    Key("controllers", read_controllers, "list | The rules. A file without any decides nothing."),
)

#: The names of all keys of a file and of its rules.
KEYS: Final = tuple(dict.fromkeys(key.name for key in (*DOCUMENT_KEYS, *CONTROLLER_KEYS)))
