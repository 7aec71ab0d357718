"""Change the code in one place at a time, run the tests that reach the place, and count the changes that they notice.

    make mutants                          # 200 changes, drawn from store, rules, recorder and replay
    make mutants MUTANTS='--seed 3'       # others
    .venv/bin/python tests/mutants.py --only rules/readings/window.py --count 40

``make mutants`` notes beforehand which test of the quick suite reaches which line, and what it takes.
"""

from __future__ import annotations

import argparse
import ast
import bisect
import itertools
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import tomllib
import venv
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coverage import CoverageData

ROOT: Final = Path(__file__).resolve().parents[1]
REACHED: Final = ROOT / ".coverage-quick"
SECONDS: Final = ROOT / ".coverage-quick.xml"
ROOMS: Final = ("store", "rules", "recorder", "replay")

#: Modules that draw. Their pictures are looked at; where a line of theirs ends is no behaviour.
DRAWING: Final = ("replay/reports/plots.py",)

#: Modules that need what 'make test' lacks.
ELSEWHERE: Final = ("replay/ray_pool.py",)

#: Tests of a change that run first, the quickest of all, by the seconds that they took before.
FIRST_SECONDS: Final = 30.0

#: Tests of a change that run at all, the quickest of them, by the same seconds. What only slower ones would notice
#: counts as unnoticed.
ALL_SECONDS: Final = 90.0

#: Seconds after which tests count as hanging, which is noticed.
MOST_SECONDS: Final = 300.0

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATORS: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
SIGNS: Final[dict[type[ast.unaryop], str]] = {ast.Not: "not", ast.USub: "-"}
BOOLEANS: Final[dict[type[ast.boolop], tuple[str, str]]] = {ast.And: ("and", "or"), ast.Or: ("or", "and")}

#: Changes that make no difference, each with the reason: path, the text of the line, what it becomes.
EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "replay/columns/window_values.py",
        "differs |= newest[1:] != newest[:-1]",
        "differs |= newest[1:] != newest[:1]",
    ): "The newest value never becomes the first one again. More slices count as distinct, with equal numbers.",
    (
        "replay/columns/window_values.py",
        "differs = (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])",
        "differs = (begins[1:] != begins[:-1]) | (ends[1:] != ends[:1])",
    ): "Ends never fall, so none becomes the first one again. More slices count as distinct, with equal numbers.",
    (
        "store/parquet/sealing.py",
        "readiness()",
        "pass",
    ): "It begins earlier what is waited for below.",
    (
        "recorder/process/sealing_process.py",
        "self._quiet_looks = 0",
        "self._quiet_looks = 1",
    ): "The first sample of a process differs from none, and sets it to 0.",
    (
        "recorder/probes/probe_batch.py",
        "return _mapped(self.content, lambda tensor: tensor.to(device, non_blocking=True, copy=True))",
        "return _mapped(self.content, lambda tensor: tensor.to(device, non_blocking=False, copy=True))",
    ): "Only the time of a copy differs.",
    (
        "replay/columns/conditions.py",
        "_KEPT_BYTES: Final = 1 << 28",
        "_KEPT_BYTES: Final = 1 << 29",
    ): "The bound decides memory and time, and no value.",
    (
        "replay/sweeps/totals.py",
        "_HELD_BYTES: Final = 64 << 20",
        "_HELD_BYTES: Final = 64 << 21",
    ): "The bound decides memory and time, and no sum.",
    (
        "recorder/ranks/private_group.py",
        "_STORE_S: Final = 5.0",
        "_STORE_S: Final = 6.0",
    ): "The bound decides how long ranks wait for a store, and not for what.",
    (
        "store/own_process.py",
        "return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD_STREAM + 1)",
        "return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LAST_STANDARD_STREAM + 2)",
    ): "Any descriptor above the standard streams will do.",
    (
        "store/parquet/tables.py",
        "BYTES_PER_ROW_GROUP: Final = 64 * 1024 * 1024",
        "BYTES_PER_ROW_GROUP: Final = 64 * 1024 * 1025",
    ): "Tests keep to the bound, whatever it is.",
    (
        "store/child_protocol.py",
        "_PIECE_BYTES: Final = 1 << 20",
        "_PIECE_BYTES: Final = 2 << 20",
    ): "Pieces of any size are joined.",
    (
        "store/parquet/digests.py",
        "self._adding[-1].result()",
        "pass",
    ): "The wait bounds how many tables are held. All are waited for at the end.",
    (
        "rules/readings/window.py",
        "reach.setdefault(Extent.STEPS, 0)",
        "reach.setdefault(Extent.STEPS, 1)",
    ): "One step more is kept than is read.",
    (
        "recorder/process/sealing_process.py",
        'computed = (process / "stat").read_bytes().rpartition(b")")[2].split()[11:13]',
        'computed = (process / "stat").read_bytes().rpartition(b")")[2].split()[11:14]',
    ): "The CPU time of its children is a sign of activity, too.",
    (
        "rules/policy_file/declarations.py",
        "code: CodeType = field(repr=False, compare=False)",
        "code: CodeType = field(repr=False, compare=True)",
    ): "Equal texts have equal code.",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one place changed.

    Attributes:
        path: The module, relative to the root.
        line: Of the place, from 1.
        start, end: Of the place, as bytes of the file.
        text: The replacement.
    """

    path: str
    line: int
    start: int
    end: int
    text: str

    def source(self) -> bytes:
        """The module with the change."""
        source = (ROOT / self.path).read_bytes()
        return source[: self.start] + self.text.encode() + source[self.end :]

    def key(self) -> tuple[str, str, str]:
        """The path, the line as it is and the line as it becomes, up to their ends."""
        before, after = (ROOT / self.path).read_bytes(), self.source()
        return self.path, _line_at(before, self.start), _line_at(after, self.start)


class _Places(ast.NodeVisitor):
    """Finds the places of a module that can be changed. Annotations, texts and decorators are left out."""

    def __init__(self, path: str) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._source = (ROOT / path).read_bytes()
        self._starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.visit(ast.parse(self._source))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *(value for value in node.args.kw_defaults if value)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not (isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"):
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, sign, right in zip((node.left, *node.comparators), node.ops, node.comparators, strict=False):
            self._swap(left, right, *COMPARISONS[type(sign)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self._swap(node.left, node.right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._swap(node.values[0], node.values[1], *BOOLEANS[type(node.op)])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if type(node.op) in SIGNS:
            self._add(node, self._start(node), self._start(node) + len(SIGNS[type(node.op)]), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, repr(node.value + 1))

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # It guards against mistakes of the code alone.
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        says_no = isinstance(node.value, ast.Constant) and node.value.value in (None, False)  # Callers ask for truth.
        if node.value is not None and not says_no:
            self._replace(node, "return None")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts are left out."""

    def _negate(self, test: ast.expr) -> None:
        if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            self._add(test, self._start(test), self._start(test), "not ")

    def _swap(self, left: ast.expr, right: ast.expr, sign: str, other: str) -> None:
        at = self._source.find(sign.encode(), self._end(left), self._start(right))
        if at >= 0:
            self._add(left, at, at + len(sign), other)

    def _replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        self._add(node, self._start(node), self._end(node), text)

    def _add(self, node: ast.expr | ast.stmt, start: int, end: int, text: str) -> None:
        self.found.append(Mutant(self._path, node.lineno, start, end, text))

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset


class Reach:
    """Which tests reach a line, and what they take."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._unmeasured: set[str] = set()
        for case in ElementTree.parse(SECONDS).iter("testcase"):
            path = case.attrib["classname"].replace(".", "/") + ".py"
            self._seconds[f"{path}::{case.attrib['name'].partition('[')[0]}"] += float(case.attrib["time"])
            if any("coverage is measured" in skip.attrib["message"] for skip in case.iter("skipped")):
                self._unmeasured.add(f"{path}::{case.attrib['name'].partition('[')[0]}")
        self._data = CoverageData(str(REACHED))
        self._data.read()

    def tests(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the tests of a line, as pytest names them: the quickest, and some of the others.

        If the line runs at import or in another process, too, add those of its module; if no test is known, all of its
        room. Tests of its room that are left out while coverage is measured come last.
        """
        by_line = self._data.contexts_by_lineno(str(ROOT / mutant.path))
        contexts = set(by_line.get(mutant.line, [""]))
        if "" in contexts:
            contexts.update(*by_line.values())
        room = f"tests/test_{mutant.path.partition('/')[0]}_"
        tests = contexts & self._seconds.keys() or {test for test in self._seconds if test.startswith(room)}
        known = sorted(tests - self._unmeasured, key=self._seconds.__getitem__)
        seconds = list(itertools.accumulate(map(self._seconds.__getitem__, known)))
        first, last = bisect.bisect(seconds, FIRST_SECONDS), bisect.bisect(seconds, ALL_SECONDS)
        unmeasured = sorted(test for test in self._unmeasured if test.startswith(room))
        return known[:first], [*known[first:last], *unmeasured]


def main() -> None:
    """Draw changes, try them, print the survivors and the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="these modules and no others")
    arguments = parser.parse_args()
    reach = Reach()
    modules = {str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    paths = arguments.only or sorted(modules.difference(DRAWING, ELSEWHERE))
    places = [mutant for path in paths for mutant in _Places(path).found if mutant.key() not in EQUIVALENT]
    drawn = random.Random(arguments.seed).sample(places, min(arguments.count, len(places)))
    print(f"{len(drawn)} of {len(places)} changes", flush=True)
    tried: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    with ThreadPoolExecutor(arguments.processes) as pool, tempfile.TemporaryDirectory() as place:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(arguments.processes):
            trees.put(copied_to(Path(place) / str(number)))
        answers = pool.map(lambda mutant: is_noticed(mutant, reach, trees), drawn)
        for mutant, was_noticed in zip(drawn, answers, strict=True):
            room = mutant.path.partition("/")[0]
            tried[room] += 1
            if not tried.total() % 10:
                print(f"{tried.total()} tried", flush=True)
            noticed[room] += was_noticed
            if not was_noticed:
                path, before, after = mutant.key()
                print(f"{tried.total()}: survived: {path}:{mutant.line}\n  - {before}\n  + {after}", flush=True)
    for room in tried:
        print(f"{room:10}{noticed[room]:4} of {tried[room]:4}")
    print(f"{noticed.total()} of {tried.total()} changes were noticed: {noticed.total() / tried.total():.0%}")


def copied_to(place: Path) -> Path:
    """Copy the project, with an environment that imports the copy, whatever ``PYTHONPATH`` a test sets."""
    hidden = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    left_behind = {str(ROOT): {"build", "runs"}}
    shutil.copytree(
        ROOT, place, ignore=lambda folder, names: hidden(folder, names) | left_behind.get(str(folder), set())
    )
    package = place / ".package" / "steptape"
    package.mkdir(parents=True)
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for path in (place / folders.pop("steptape")).iterdir():
        (package / path.name).symlink_to(path)
    for name, folder in folders.items():
        (package / name.removeprefix("steptape.")).symlink_to(place / folder)
    venv.create(place / ".venv", symlinks=True)
    python, here = python_of(place), sysconfig.get_path("purelib")
    (purelib,) = place.glob(".venv/lib/python*/site-packages")
    (purelib / "copy.pth").write_text(f"{package.parent}\n{here}\n")
    command = python.with_name("steptape")
    command.write_text(f"#!{python}\nfrom steptape.__main__ import main\nmain()\n")
    command.chmod(0o755)
    program = "import steptape.store.run as module; print(module.__file__)"
    found = subprocess.run([python, "-P", "-c", program], check=True, capture_output=True, text=True).stdout
    assert found.startswith(str(place)), f"tests would run the code of {found}"
    return place


def python_of(tree: Path) -> Path:
    """Return the interpreter of a copy."""
    return tree / ".venv" / "bin" / "python"


def is_noticed(mutant: Mutant, reach: Reach, trees: queue.SimpleQueue[Path]) -> bool:
    """Whether a test fails, or does not end, with the change."""
    tree = trees.get()
    try:
        if not (tree / mutant.path).exists():  # A change before made the code delete it.
            shutil.rmtree(tree)
            copied_to(tree)
        for tests in filter(None, reach.tests(mutant)):
            with changed(tree / mutant.path, mutant.source()):
                failed = failing([str(tree / test) for test in tests], tree)
            if failed and not (again := failing(failed, tree)):
                return True
            if failed:
                print(f"fails without the change, too: {again[0]}", flush=True)
        return False
    finally:
        trees.put(tree)


@contextmanager
def changed(path: Path, source: bytes) -> Iterator[None]:
    """Have a file with other content, and no compiled file of it before and after."""
    original = path.read_bytes()
    compiled = list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))
    try:
        for stale in compiled:
            stale.unlink()
        path.write_bytes(source)
        yield
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(original)
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()


def failing(tests: Sequence[str], tree: Path) -> list[str]:
    """Return the test that fails first in a copy of the project. Return all tests if they hang, none if they pass."""
    options = ["--quick", "--exitfirst", "--quiet", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
    with tempfile.TemporaryFile("w+") as said:  # A process that the tests leave behind would keep a pipe open.
        process = subprocess.Popen(
            [python_of(tree), "-m", "pytest", *options, *tests],
            cwd=tree / ".package",  # Where Python looks first, the package is whole.
            env={**os.environ, "STEPTAPE_PATIENCE_S": str(MOST_SECONDS / 5)},
            stdout=said,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            is_passed = process.wait(timeout=MOST_SECONDS) == 0
        except subprocess.TimeoutExpired:
            return [*tests]
        finally:
            # What the tests started, too: a change can make them leave processes behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        named = re.findall(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\s[]+)?)", said.read(), re.MULTILINE)
    return [] if is_passed else named or [*tests]


def _line_at(source: bytes, offset: int) -> str:
    start, end = source.rfind(b"\n", 0, offset) + 1, source.find(b"\n", offset)
    return source[start : end if end >= 0 else None].decode().strip()


if __name__ == "__main__":
    main()
