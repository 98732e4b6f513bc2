"""Public names are declared once, in alphabetical order, and change only on purpose."""

import ast
import importlib.metadata
import re
from pathlib import Path

import pytest

import ropewalk

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "ropewalk").rglob("*.py"))
MODULES = [path for path in SOURCES if path.name != "__main__.py" and not re.match(r"_[^_]", path.name)]

PUBLIC = [
    "ConfigError",
    "Geometric",
    "InputError",
    "MissingPartError",
    "Pairing",
    "Part",
    "RopewalkError",
    "Rotary",
    "Table",
    "__version__",
    "kernels",
    "positions",
    "rotate",
    "rotate_both",
]
"""What `from ropewalk import ...` offers; a change here is a change of the public face and belongs in the changelog."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT / "src"))


def declared(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names: list[str] = ast.literal_eval(value)
                return names
            case _:
                pass
    return None


def bound(tree: ast.Module) -> set[str]:
    """The names that the module's top level binds, inside `if` and `try` too, but not inside functions or classes."""
    names: set[str] = set()
    queue: list[ast.AST] = list(tree.body)
    while queue:
        match queue.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update((alias.asname or alias.name).split(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case node:
                queue.extend(ast.iter_child_nodes(node))
    return names


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_declares_its_public_names_in_order(path: Path) -> None:
    names = declared(ast.parse(path.read_text(encoding="utf-8")))
    assert names is not None, "the module has no __all__"
    assert names == sorted(set(names))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_declared_name_exists(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert set(declared(tree) or ()) - bound(tree) == set()


def test_the_public_face_is_exactly_this() -> None:
    assert sorted(ropewalk.__all__) == PUBLIC
    assert [name for name in PUBLIC if not hasattr(ropewalk, name)] == []


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    assert ropewalk.__version__ == importlib.metadata.version("ropewalk")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\d\S*)", changelog, flags=re.MULTILINE)[0] == ropewalk.__version__
