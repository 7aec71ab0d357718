"""A recorder compares its run with the certificate of its rules, says differences once, and trains on."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_rules_certificate import CERTIFICATE, POLICY

from steptape import Recorder, TelemetryError, open_run
from steptape.recorder.certified_run import CertifiedRun
from steptape.rules.policy_file.policy import parse_policy

INSIDE: dict[str, Any] = {"config": {"lr": 0.2, "model": "cnn", "note": ""}, "total_steps": 150}


def recorded(folder: Path, **arguments: Any) -> list[dict[str, Any]]:
    """Record a short run, and return its notes."""
    with Recorder(folder / "runs", quiet=True, **arguments) as rec:
        for step in range(1, 4):
            rec.step(loss=1.0 / step)
        rec.evaluate(eval_loss=0.5)
    return [dict(event.attrs) for event in open_run(rec.folder).events() if event.kind == "annotation"]


def test_a_run_within_the_population_has_no_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said either."""
    (tmp_path / "c.json").write_text(CERTIFICATE.text, encoding="utf-8")
    notes = recorded(tmp_path, rules=POLICY, certificate=tmp_path / "c.json", **INSIDE)

    assert notes == []
    assert "certificate" not in caplog.text


def test_a_run_outside_of_the_population_is_warned_of_and_noted_with_the_reasons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The note names the certificate by its digest."""
    with caplog.at_level(logging.WARNING, "steptape"):
        notes = recorded(tmp_path, rules=POLICY, certificate=CERTIFICATE, config=INSIDE["config"], total_steps=900)

    (note,) = notes
    assert note["reasons"] == ["its length is 900 steps, the population has 100 to 200"]
    assert note["certificate"] == CERTIFICATE.digest
    assert caplog.text.count("outside of the certificate") == 1


def test_a_metric_that_never_came_is_noted_at_the_end(tmp_path: Path) -> None:
    """At the start nobody knows what a loop will record."""
    population = replace(CERTIFICATE.population, metrics=("eval_loss", "grad_norm"))
    notes = recorded(tmp_path, rules=POLICY, certificate=replace(CERTIFICATE, population=population), **INSIDE)

    (note,) = notes
    assert note["reasons"] == ["it recorded no grad_norm, which all runs of the population did"]


def test_other_rules_are_warned_of_and_refused_when_strict(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A recorder that is not strict trains on under them."""
    other = parse_policy(POLICY.text, params={"patience": 3})
    notes = recorded(tmp_path, rules=other, certificate=CERTIFICATE, **INSIDE)

    assert "patience is 3, certified is 8" in notes[0]["text"]
    assert "patience is 3, certified is 8" in caplog.text
    with pytest.raises(TelemetryError, match=r"patience is 3, certified is 8.*load_policy"):
        Recorder(tmp_path / "strict", rules=other, certificate=CERTIFICATE, strict=True)
    assert not (tmp_path / "strict").exists()


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_certificate_that_cannot_be_read_ends_no_training(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once; a strict recorder refuses it before anything is recorded."""
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    notes = recorded(tmp_path, rules=POLICY, certificate=path, **INSIDE)

    assert notes == []
    assert "compared with no certificate" in caplog.text
    with pytest.raises(TelemetryError):
        Recorder(tmp_path / "strict", rules=POLICY, certificate=path, strict=True)


def test_a_comparison_that_fails_is_warned_of_and_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, although the comparison fails at the start and at the end."""
    monkeypatch.setattr(CertifiedRun, "compare", lambda *_, **__: 1 / 0)

    assert recorded(tmp_path, rules=POLICY, certificate=CERTIFICATE, **INSIDE) == []
    assert caplog.text.count("the run could not be compared with its certificate: ZeroDivisionError") == 1


def test_a_certificate_without_rules_is_warned_of(tmp_path: Path) -> None:
    """It promises something of rules that are not armed."""
    (note,) = recorded(tmp_path, certificate=CERTIFICATE, **INSIDE)

    assert note["reasons"] == ["the recorder has no rules"]
