"""Every import respects the architecture: rooms, sub-rooms, public modules, owners of dependencies, lazy loading."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from package_modules import module_names

import steptape

ROOT = Path(__file__).resolve().parents[1]

#: The rooms that each room may import, besides itself.
ROOMS: dict[str, set[str]] = {
    "store": set(),
    "rules": {"store"},
    "shipping": {"store"},
    "recorder": {"rules", "store"},
    "importers": {"store"},
    # Nothing imports integrations but the user's own loop.
    "integrations": {"importers", "recorder", "rules", "store"},
    "replay": {"rules", "store"},
    "api": {"replay", "rules", "shipping", "store"},
    "examples": {"recorder", "rules", "store"},
    "cli": {"api", "examples", "importers", "replay", "rules", "shipping", "store"},
    # The front door imports what it names, each name at its first use.
    "steptape": {"cli", "recorder", "replay", "rules", "store"},
}

#: The sub-rooms of each room, and what each may import within its room. "." are the modules outside sub-rooms.
SUBROOMS: dict[str, dict[str, set[str]]] = {
    "store": {
        "objects": {"."},
        "journal": {"."},
        "parquet": {".", "journal", "objects"},
        "reading": {".", "journal", "objects", "parquet"},
        "sql": {".", "objects", "parquet", "reading"},
    },
    "rules": {
        "functions": {"."},
        "readings": {".", "functions"},
        "language": {".", "functions", "readings"},
        "compiled": {".", "functions", "language", "readings"},
        "policy_file": {".", "functions", "language", "readings", "compiled"},
        "engine": {".", "functions", "language", "readings", "compiled", "policy_file"},
        "checks": {".", "functions", "language", "readings", "policy_file"},
        "scenarios": {".", "functions", "language", "readings", "policy_file", "engine"},
    },
    "recorder": {
        ".": {"calls", "operations", "probes", "process", "ranks"},
        "calls": {"."},
        "operations": {".", "calls"},
        "probes": {".", "operations"},
        "process": set(),
        "ranks": {".", "calls", "operations"},
    },
    "shipping": {},
    "importers": {
        ".": {"encodings"},
        "encodings": {"."},
        "readers": {".", "encodings"},
    },
    "replay": {
        "runs": {"."},
        "policies": {".", "runs"},
        "health": {".", "policies", "runs"},
        "backtests": {".", "columns", "policies", "runs", "sweeps"},
        "columns": {"runs"},
        "sweeps": {".", "columns", "runs"},
        "choosing": {".", "columns", "runs", "sweeps"},
        "comparing": {".", "runs"},
        "reports": {".", "backtests", "choosing", "policies", "runs", "sweeps"},
    },
    "api": {
        "middleware": {"."},
        "workers": {".", "middleware"},
        "endpoints": {".", "middleware", "workers"},
        "pages": {".", "endpoints", "middleware", "workers"},
    },
    "examples": {},
    "integrations": {},
    "cli": {"commands": {"."}},
    "steptape": {},
}

#: Modules outside the sub-rooms that import them. No sub-room imports one of these.
ROOF = {
    "store": {"questions", "run", "run_fields", "store"},
    "rules": {"certificate"},
    "api": {"app", "server"},
    "importers": {"discovery", "importing"},
    "cli": {"app"},
}

#: The modules of each room that other rooms may import. All others are private to the room.
PUBLIC: dict[str, set[str]] = {
    "store": {
        "amounts",
        "annotations",
        "arrow_tables",
        "child_process",
        "child_protocol",
        "columns",
        "errors",
        "event_json",
        "events",
        "journal/format",
        "journal/segment_reading",
        "journal/segment",
        "journal/writer",
        "lineage",
        "metric_words",
        "notices",
        "objects/mirror_access",
        "objects/bucket",
        "objects/manifest",
        "own_process",
        "parquet/digests",
        "parquet/event_rows",
        "parquet/sealing",
        "parquet/tables",
        "parquet/to_journal",
        "plan",
        "questions",
        "reading/catalog",
        "reading/diagnosis",
        "reading/headline",
        "reading/notebook",
        "reading/plot_data",
        "reading/snapshot",
        "reading/summary",
        "reading/svg",
        "reading/tally",
        "reading/training",
        "redaction",
        "run",
        "run_fields",
        "run_folder",
        "run_info",
        "sql/statements",
        "store",
        "user_cache",
    },
    "rules": {
        "certificate",
        "checks/finding_codes",
        "checks/findings",
        "checks/length_conditions",
        "checks/possible_firings",
        "effects",
        "engine/decisions",
        "engine/engine",
        "engine/gates",
        "engine/outcomes",
        "errors",
        "functions/expert_loads",
        "functions/operators",
        "functions/plain_functions",
        "functions/reductions",
        "functions/undefined",
        "language/bound_rule",
        "language/clock",
        "language/expressions",
        "language/name_patterns",
        "language/rule_parts",
        "metric_catalogue",
        "policy_file/declarations",
        "policy_file/metrics",
        "policy_file/policy",
        "policy_file/sentences",
        "readings/first_events",
        "readings/milestone",
        "readings/past_decisions",
        "readings/reading",
        "readings/table",
        "readings/vectors",
        "scenarios/file",
        "scenarios/run",
    },
    "shipping": {
        "intake",
        "push_protocol",
        "store_push",
    },
    "recorder": {
        "advice",
        "arguments",
        "process/termination",
        "ranks/rank",
        "recorder",
    },
    "integrations": set(),
    "importers": {
        "call_steps",
        "discovery",
        "importing",
        "rows",
        "source",
    },
    "replay": {
        "backtests/backtesting",
        "backtests/baselines",
        "choosing/certification_report",
        "choosing/certifying",
        "choosing/out_of_sample",
        "choosing/population",
        "columns/variants",
        "comparing/comparing",
        "comparing/group_comparison",
        "health/health",
        "health/health_summary",
        "policies/automatic_renames",
        "policies/findings_on_runs",
        "policies/proposing",
        "policies/run_accounts",
        "ray_pool",
        "reports/diff",
        "reports/html",
        "reports/json_report",
        "reports/page",
        "reports/recommendation",
        "reports/result",
        "reports/summary",
        "reports/sweep_report",
        "reports/terminal",
        "run_pool",
        "runs/event_stream",
        "runs/incidents",
        "runs/objective",
        "runs/replaying",
        "runs/risk",
        "runs/run_result",
        "runs/verification",
        "sweeps/quick_firings",
        "sweeps/sweeping",
    },
    "api": {
        "logs",
        "server",
    },
    "cli": {
        "app",
    },
    "examples": {
        "settings",
    },
}

#: Heavy or third-party dependencies and their owners: rooms, sub-rooms or modules. A dependency that is neither listed
#: here nor in the standard library is an error too.
OWNERS = {
    "boto3": {"store/objects/bucket"},
    "botocore": {"store/objects/bucket"},
    "urllib3": {"store/objects/bucket"},
    "duckdb": {"store"},
    "isal": {"store"},
    # Importers use it to read tables that other tools exported.
    "pyarrow": {"store", "importers"},
    # Rules sum long windows with it, in the order of `rules/functions/reductions.py`; the engine loads without it. A
    # sweep evaluates a rule at all events at once, over numpy's arrays.
    # Stable-Baselines3's evaluations are numpy's arrays, and plain tables are read by columns.
    "numpy": {"store", "rules", "replay", "importers/plain_tables", "importers/readers", "examples", "shipping"},
    "simpleeval": {"rules"},
    # A script keeps its configuration in its run's folder.
    "yaml": {"rules", "importers/companions"},
    "torch": {"recorder", "examples", "integrations"},
    "d9d": {"integrations/d9d"},
    "psutil": {"recorder/process/sampling_service"},
    "pynvml": {"recorder/process/sampling_service"},
    "polars": {"replay"},
    "apprise": {"store/notices"},
    "anyio": {"api"},
    "fastapi": {"api"},
    "starlette": {"api"},
    "pydantic": {"api"},
    "pydantic_core": {"api"},
    "uvicorn": {"api"},
    "jinja2": {"replay/reports"},
    "ray": {"replay/ray_pool"},
    "markupsafe": {"api", "replay/reports", "store/reading/notebook", "store/reading/svg"},
    "typer": {"cli"},
    "rich": {"cli/output"},
    "sklearn": {"examples"},
    "wandb": {"integrations/wandb"},
    "accelerate": {"integrations/accelerate"},
    "keras": {"integrations/keras"},
    "lightning": {"integrations/lightning"},
    "pytorch_lightning": {"integrations/lightning"},
    "stable_baselines3": {"integrations/stable_baselines3"},
    "transformers": {"integrations/transformers"},
}

#: The most modules that import each other one after the other; the bound only falls. Imports within functions and for
#: types alone count, too. Without these the longest chain is 20.
LONGEST_CHAIN = 22

#: The classes with more than 25 methods, and why each has them. The list only shrinks.
WIDE_CLASSES = {
    "Recorder": "Users call it: a method for each fact that a loop records.",
}


def source_files() -> list[Path]:
    """Return every module of the package. Scripts that users copy are no modules."""
    paths = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return sorted(path for path in paths if ROOT / "examples" / "scripts" not in path.parents)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a module; each is read once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[tuple[int, int, str, tuple[str, ...]]]:
    """Yield line, level, dotted name and imported names of every import, also in functions and ``if TYPE_CHECKING``."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module or "", tuple(alias.name for alias in node.names)


def imported_modules(path: Path, level: int, name: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the modules that a relative import reaches, as paths below the root without ``.py``."""
    folder = path.parent
    for _ in range(level - 1):
        folder = folder.parent
    if folder == ROOT / "steptape" and not (folder / f"{name.split('.')[0]}.py").exists():
        folder = ROOT  # The front door's sub-packages are its sibling folders.
    target = folder / name.replace(".", "/")
    for each in names:
        module = target / each
        is_module = module.with_suffix(".py").exists() or module.is_dir()
        yield (module if is_module else target).relative_to(ROOT).as_posix()


def owns(path: Path, dependency: str) -> bool:
    """Whether a dependency belongs to this module or to a room or sub-room that contains it."""
    place = path.relative_to(ROOT).with_suffix("")
    return any(each.as_posix() in OWNERS.get(dependency, set()) for each in (place, *place.parents))


def subroom_of(module: str) -> str:
    """Return the sub-room of a module; "." for a module outside the sub-rooms."""
    room, *inner = module.split("/")
    return inner[0] if inner and inner[0] in SUBROOMS[room] else "."


def room_violation(path: Path, module: str) -> str | None:
    """Return the fault of a relative import, or None."""
    place = path.relative_to(ROOT).with_suffix("").as_posix()
    room, target = place.split("/")[0], module.split("/")[0]
    inner = module.partition("/")[2]
    if target != room:
        if target not in ROOMS[room]:
            return f"{room} must not import {target}"
        return None if inner in PUBLIC[target] else f"{module} is not public; {target} offers {sorted(PUBLIC[target])}"
    subroom, reached = subroom_of(place), subroom_of(module)
    if subroom == reached:
        return None
    if subroom == "." and place.partition("/")[2] in ROOF.get(room, set()):
        return None
    if reached == "." and inner in ROOF.get(room, set()):
        return f"{room}/{subroom} must not import the roof {module}"
    allowed = SUBROOMS[room].get(subroom, set())
    return None if reached in allowed else f"{room}/{subroom} must not import {room}/{reached}"


def violations(path: Path) -> Iterator[str]:
    """Yield one sentence per violation, with its line."""
    place = path.relative_to(ROOT)
    for line, level, name, names in imports_of(path):
        where = f"{place}:{line}"
        top = name.split(".")[0]
        if level == 0:
            if top == "steptape":
                yield f"{where}: inside the package imports are relative; got {name!r}"
            elif top not in sys.stdlib_module_names and not owns(path, top):
                yield f"{where}: {top!r} is not owned here; owners: {sorted(OWNERS.get(top, set())) or 'nobody'}"
            continue
        for module in imported_modules(path, level, name, names):
            if (wrong := room_violation(path, module)) is not None:
                yield f"{where}: {wrong}"


@pytest.mark.only_one
def test_every_module_imports_only_what_its_room_and_sub_room_may() -> None:
    """Arrows point one way, rooms import only public modules, and each heavy dependency has its owner."""
    assert [found for path in source_files() for found in violations(path)] == []


@pytest.mark.parametrize(
    ("module", "line", "message"),
    [
        ("api/bad.py", "from ..recorder.recorder import Recorder", "api must not import recorder"),
        ("rules/engine/bad.py", "from ..scenarios.run import run_test", "rules/engine must not import rules/scenarios"),
        ("store/journal/bad.py", "from ..run import Run", "store/journal must not import the roof store/run"),
        (
            "store/bad.py",
            "from .sql.views import connect",
            "store/. must not import store/sql",
        ),
        ("replay/runs/bad.py", "from ...store.journal.syncing import X", "store/journal/syncing is not public; "),
        ("rules/bad.py", "import sklearn", "'sklearn' is not owned here; owners: ['examples']"),
        ("replay/runs/bad.py", "import jinja2", "'jinja2' is not owned here; owners: ['replay/reports']"),
        ("rules/bad.py", "import steptape.store", "inside the package imports are relative; got 'steptape.store'"),
        ("rules/bad.py", "import requests", "'requests' is not owned here; owners: nobody"),
    ],
)
def test_a_planted_violation_is_named_with_its_line(
    module: str, line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker finds each kind of forbidden import, inside a function too."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / module
    path.parent.mkdir(parents=True)
    path.write_text(f"def f():\n    {line}\n")

    found = list(violations(path))

    assert len(found) == 1
    assert found[0].startswith(f"{module}:2: {message}")


def reachable(arrows: dict[str, set[str]], start: str) -> set[str]:
    """Return everything reachable over allowed arrows from one place."""
    direct = arrows[start] - {".", start}
    return direct.union(*(reachable(arrows, other) for other in direct))


@pytest.mark.parametrize("arrows", [ROOMS, *SUBROOMS.values()], ids=["rooms", *SUBROOMS])
def test_allowed_arrows_make_no_circle(arrows: dict[str, set[str]]) -> None:
    """Following the arrows from any place never leads back to it."""
    assert all(place not in reachable(arrows, place) for place in arrows)


@pytest.mark.only_one
def test_modules_do_not_import_in_a_circle_or_a_long_chain() -> None:
    """No module reaches itself by following imports, and none needs more modules one after the other than the bound."""
    graph = {
        path.relative_to(ROOT).with_suffix("").as_posix(): {
            module
            for _, level, name, names in imports_of(path)
            if level
            for module in imported_modules(path, level, name, names)
        }
        for path in source_files()
    }
    chains: dict[str, tuple[str, ...]] = {}

    def chain(module: str, above: tuple[str, ...]) -> tuple[str, ...]:
        assert module not in above, " -> ".join((*above, module))
        if module not in chains:
            below = (chain(other, (*above, module)) for other in sorted(graph.get(module, ())))
            chains[module] = (module, *max(below, key=len, default=()))
        return chains[module]

    longest = max((chain(module, ()) for module in sorted(graph)), key=len)

    assert len(longest) <= LONGEST_CHAIN, " -> ".join(longest)


def test_no_class_is_wide_but_those_with_a_reason() -> None:
    """A class has 25 methods at most, its bases included: inheritance splits no file. Frameworks set their hooks."""
    classes: dict[str, tuple[set[str], list[str]]] = {}
    for path in (path for path in source_files() if path.parent.name != "integrations"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                own = {each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
                classes[node.name] = own, [ast.unparse(base).partition("[")[0] for base in node.bases]

    def methods(name: str) -> set[str]:
        own, bases = classes.get(name, (set(), []))
        return own.union(*map(methods, bases))

    assert {name for name in classes if len(methods(name)) > 25} == WIDE_CLASSES.keys()


def test_every_folder_is_a_listed_sub_room() -> None:
    """Each folder of modules is named here and in the packaging, which adds documents."""
    folders = {path.parent.relative_to(ROOT).as_posix() for path in source_files()}
    listed = {*ROOMS, *(f"{room}/{sub}" for room, subs in SUBROOMS.items() for sub in subs if sub != ".")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {name.partition(".")[2].replace(".", "/") or name for name in project["tool"]["setuptools"]["packages"]}

    assert folders == listed == packages - {"reference"}


def test_every_public_module_exists_and_is_imported_by_another_room() -> None:
    """The list of public modules has no unneeded entry."""
    used = {
        module
        for path in source_files()
        for _, level, name, names in imports_of(path)
        if level
        for module in imported_modules(path, level, name, names)
        if module.split("/")[0] != path.relative_to(ROOT).parts[0]
    }

    assert {f"{room}/{module}" for room, modules in PUBLIC.items() for module in modules} == used


def test_rooms_and_sub_rooms_offer_no_names_of_their_own() -> None:
    """Module paths are the API: an ``__init__.py`` holds only a docstring, except in the front door."""
    for path in source_files():
        if path.name == "__init__.py" and path.parent != ROOT / "steptape":
            (only,) = tree_of(path).body
            assert isinstance(only, ast.Expr), path


def test_no_module_stands_at_the_root() -> None:
    """The build's script alone is there: an ``__init__.py`` would make tools depend on the folder's name."""
    assert [path.name for path in ROOT.glob("*.py")] == ["setup.py"]


@pytest.mark.only_one
def test_no_two_classes_share_a_name() -> None:
    """A name means one thing in the whole package. Each framework's callback may have the same name."""
    places: dict[str, list[str]] = {}
    for path in (path for path in source_files() if path.parent.name != "integrations"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_importing_the_front_door_loads_nothing_else() -> None:
    """It loads neither numpy nor yaml nor any module of a room."""
    script = "import sys, steptape; print(sorted(n for n in sys.modules if n in ('numpy', 'yaml') or 'steptape.' in n))"

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"


def test_every_name_of_the_front_door_is_what_its_module_calls_so() -> None:
    """This holds in both orders and after all modules are loaded: no sub-package replaces a name."""
    script = textwrap.dedent("""
        import importlib, sys, types, steptape
        for name in sys.argv[1].split():
            importlib.import_module(name)
        for name in sys.argv[2:]:
            assert not isinstance(getattr(steptape, name), types.ModuleType), name
        assert set(sys.argv[2:]) <= set(dir(steptape))
        print("fine")
    """)

    names = sorted(steptape.__all__)
    for loaded, order in (("", names), ("", names[::-1]), (" ".join(module_names()), names)):
        command = [sys.executable, "-c", script, loaded, *order]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "fine\n"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = steptape.nothing


def test_no_public_function_shares_its_name_with_a_sub_room() -> None:
    """The folder ``replay.backtests`` never hides the function ``backtest``."""
    functions = {
        (path.relative_to(ROOT).parts[0], node.name)
        for path in source_files()
        for node in tree_of(path).body
        if isinstance(node, ast.FunctionDef)
    }

    assert set(steptape.__all__) & set(ROOMS) == set()
    assert [(room, name) for room, name in functions if name in SUBROOMS[room]] == []


def test_nothing_in_rules_or_replay_reads_a_clock_a_random_number_or_the_network() -> None:
    """The engine is a pure fold: its decisions depend on events and policy only."""
    impure = {
        "time",
        "random",
        "secrets",
        "socket",
        "urllib",
        "http",
        "os",
        "threading",
        "subprocess",
        "datetime",
        "asyncio",
    }
    sizes_blocks = "run_pool: time"  # How long a block took decides how many runs the next one holds, and no result.
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for room in ("rules", "replay")
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, level, name, _ in imports_of(path)
        if level == 0 and name.split(".")[0] in impure and f"{path.stem}: {name}" != sizes_blocks
    ]

    assert found == []


def test_a_loop_that_logs_floats_loads_neither_torch_nor_duckdb(tmp_path: Path) -> None:
    """An instrumented loop loads only what it uses."""
    script = textwrap.dedent("""
        import sys
        from steptape import Recorder
        with Recorder(sys.argv[1], rules=sys.argv[2]) as rec:
            for loss in (3.0, 2.0, 1.0):
                rec.step(loss=loss, samples=[loss, loss], sample_ids=[1, 2])
        print(sorted({"torch", "duckdb", "pyarrow", "polars", "fastapi", "numpy"} & set(sys.modules)))
    """)
    policy = ROOT / "rules" / "policies" / "overfitting.yaml"

    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "runs"), str(policy)], capture_output=True, text=True, check=True
    )

    assert result.stdout == "[]\n"


def test_the_server_and_the_command_line_load_without_torch() -> None:
    """All modules except two examples, the probes of a model and its restore points import without torch."""
    script = textwrap.dedent("""
        import sys
        sys.modules["torch"] = None
        import importlib
        for name in sys.argv[1:]:
            importlib.import_module(name)
        print("loaded")
    """)

    examples = {"steptape.examples.digits", "steptape.examples.spiking_transformer"}
    of_models = ("steptape.recorder.probes.", "steptape.recorder.operations.restore_points")
    names = [name for name in module_names() if name not in examples and not name.startswith(of_models)]
    command = [sys.executable, "-c", script, *names]
    result = subprocess.run(command, capture_output=True, text=True, check=True)

    assert result.stdout == "loaded\n"


def test_the_help_of_every_command_loads_neither_the_engine_nor_a_heavy_package() -> None:
    """The arguments of a command load no other room but the errors and the names of findings; 'check' reads no run."""
    script = textwrap.dedent("""
        import contextlib, io, sys
        from steptape.cli.app import GROUPS, main
        for command in [name for group in GROUPS.values() for name in group] + ["--help"]:
            sys.argv = ["steptape", command, "--help"]
            with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
                main()
            assert "Usage:" in printed.getvalue(), command
        heavy = {"duckdb", "fastapi", "jinja2", "numpy", "polars", "pyarrow", "rich", "yaml"} & set(sys.modules)
        own = {name for name in sys.modules if name.startswith("steptape.") and not name.startswith("steptape.cli")}
        print(sorted(heavy), sorted(name for name in own if name.count(".") > 1))
        sys.argv = ["steptape", "check", "loss_spike"]
        with contextlib.suppress(SystemExit):
            main()
        print(sorted({"duckdb", "numpy", "polars", "pyarrow"} & set(sys.modules)))
    """)

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    light = ["steptape.rules.checks", "steptape.rules.checks.finding_codes", "steptape.store.errors"]
    help_loads, checked, check_loads = result.stdout.splitlines()
    assert (help_loads, check_loads) == (f"[] {light}", "[]")
    assert ": fine, " in checked


def test_a_server_starts_without_what_only_its_other_processes_need() -> None:
    """Queries, backtests and sweeps run in other processes: opening the page waits for none of their modules."""
    script = textwrap.dedent("""
        import sys
        import steptape.cli.app, steptape.api.app, steptape.api.middleware.connections
        heavy = {"duckdb", "polars"}
        engines = ("steptape.replay.backtests", "steptape.rules.checks.findings", "steptape.rules.engine")
        print(sorted(name for name in sys.modules if name in heavy or name.startswith(engines)))
    """)

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"
