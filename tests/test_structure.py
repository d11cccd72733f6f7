"""The rooms of the package: imports run one way, importing normcheck loads nothing heavy, public names are documented."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import normcheck

PACKAGE = Path(normcheck.__file__).parent
TESTS = Path(__file__).parent

FLOORS = (
    ("formats", "norms", "contract", "spelling", "stored"),
    ("reference", "bounds", "gradient_bounds", "cells", "regimes"),
    ("implementations", "faults", "results"),
    ("checks",),
    ("engine", "audit", "born", "ledger", "models", "zoo", "history", "merging", "identify", "power", "depth"),
    ("reporters",),
    (
        *("recipes", "variation", "hunt", "flags", "options", "topics", "console", "judging", "commands", "past"),
        *("strategies", "testing", "pytest_plugin", "cli"),
    ),
    ("__main__",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# rooms that are entered for the sake of a package
ASKED_FOR = {"strategies": {"hypothesis"}, "testing": {"pytest"}, "pytest_plugin": {"pytest"}}
REACHES_UP = {"audit": {"reporters"}}  # Audit.write, inside the function
HEAVY = {"torch", "jax", "matplotlib", "numba", "flint", "mpmath", "onnx", "onnxruntime", "transformers", "pytest", "hypothesis"}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of every import, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _rooms_imported(path: Path) -> set[str]:
    """The other rooms of the package that a module imports, by name or through the package's public names."""
    rooms = set()
    for module, name in _imports(ast.parse(path.read_text(encoding="utf-8"))):
        parts = module.split(".")
        if parts[0] != "normcheck" or (module, name) == ("normcheck", "__version__"):
            continue
        rooms.add(parts[1] if len(parts) > 1 else name or "normcheck")
    return rooms - {_room(path)}


def test_every_room_has_a_floor() -> None:
    """A new room is given its place in the order of imports."""
    assert {_room(path) for path in _modules()} - {"__init__"} <= set(FLOOR)


@pytest.mark.parametrize("path", [p for p in _modules() if _room(p) != "__init__"], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    """No module imports from a higher floor; the whole package stands above all but the command line."""
    floor = FLOOR[_room(path)]
    top = FLOOR["cli"]
    higher = {room for room in _rooms_imported(path) if FLOOR.get(room, top) > floor}
    assert higher - REACHES_UP.get(_room(path), set()) == set()


def test_rooms_import_each_other_in_no_circle() -> None:
    """Rooms of one floor may use each other, but not both ways."""
    graph: dict[str, set[str]] = {}
    for path in _modules():
        if _room(path) != "__init__":
            allowed = REACHES_UP.get(_room(path), set())
            graph.setdefault(_room(path), set()).update(_rooms_imported(path) & set(FLOOR) - allowed)
    assert set(graph) <= set(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_optional_packages_are_imported_when_they_are_needed(path: Path) -> None:
    """No module imports a framework, a plotting or a test package when it is loaded."""
    top = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Import | ast.ImportFrom)]
    loaded = {module.split(".")[0] for node in top for module, _ in _imports(ast.Module([node], []))}
    assert loaded & HEAVY - ASKED_FOR.get(_room(path), set()) == set()


def _fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=PACKAGE.parent).stdout


def test_import_loads_nothing_heavy() -> None:
    """``import normcheck`` loads neither numpy, scipy, torch, matplotlib nor pytest."""
    heavy = {"numpy", "scipy", "joblib", "rich", "click", "jinja2", "ml_dtypes", *HEAVY}
    assert _fresh(f"import sys, normcheck; print(sorted({heavy!r} & set(sys.modules)))").strip() == "[]"


def test_command_line_loads_no_framework() -> None:
    """The command line starts without any optional package."""
    assert _fresh(f"import sys, normcheck.cli; print(sorted({HEAVY!r} & set(sys.modules)))").strip() == "[]"


def test_public_functions_are_not_hidden_by_modules_of_their_name() -> None:
    """``normcheck.reference`` is the function, also after the package of that name was imported."""
    loaded = "import normcheck, normcheck.reference as r\nfrom normcheck.reference import certify\n"
    assert _fresh(f"{loaded}print(r is normcheck.reference, callable(r))").strip() == "True True"


def test_unknown_public_name_is_refused() -> None:
    """A name that the package does not have raises AttributeError that names it."""
    with pytest.raises(AttributeError, match="no attribute 'LayerNrom'"):
        normcheck.LayerNrom  # noqa: B018


@pytest.mark.parametrize("name", normcheck.__all__)
def test_public_names_are_documented(name: str) -> None:
    """Every public name has a docstring of its own and is listed by ``dir``."""
    value = getattr(normcheck, name)
    assert name in dir(normcheck)
    assert (value.__doc__ or "").strip()
    assert not value.__doc__.startswith(f"{name}("), "the docstring that dataclasses make is none"


def _test_functions() -> Iterator[ast.FunctionDef]:
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node


def test_every_test_states_a_behaviour() -> None:
    """Every test has a docstring."""
    assert [node.name for node in _test_functions() if not ast.get_docstring(node)] == []
