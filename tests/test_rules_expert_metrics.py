"""Controller metrics over the tokens of experts, with the same result live, late, resumed and in replay."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape import Policy, Recorder, backtest, load_policy, open_run, verify
from steptape.replay.runs.replaying import replay
from steptape.rules.engine.decisions import Decision, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.metrics import GpuLoadRatio, LlepPlan, Metric
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.store.events import Event
from steptape.store.plan import Plan

#: The two hot experts of a layer share its first GPU, or do not.
HOT, EVEN = [5000, 5000, 0, 0, 0, 0, 0, 0], [1250] * 8


def policy_text(arguments: str = "P: 4", rule: str = "llep_plan.active > 0") -> str:
    """Return a policy with both metrics, and a controller that says what the plan does."""
    return f"""\
controller_metrics:
  - {{name: gpu_load_ratio, class: GpuLoadRatio, arguments: {{P: 4}}}}
  - {{name: llep_plan, class: LlepPlan, arguments: {{{arguments}}}}}
controllers:
  - name: it
    triggers: [on_step_end]
    rule: {rule}
    operations: []
    message: "{{gpu_load_ratio.ratio}} {{llep_plan.sticky_ratio}} {{llep_plan.moved}}"
"""


def routed(step: int, attempt: int = 0, **layers: Sequence[float]) -> Event:
    """Return a ``step_end`` event with the tokens of experts."""
    vectors = {f"expert_tokens/{name}": array("d", counts) for name, counts in layers.items()}
    return Event("step_end", step=step, seq=step - 1, attempt=attempt, vectors=vectors)


def computed(cls: type[Metric], arguments: str, *events: Event) -> list[Any]:
    """Return the metric's value after each event, with those arguments in the policy file."""
    text = f"controller_metrics: [{{name: it, class: {cls.__name__}, arguments: {{{arguments}}}}}]"
    metric = cls(parse_policy(text).metrics[0].arguments, Plan())
    return [metric.compute(event) for event in events]


# --- values ---------------------------------------------------------------------------------------------------------


def test_the_load_ratio_is_that_of_the_worst_layer() -> None:
    """An event without such a vector has none."""
    events = routed(1, layer0=EVEN, layer1=HOT), routed(2, layer0=EVEN), routed(3)

    assert computed(GpuLoadRatio, "P: 4", *events) == [
        {"ratio": 4.0, "layer": "expert_tokens/layer1"},
        {"ratio": 1.0, "layer": "expert_tokens/layer0"},
        None,
    ]


def test_a_single_gpu_has_all_of_the_load() -> None:
    """It is the mean, too."""
    assert computed(GpuLoadRatio, "P: 1", routed(1, layer0=HOT)) == [{"ratio": 1.0, "layer": "expert_tokens/layer0"}]


def test_the_plan_of_an_event_adds_up_its_layers() -> None:
    """Ratios are the greatest of them. One expert goes to one other GPU, one to two."""
    (value,) = computed(LlepPlan, "P: 4, expert_bytes: 10", routed(1, layer0=HOT, layer1=EVEN))

    assert value == {
        "dispatches": 2,
        "over": 1,
        "active": 1,
        "layer": "expert_tokens/layer0",
        "ratio": 4.0,
        "chunk_ratio": pytest.approx(1.1),
        "expert_ratio": 2.0,
        "sticky_ratio": 2.0,
        "tokens": 20_000,
        "chunk_moved": 7_250,
        "moved": 5_000,
        "transfers": 3,
        "transfer_bytes": 30,
    }


def test_vectors_are_chosen_by_name() -> None:
    """A name, or a pattern for all layers."""
    event = routed(1, layer0=HOT, layer1=HOT)._replace(kind="step_end")

    counted = [
        value and value["dispatches"]
        for pattern in ("expert_tokens/*", "expert_tokens/layer1", "'*0'", "other")
        for value in computed(LlepPlan, f"P: 4, vectors: {pattern}", event)
    ]
    assert counted == [2, 1, 1, None]


def test_a_plan_lasts_for_its_dispatches_layer_by_layer() -> None:
    """A layer that is not dispatched does not age. An attempt begins without plans, as a process does."""
    values = computed(
        LlepPlan,
        "P: 4, refresh: 2",
        routed(1, layer0=HOT, layer1=EVEN),
        routed(2, layer1=HOT),
        routed(3, layer0=EVEN, layer1=HOT),
        routed(4, layer0=HOT),
        routed(4, 1, layer0=EVEN),
    )

    assert [value["active"] for value in values] == [1, 0, 2, 1, 0]


def test_a_policy_names_the_kind_of_event_that_carries_them() -> None:
    """Such as that of each micro-batch: every one is a dispatch."""
    text = policy_text("P: 4, source_event: on_substep_end").replace("[on_step_end]", "[on_substep_end]")
    engine = Engine(parse_policy(text))
    events = [routed(1, layer0=HOT), routed(1, layer0=HOT)._replace(kind="substep_end")]

    assert [len(engine.observe(event)) for event in events] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "'P' is missing"),
        ("P: 0", "must be from 1 to 65,536"),
        ("P: 4, alpha: -1", "must be from 0 to 1,000"),
        ("P: 4, refresh: 0", "must be from 1 to 1,000,000"),
        ("P: 4, min_chunk: 0.5", "whole number"),
        ("P: 4, source_event: on_save", "on_step_end"),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(arguments: str, message: str) -> None:
    """When the policy loads."""
    with pytest.raises(PolicyError, match=message):
        parse_policy(policy_text(arguments))


def test_experts_that_cannot_be_shared_are_an_error() -> None:
    """Each metric says so once, and no controller decides."""
    engine = Engine(parse_policy(policy_text()))
    outcomes = [outcome for step in (1, 2) for outcome in engine.observe(routed(step, layer0=[1, 2, 3]))]

    said = "ValueError: vector 'expert_tokens/layer0': 3 experts cannot be shared evenly by 4 GPUs"
    assert [isinstance(each, RuleError) and said in each.error for each in outcomes] == [True, True]
    assert engine.error_counts == {"gpu_load_ratio": 2, "llep_plan": 2}


# --- live, late, resumed, replayed ----------------------------------------------------------------------------------


def tokens_at(step: int, layer: int) -> list[int]:
    """Return the tokens of a layer's experts, whose hot ones move every ten steps."""
    rng = np.random.default_rng((step, layer))
    weights = np.roll(1 / np.arange(1, 17) ** 1.5, 5 * (step // 10) + layer)
    return [int(count) for count in rng.multinomial(20_000, weights / weights.sum())]


def holder(counts: Sequence[int], is_late: bool) -> Any:
    """Return the counts as a list, or as a tensor that is on a device."""
    if not is_late:
        return list(counts)
    torch = pytest.importorskip("torch")
    from test_recorder_vectors import DeviceVector  # It imports torch, which 'make matrix' does without.

    return DeviceVector(torch.tensor(counts))


def record(folder: Path, *, is_late: bool = False, resumes: bool = False) -> Path:
    """Record 40 steps of two layers under the rules, with a crash after step 25 and a resume from 17."""
    policy = parse_policy(policy_text("P: 4, refresh: 7, threshold: 1.5"))
    state: Mapping[str, Any] | None = None
    with Recorder(folder, rules=policy, quiet=True) as rec:
        for step in range(1, 26 if resumes else 41):
            layers = {f"expert_tokens/{layer}": holder(tokens_at(step, layer), is_late) for layer in range(2)}
            rec.step(loss=1.0, vectors=layers)
            if step == 17:
                state = rec.state_dict()
    if resumes:
        with Recorder(folder, rules=policy, resume=state, quiet=True) as rec:
            for step in range(18, 41):
                layers = {f"expert_tokens/{layer}": holder(tokens_at(step, layer), is_late) for layer in range(2)}
                rec.step(loss=1.0, vectors=layers)
    rec.close(seal=True)
    return rec.folder


def messages(folder: Path) -> list[tuple[int, Any]]:
    """Return step and message of each decision that a replay of the recorded policy makes."""
    policy = parse_policy(policy_text("P: 4, refresh: 7, threshold: 1.5"))
    decisions = replay(policy, open_run(folder)).decisions
    return [(each.outcome.step, getattr(each.outcome, "message", None)) for each in decisions]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("resumes", [False, True])
def test_what_was_decided_live_is_what_replay_decides(tmp_path: Path, is_late: bool, resumes: bool) -> None:
    """From tensors that came late and across a resume, which rolled back eight steps, too."""
    folder = record(tmp_path, is_late=is_late, resumes=resumes)
    verdict = verify(open_run(folder))

    assert verdict.identical
    assert verdict.outcomes - (8 if resumes else 0) == len(messages(folder)) == 40


def test_tokens_that_came_late_decide_like_those_at_once(tmp_path: Path) -> None:
    """The same steps, the same numbers."""
    assert messages(record(tmp_path / "at-once")) == messages(record(tmp_path / "late", is_late=True))


def test_a_backtest_says_where_there_are_no_vectors(tmp_path: Path) -> None:
    """Silence would look like approval."""
    with Recorder(tmp_path / "bare", quiet=True) as rec:
        rec.step(loss=1.0)
    runs = [open_run(record(tmp_path / "runs")), open_run(rec.folder)]
    routed_run, bare = backtest(parse_policy(policy_text()), runs).results

    lacking = "it recorded no vectors: rules that read them were undefined throughout"
    assert len(routed_run.decisions) > 5
    assert [lacking in result.notes for result in (routed_run, bare)] == [False, True]
    assert [routed_run.could_not_fire, bare.could_not_fire] == ["", "no vector expert_tokens/*"]


def test_the_shipped_policy_is_silent_about_a_dense_model(tmp_path: Path) -> None:
    """No decision, no error, no warning."""
    policy = load_policy(shipped_policies()["llep"])
    with Recorder(tmp_path, rules=policy, quiet=True) as rec:
        for _ in range(150):
            rec.step(loss=1.0)

    assert {event.kind for event in open_run(rec.folder).events()} == {"train_begin", "step_end", "train_end"}


def mixture(folder: Path, policy: Policy) -> Path:
    """Train a mixture of eight experts, one for each token, for 80 steps; from step 41 on the data is other.

    The router begins with a direction for each expert, so that all get as many tokens.
    """
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    router, experts = torch.nn.Linear(4, 8, bias=False), torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(8))
    router.load_state_dict({"weight": torch.cat([torch.eye(4), -torch.eye(4)])})
    optimizer = torch.optim.Adam([*router.parameters(), *experts.parameters()], lr=0.001)
    with Recorder(folder, rules=policy, quiet=True) as rec:
        for step in range(80):
            tokens = torch.randn(2048, 4) + (step >= 40)
            weight, chosen = router(tokens).softmax(-1).max(-1)
            given = torch.stack([expert(tokens) for expert in experts], 1)[torch.arange(2048), chosen, 0]
            loss = torch.nn.functional.mse_loss(weight * given, tokens.prod(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rec.step(loss=loss, vectors={"expert_tokens/0": torch.bincount(chosen, minlength=8)})
    return rec.folder


def test_the_shipped_policy_watches_a_router_that_is_trained(tmp_path: Path) -> None:
    """It decides after as many uneven steps as its params say, counted here from the recorded tokens."""
    params = {"P": 4, "warn": 1.3, "patience": 10, "min_chunk": 1}
    run = open_run(mixture(tmp_path, load_policy(shipped_policies()["llep"], params=params)))
    rows = run.vectors().to_pylist()
    loads = [[sum(row["values"][2 * gpu : 2 * gpu + 2]) for gpu in range(4)] for row in rows]
    uneven = [max(load) / (sum(load) / 4) > 1.3 for load in loads]
    first = next(step for step in range(10, 81) if all(uneven[step - 10 : step]))

    decided = {row["controller"]: row["step"] for row in run.rows("SELECT controller, step FROM decisions")}
    assert len(rows) == 80
    assert first > 40
    assert decided["imbalanced"] == first
    assert verify(run).identical


def outcomes_of(events: Sequence[Event]) -> list[tuple[int, Any]]:
    """Return step and message of each decision of an engine fed directly."""
    engine = Engine(parse_policy(policy_text("P: 2, refresh: 3, min_chunk: 1", rule="llep_plan.ratio > 0")))
    decided = [outcome for event in events for outcome in engine.observe(event) if isinstance(outcome, Decision)]
    return [(each.step, each.message) for each in decided]


@given(
    drawn=st.lists(st.lists(st.integers(0, 5000), min_size=4, max_size=4), max_size=20),
    cut=st.integers(0, 20),
)
@examples(60)
def test_no_tokens_after_an_event_change_a_decision_up_to_it(drawn: list[list[int]], cut: int) -> None:
    """Truncating the stream, or poisoning later counts, leaves every earlier decision unchanged."""
    stream = [routed(step, layer0=counts) for step, counts in enumerate(drawn, start=1)]
    poisoned = [event._replace(vectors={"expert_tokens/layer0": [float("nan")] * 4}) for event in stream[cut:]]

    whole = [entry for entry in outcomes_of(stream) if entry[0] <= cut]
    assert whole == outcomes_of(stream[:cut]) == outcomes_of([*stream[:cut], *poisoned])
