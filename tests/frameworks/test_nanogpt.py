"""nanoGPT's loop with seven statements, and its own train.py with them: what is recorded, what rules do."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE_S

from steptape import backtest, open_store, verify
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.run import Run

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "scripts" / "nanogpt.py"
PAGE = EXAMPLE.parents[2] / "docs" / "how-to" / "nanogpt.md"

#: The example's last step.
LAST = 61

STOP = """
controllers:
  - {name: enough, triggers: [on_step_end], rule: step >= 33, operations: [hfcontrols.should_training_stop]}
"""
BROKEN = """
controllers:
  - name: nan
    triggers: [on_step_end]
    rule: not isfinite(loss) or not isfinite(grad_norm)
    operations: [hfcontrols.should_training_stop]
"""
#: It orders no stop, and what it decides depends on steps before the checkpoint.
FALLS = """
controllers:
  - name: falls
    triggers: [on_step_end]
    rule: "len(loss) >= 5 and loss < mean(loss, 5)"
    for: 3
    operations: [hfcontrols.should_log]
"""

#: A checkout of nanoGPT, for the tests that train with its own files.
CHECKOUT = os.environ.get("NANOGPT", "")


def train(
    folder: Path, *arguments: str, script: Path = EXAMPLE, rules: str = "", ranks: int = 1, fails: bool = False
) -> list[str]:
    """Run a script in a folder, and return the losses that it prints."""
    folder.mkdir(exist_ok=True)
    if rules:
        (folder / "policy.yaml").write_text(rules)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *torchrun, str(script), *(["policy.yaml"] if rules else []), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    assert (done.returncode != 0) == fails, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("iter ")]


def changed(path: Path, text: str, *changes: tuple[str, str]) -> Path:
    """Write a program's text with each old part, which it must have, in a new form."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


def recorded(folder: Path) -> Run:
    """Return the only run of a folder."""
    (run,) = open_store(folder / "runs")
    return run


def steps(run: Run) -> list[int]:
    """Return the steps of a run's updates, on rank 0."""
    return [event.step for event in run.events() if event.kind == "step_end"]


def last_steps(run: Run) -> list[int]:
    """Return the last step of each rank."""
    return [row["step"] for row in run.rows("SELECT max(step) AS step FROM steps GROUP BY rank ORDER BY rank")]


def decisions_of(run: Run) -> list[tuple[int, str]]:
    """Return step and controller of each decision."""
    return [(row["step"], row["controller"]) for row in run.decisions().to_pylist()]


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Folder and losses of the example, trained without rules."""
    folder = tmp_path_factory.mktemp("free")
    return folder, train(folder)


def test_the_weights_are_those_of_the_loop_without_steptape(free: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Bit for bit, and so are the losses. The loop without steptape is the example without its statements."""
    text = EXAMPLE.read_text(encoding="utf-8")
    ordered = r"    if control\.should_save .*\n +torch\.save\(.*\n"
    plain = re.sub(rf"{ordered}|.*\brec\b.*\n|from steptape .*\n", "", text.replace(" or control.should_stop", ""))
    (tmp_path / "plain.py").write_text(plain)

    folder, losses = free

    assert train(tmp_path, script=tmp_path / "plain.py") == losses != []
    weights = [torch.load(each / "ckpt.pt")["model"] for each in (folder, tmp_path)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    run = recorded(folder)
    assert (steps(run), run.status, run.info.last.plan.total_steps) == ([*range(1, LAST + 1)], "completed", LAST)
    assert [float(line.split()[-1]) for line in losses] == [
        event.metrics["loss"] for event in run.events() if event.kind == "step_end"
    ]


def test_a_rule_stops_the_loop_where_a_backtest_of_another_run_foretells_it(
    free: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """The losses until then are those of the other run."""
    folder, losses = free

    stopped = train(tmp_path, rules=STOP)

    run = recorded(tmp_path)
    (foretold,) = backtest(parse_policy(STOP), [recorded(folder)]).results
    assert foretold.predicted is not None
    assert (last_steps(run), foretold.predicted.steps, run.status) == ([33], 33, "stopped")
    assert stopped == losses[:33]
    assert verify(run).identical


@pytest.mark.parametrize(("ranks", "rank", "micro_step"), [(1, 0, 1), (2, 1, 0)])
def test_a_nan_in_any_micro_batch_stops_the_loop_at_its_step(
    tmp_path: Path, ranks: int, rank: int, micro_step: int
) -> None:
    """All ranks stop there. The gradient norm has it, where the loss of the last micro-batch has not."""
    line = '        loss = batch_loss("train") / gradient_accumulation_steps\n'
    nan = f'{line}        loss *= float("nan") if (rank, iter_num, micro_step) == ({rank}, 25, {micro_step}) else 1.0\n'
    script = changed(tmp_path / "poisoned.py", EXAMPLE.read_text(encoding="utf-8"), (line, nan))

    train(tmp_path, script=script, rules=BROKEN, ranks=ranks)

    assert (last_steps(recorded(tmp_path)), recorded(tmp_path).status) == ([26] * ranks, "stopped")


def test_a_resumed_loop_decides_as_an_unsplit_one(tmp_path: Path) -> None:
    """Its random numbers are made a function of the step, because the loop does not save their state."""
    own = ("while True:\n", "while True:\n    torch.manual_seed(iter_num)\n")
    fails = (own[0], own[1] + '    if iter_num == 47:\n        raise RuntimeError("a node is gone")\n')
    whole, cut = (
        changed(tmp_path / name, EXAMPLE.read_text(encoding="utf-8"), change)
        for name, change in (("whole.py", own), ("cut.py", fails))
    )
    losses = train(tmp_path / "whole", script=whole, rules=FALLS)

    train(tmp_path / "cut", script=cut, rules=FALLS, fails=True)
    resumed = train(tmp_path / "cut", script=whole, rules=FALLS)

    run = recorded(tmp_path / "cut")
    assert [attempt.from_step for attempt in run.info.attempts] == [None, 40]
    assert resumed == losses[40:]
    assert decisions_of(run) == decisions_of(recorded(tmp_path / "whole")) != []
    assert verify(run).identical


def test_a_loop_without_clipping_records_no_gradient_norm(tmp_path: Path) -> None:
    """There is none to record."""
    script = changed(tmp_path / "free.py", EXAMPLE.read_text(encoding="utf-8"), ("3e-3, 10, 1.0,", "3e-3, 10, 0.0,"))

    train(tmp_path, script=script)

    assert {"loss", "lr"} <= set(recorded(tmp_path).metrics())
    assert "grad_norm" not in recorded(tmp_path).metrics()


def test_a_killed_loop_has_all_of_its_steps_and_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    """The resumed attempt counts on from step 40; each step is in the run once."""
    with subprocess.Popen([sys.executable, str(EXAMPLE)], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [next(process.stdout) for _ in range(47)]
        process.send_signal(signal.SIGKILL)
        seen += process.stdout.readlines()
    killed = recorded(tmp_path)
    assert (killed.status, process.returncode) == ("crashed", -signal.SIGKILL)
    assert steps(killed)[-1] >= len(seen) - 1 >= 46

    train(tmp_path)

    run = recorded(tmp_path)
    assert (steps(run), run.status) == ([*range(1, LAST + 1)], "completed")
    assert [(attempt.attempt, attempt.from_step) for attempt in run.info.attempts] == [(0, None), (1, 40)]


def test_the_page_counts_the_statements_that_it_shows() -> None:
    """The diff adds eight statements, the block of the ordered checkpoint being one, and the lines around them."""
    diff = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)

    added = [line[1:].strip() for block in diff for line in block.splitlines() if line.startswith("+")]
    marks = (
        "rec = Recorder(",
        "rec.evaluate(",
        "rec.save(",
        "grad_norm =",
        "control = rec.step(",
        "if control.should_save",
        "if iter_num",
        "rec.close()",
    )
    assert [sum(line.startswith(mark) for line in added) for mark in marks] == [1, 1, 2, 1, 1, 1, 1, 1]


def instrumented(text: str) -> str:
    """Apply the page's diff to nanoGPT's train.py: each part once, one after the other."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    done = ""
    for part in re.split(r"^ \.\.\.\n", diff, flags=re.MULTILINE):
        lines = [(line[:1], line[1:]) for line in part.splitlines(keepends=True)]
        old = "".join(line for mark, line in lines if mark != "+")
        assert text.count(old) == 1 or not old
        before, text = text.split(old, 1) if old else ("", text)
        done += before + "".join(line for mark, line in lines if mark != "-")
    return done + text


_SMALL: dict[str, Any] = {
    "device": "cpu",
    "backend": "gloo",
    "compile": False,
    "dtype": "float32",
    "n_layer": 1,
    "n_head": 2,
}
_SMALL |= {"n_embd": 16, "block_size": 8, "batch_size": 4, "gradient_accumulation_steps": 4, "warmup_iters": 5}
_SMALL |= {"eval_iters": 2, "eval_interval": 10, "max_iters": 29}

#: What lets train.py run on several CPUs, print its losses whole, and do without the state of its random numbers.
_ON_CPUS = (
    ("f'cuda:{ddp_local_rank}'", "'cpu'"),
    ("torch.cuda.set_device(device)", "pass"),
    ("device_ids=[ddp_local_rank]", ""),
    ("loss {lossf:.4f},", "loss {lossf:.17g} "),
    ("while True:\n", "while True:\n    torch.manual_seed(iter_num)\n    X, Y = get_batch('train')\n"),
)
_AGREES = ("    # termination conditions\n", "    control = rec.agree()\n")


@pytest.mark.skipif(not CHECKOUT, reason="the variable NANOGPT names no checkout of nanoGPT")
class TestUpstream:
    """nanoGPT's own train.py with the page's diff, on CPUs, with random data."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A folder with nanoGPT's files and data."""
        numpy = pytest.importorskip("numpy")
        (tmp_path / "data" / "openwebtext").mkdir(parents=True)
        for name in ("model.py", "configurator.py"):
            shutil.copy(Path(CHECKOUT) / name, tmp_path)
        for part in ("train", "val"):
            tokens = numpy.random.default_rng(0).integers(0, 50, 5000, dtype=numpy.uint16)
            tokens.tofile(tmp_path / "data" / "openwebtext" / f"{part}.bin")
        return tmp_path

    def train(
        self, folder: Path, rules: str | None, *changes: tuple[str, str], ranks: int = 1, **how: Any
    ) -> list[str]:
        """Train and return the losses; without rules the script is nanoGPT's own."""
        text = (Path(CHECKOUT) / "train.py").read_text(encoding="utf-8")
        (folder / "policy.yaml").write_text(rules or "")
        text = text if rules is None else instrumented(text)
        script = changed(folder / "train.py", text, *_ON_CPUS, *changes, *([_AGREES] if rules and ranks > 1 else []))
        options = [f"--{name}={value}" for name, value in {**_SMALL, **how.pop("options", {})}.items()]
        lines = train(folder, *options, script=script, ranks=ranks, **how)
        return [line.partition(" time")[0] for line in lines]

    def weights(self, folder: Path) -> dict[str, Any]:
        """Return the weights of the checkpoint."""
        return dict(torch.load(folder / "out" / "ckpt.pt")["model"])

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_the_weights_are_those_without_the_diff_and_a_rule_stops_all_ranks(self, folder: Path, ranks: int) -> None:
        """At the step that a backtest foretells."""
        plain = self.train(folder, None, ranks=ranks)
        weights = self.weights(folder)
        free = self.train(folder, FALLS, ranks=ranks)
        assert free == plain
        assert all(torch.equal(weight, weights[name]) for name, weight in self.weights(folder).items())
        rules = STOP.replace("33", "23")
        (foretold,) = backtest(parse_policy(rules), [recorded(folder)]).results
        shutil.rmtree(folder / "runs")

        assert self.train(folder, rules, ranks=ranks) == plain[:23]

        assert foretold.predicted is not None
        assert (last_steps(recorded(folder)), foretold.predicted.steps) == ([23] * ranks, 23)
        assert (recorded(folder).status, verify(recorded(folder)).identical) == ("stopped", True)

    @pytest.mark.parametrize(("ranks", "rank", "micro_step"), [(1, 0, 0), (1, 0, 3), (2, 1, 0)])
    def test_a_nan_stops_at_its_step(self, folder: Path, ranks: int, rank: int, micro_step: int) -> None:
        """In any micro-batch of any rank."""
        line = "            loss = loss / gradient_accumulation_steps"
        place = f"(seed_offset, iter_num, micro_step) == ({rank}, 15, {micro_step})"

        self.train(
            folder, BROKEN, (line, f"            loss = loss * (float('nan') if {place} else 1)\n{line}"), ranks=ranks
        )

        assert (last_steps(recorded(folder)), recorded(folder).status) == ([16] * ranks, "stopped")

    def test_a_resumed_training_decides_as_an_unsplit_one(self, folder: Path) -> None:
        """From the checkpoint of step 20."""
        losses = self.train(folder, FALLS)
        decisions = decisions_of(recorded(folder))
        shutil.rmtree(folder / "runs")
        self.train(folder, FALLS, ("    iter_num += 1\n", "    iter_num += 1\n    assert iter_num < 27\n"), fails=True)

        resumed = self.train(folder, FALLS, options={"init_from": "resume"})

        run = recorded(folder)
        assert resumed == losses[20:]
        assert (decisions_of(run), [attempt.from_step for attempt in run.info.attempts]) == (decisions, [None, 20])
        assert decisions != []

    def test_a_training_without_clipping_records_no_gradient_norm(self, folder: Path) -> None:
        """There is none to record."""
        self.train(folder, FALLS, options={"grad_clip": 0.0})

        assert "grad_norm" not in recorded(folder).metrics()
