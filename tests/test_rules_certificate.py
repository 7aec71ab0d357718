"""A certificate reads back as written, refuses what is not one, and says when a run is outside of its population."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape import TelemetryError
from steptape.rules.certificate import (
    Certificate,
    CertifiedEvidence,
    CertifiedPolicy,
    CertifiedPopulation,
    CertifiedRisk,
    Evaluations,
    KeyRange,
    MetricRange,
    PopulationRun,
    VariantTests,
    read_certificate,
)
from steptape.rules.policy_file.declarations import SEMANTICS_VERSION
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.errors import UnsupportedVersion

POLICY = parse_policy("""
params: {patience: 8}
controllers:
  - name: it
    triggers: [on_evaluate]
    rule: eval_loss > 1
    patience: {patience_threshold: patience}
    operations: [hfcontrols.should_training_stop]
""")

CERTIFICATE = Certificate(
    "1.0",
    CertifiedPolicy("policy.yaml", POLICY.digest, {"patience": 8}, SEMANTICS_VERSION),
    CertifiedRisk("regret > 1%", 0.1, 0.9, 0.01, None, True, False, ("eval_loss:min",), (), {}, "keep", False),
    VariantTests(
        {"patience": (1, 8)}, "fixed sequence along patience, greatest first", "from the rule file", 2, 2, 1, 0.1
    ),
    CertifiedEvidence(0, 0.0, 0.0994, 0.0985, 0.25, 1, 0),
    CertifiedPopulation(
        "group, source folder or configuration",
        22,
        (PopulationRun("run-1", "one", "a", "00ff"),),
        3,
        {
            "lr": KeyRange(0.1, 0.3, (), True),
            "model": KeyRange(None, None, ('"cnn"', '"vit"'), True),
            "clip": KeyRange(1.0, 1.0, ("null",), False),
            "note": KeyRange(None, None, None, True),
        },
        100,
        200,
        ("eval_loss", "loss"),
        {"eval_loss": MetricRange(10, 20, 0.5, 3.0)},
    ),
)
INSIDE: dict[str, Any] = {"lr": 0.2, "model": "vit", "note": "any"}


def test_a_certificate_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Numbers, texts and absent values keep their types."""
    (tmp_path / "c.json").write_text(CERTIFICATE.text, encoding="utf-8")

    assert read_certificate(tmp_path / "c.json") == CERTIFICATE


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (
            ["format"],
            2,
            r"c.json: this steptape supports certificate format 4; got 2. Use the steptape that certified it",
        ),
        (["risk", "at_most"], "10%", r"c.json.risk.at_most: must be float; got '10%'"),
        (["policy", "digest"], None, r"c.json.policy.digest: must be str"),
        (["risk", "more"], 1, r"c.json.risk: has an unknown key; got 'more'"),
        (["population", "runs"], [1], r"c.json.population.runs\[0\]: must be a JSON object"),
        (["evidence", "broken"], 1, "the certificate was changed: its digest differs"),
        (["digest"], "", "the certificate was changed"),
    ],
)
def test_a_file_that_is_not_as_it_was_written_is_refused(
    keys: list[str], value: object, message: str, tmp_path: Path
) -> None:
    """The error names the key."""
    document: Any = json.loads(CERTIFICATE.text)
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (tmp_path / "c.json").write_text(json.dumps(document))

    with pytest.raises(TelemetryError, match=message):
        read_certificate(tmp_path / "c.json")


def test_a_certificate_of_other_semantics_is_refused(tmp_path: Path) -> None:
    """Its rules may decide otherwise today."""
    other = replace(CERTIFICATE, policy=replace(CERTIFICATE.policy, semantics_version=5))
    (tmp_path / "c.json").write_text(other.text, encoding="utf-8")

    with pytest.raises(UnsupportedVersion, match=r"c.json.policy: this steptape supports rule semantics 8; got 5. Use"):
        read_certificate(tmp_path / "c.json")


@pytest.mark.parametrize(("text", "message"), [("{", "not a certificate"), ("[]", "JSON object"), ("{}", "format 4")])
def test_another_file_is_no_certificate(text: str, message: str, tmp_path: Path) -> None:
    """A missing key is named, too."""
    (tmp_path / "c.json").write_text(text)
    document = json.loads(CERTIFICATE.text)
    del document["risk"]["cap"]

    with pytest.raises(TelemetryError, match=message):
        read_certificate(tmp_path / "c.json")
    with pytest.raises(TelemetryError, match="lacks cap"):
        Certificate.from_json(document)
    with pytest.raises(TelemetryError, match="cannot be read"):
        read_certificate(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("config", "more", "reasons"),
    [
        (INSIDE, {"steps": 150, "metrics": {"eval_loss", "loss", "lr"}}, ()),
        (INSIDE | {"clip": None, "more": 1}, {}, ()),
        (INSIDE | {"lr": 0.31}, {}, ("config lr is 0.31, the population has 0.1 to 0.3",)),
        (INSIDE | {"model": "rnn"}, {}, ('config model is "rnn", the population has "cnn" or "vit"',)),
        (INSIDE | {"clip": 2}, {}, ("config clip is 2, the population has 1 or null",)),
        (INSIDE | {"lr": 3e-7}, {}, ("config lr is 0.0000003, the population has 0.1 to 0.3",)),
        (INSIDE | {"lr": 2e16}, {}, ("config lr is 20,000,000,000,000,000, the population has 0.1 to 0.3",)),
        ({"lr": 0.2}, {}, ("its config lacks model, note, which all runs of the population have",)),
        (INSIDE, {"steps": 201}, ("its length is 201 steps, the population has 100 to 200",)),
        (INSIDE, {"metrics": ["loss"]}, ("it recorded no eval_loss, which all runs of the population did",)),
    ],
)
def test_a_run_is_outside_for_each_thing_that_the_population_never_had(
    config: dict[str, Any], more: dict[str, Any], reasons: tuple[str, ...]
) -> None:
    """Ends of ranges are inside; what is not known yet is no reason."""
    assert CERTIFICATE.why_outside(config, **more) == reasons


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_a_reason_has_no_exponent_whatever_the_magnitude(least: float, greatest: float) -> None:
    """This holds for configurations and for evaluations."""
    config = (
        KeyRange(least, greatest, (), True),
        KeyRange(least, least, (), True).why_not(math.nextafter(least, math.inf)),
    )
    evaluations = MetricRange(1, 9, math.inf, greatest).why_not("loss", Evaluations(3, least))

    assert [text for text in map(str, [*config, *evaluations]) if re.search(r"\de[+-]?\d", text)] == []


def test_another_policy_is_told_by_its_params_or_its_rules() -> None:
    """A comment is no difference."""
    same = parse_policy(f"# a comment\n{POLICY.text}")
    other = parse_policy(POLICY.text, params={"patience": 9})
    changed = parse_policy(POLICY.text.replace("> 1", "> 2"))

    assert CERTIFICATE.why_other_policy(same) == ""
    assert CERTIFICATE.why_other_policy(other) == "its params differ: patience is 9, certified is 8"
    assert CERTIFICATE.why_other_policy(changed) == "its rules, metrics or operations have changed"
    assert replace(CERTIFICATE, steptape="2").digest != CERTIFICATE.digest
