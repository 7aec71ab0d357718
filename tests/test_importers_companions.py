"""A configuration that a script keeps in its run's folder is the run's; one that cannot be read costs no event."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_files import losses, write_events
from imported_logs import imported, lines

from steptape import open_store
from steptape.cli.import_notes import doubts
from steptape.importers.discovery import all_readers, find_sources
from steptape.importers.importing import Outcome, State, import_sources
from steptape.importers.source import ReadOptions

ROWS = lines({"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0})
TABLE = "step,loss\n1,2\n2,1\n"
TEXT = "step 1 loss 2.0\nstep 2 loss 1.0\n"


def configs(tmp_path: Path) -> list[dict[str, object]]:
    """Return the configurations of the imported runs."""
    return [dict(run.info.config) for run in open_store(tmp_path / "store")]


def outcomes(tmp_path: Path, files: dict[str, str]) -> list[Outcome]:
    """Write files, import their folder and return the outcomes."""
    (tmp_path / "logs").mkdir(exist_ok=True)
    for name, content in files.items():
        (tmp_path / "logs" / name).write_text(content)
    found = find_sources([tmp_path / "logs"], all_readers())
    return list(import_sources(tmp_path / "store", found.sources, ReadOptions()))


@pytest.mark.parametrize(
    ("log", "content", "companion"),
    [
        ("metrics.csv", TABLE, "hparams.yaml"),
        ("results.csv", TABLE, "args.yaml"),
        ("progress.csv", TABLE, "params.json"),
        ("log.jsonl", ROWS, "args.json"),
        ("log.json", ROWS, "config.json"),
        ("train.log", TEXT, "config.yaml"),
        ("train.log", TEXT, ".hydra/config.yaml"),
    ],
)
def test_a_configuration_in_the_run_s_folder_is_the_run_s(
    tmp_path: Path, log: str, content: str, companion: str
) -> None:
    """It is nested as in the file."""
    is_json = companion.endswith(".json")
    settings = '{"lr": 0.003, "optim": {"seed": 9}}' if is_json else "lr: 0.003\noptim:\n  seed: 9\n"
    _, problems = imported(tmp_path, {f"a/{log}": content, f"a/{companion}": settings})

    assert (configs(tmp_path), problems) == ([{"lr": 0.003, "optim": {"seed": 9}}], [])


def test_lightning_s_configuration_beside_event_files_is_the_run_s(tmp_path: Path) -> None:
    """Its logger for TensorBoard writes the same file as that for tables."""
    write_events(tmp_path / "logs" / "version_0" / "events.out.tfevents.1767323045.host", losses([1.0]))
    imported(tmp_path, {"version_0/hparams.yaml": "lr: 0.003\n"})

    assert configs(tmp_path) == [{"lr": 0.003}]


def test_a_folder_of_several_logs_has_no_configuration_of_one_run(tmp_path: Path) -> None:
    """It may be that of the newest; the parts of one run are one."""
    imported(tmp_path, {"a.csv": TABLE, "b.csv": TABLE, "hparams.yaml": "lr: 0.1\n"})
    part = {"x/train.csv": TABLE, "x/val.csv": TABLE, "x/hparams.yaml": "lr: 0.2\n"}
    imported(tmp_path, part)

    assert sorted(map(str, configs(tmp_path))) == ["{'lr': 0.2}", "{}", "{}"]


def test_what_the_log_says_of_the_configuration_goes_before_a_file(tmp_path: Path) -> None:
    """The log is of the run; the file may have been edited since."""
    imported(tmp_path, {"a/run.log": f'config {{"lr": 0.5}}\n{TEXT}', "a/config.yaml": "lr: 0.1\nseed: 3\n"})

    assert configs(tmp_path) == [{"lr": 0.5, "seed": 3}]


def test_objects_in_a_configuration_are_their_types_and_exponents_are_numbers(tmp_path: Path) -> None:
    """Lightning writes the tags of Python; no object is made."""
    text = (
        "lr: 1e-4\nbetas: !!python/tuple\n- 0.9\n- 0.99\nloss: !!python/object:torch.nn.L1Loss\n  training: true\n"
        "run: !!python/object/apply:os.system ['touch /tmp/never']\n1: one\nday: 2026-01-02\n"
        "base: &b {x: 1}\nsame: *b\nmerged: {<<: *b, y: 2}\n"
    )
    imported(tmp_path, {"a/metrics.csv": TABLE, "a/hparams.yaml": text})

    assert configs(tmp_path) == [
        {
            "lr": 1e-4,
            "betas": [0.9, 0.99],
            "loss": "python/object:torch.nn.L1Loss",
            "run": "python/object/apply:os.system",
            "1": "one",
            "day": "2026-01-02",
            "base": {"x": 1},
            "same": {"x": 1},
            "merged": {"<<": {"x": 1}, "y": 2},
        }
    ]


LEVELS = "".join(f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lr: [\n", "line 2"),
        ("- 1\n", "it holds no names with values"),
        (f"k0: &k0 [1]\n{LEVELS}", "it holds more than 100,000 values"),
        ("a: &a [*a]\n", ""),
        ("x: " + "[" * 5000, ""),
        ("lr: \x00\n", ""),
        ("#" * 2_000_000, "it is larger than"),
    ],
    ids=["syntax", "list", "bomb", "loop", "deep", "control", "long"],
)
def test_a_configuration_that_cannot_be_read_is_noted_and_costs_nothing_else(
    tmp_path: Path, text: str, why: str
) -> None:
    """The other files are still read."""
    settings = {"hparams.yaml": text, "args.json": '{"seed": 1}'}
    found = outcomes(tmp_path, {"metrics.csv": TABLE, **settings})

    ((outcome,), (note,)) = found, doubts(found)
    assert (outcome.events, outcome.problem, configs(tmp_path)) == (2, None, [{"seed": 1}])
    assert note.startswith("hparams.yaml is not read as the configuration (")
    assert why in note


def test_a_configuration_that_appears_later_is_the_run_s(tmp_path: Path) -> None:
    """The source has changed with it; no event is added."""
    outcomes(tmp_path, {"metrics.csv": TABLE})
    (later,) = outcomes(tmp_path, {"hparams.yaml": "lr: 0.1\n"})

    assert (later.state, later.events, configs(tmp_path)) == (State.UNCHANGED, 0, [{"lr": 0.1}])


def test_files_that_are_no_logs_of_a_training_are_not_told(tmp_path: Path) -> None:
    """These are W&B's own logs and files of models. A log of another name is listed as skipped."""
    for name in ("wandb/debug.log", "wandb/debug-internal.log", "a/requirements.txt", "a/vocab.txt", "a/merges.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("nothing\n")
    (tmp_path / "a" / "run.log").write_text(TEXT)
    (tmp_path / "a" / "debug.log").write_text("nothing\n")
    found = find_sources([tmp_path], all_readers())

    assert [(one.what, one.where) for one in found.passed_over] == [
        ("no two lines hold a step and a value", str(tmp_path / "a" / "debug.log"))
    ]
