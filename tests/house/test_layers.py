"""Imports point left: a room knows the rooms before it and none after it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "ropewalk"

ROOMS = (
    "errors",
    "pairing",
    "numerics",
    "kernels",
    "positions",
    "frequencies",
    "phase",
    "rotation",
    "encodings",
    "interop",
    "attention",
    "models",
    "text",
    "training",
    "tasks",
    "analysis",
    "workbench",
    "explorer",
    "cli",
)
"""From left to right; a room that is not here has no place yet."""

ANYWHERE = ("__init__", "__main__")
"""The two modules of the package itself that may import every room."""


def room_of(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def module_name(path: Path, package: Path) -> tuple[str, ...]:
    """The package that `path` belongs to, as relative imports count it: ("ropewalk", "kernels") for a file there."""
    return (package.name, *path.relative_to(package).parts[:-1])


def imported_modules(path: Path, package: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Every module or name that the file imports: at the top, in functions, for type checkers, by a string."""
    home = module_name(path, package)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, tuple(alias.name.split("."))) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                start = home[: len(home) - level + 1] if level else ()
                origin = (*start, *(module.split(".") if module else ()))
                yield from ((node.lineno, (*origin, alias.name)) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, tuple(name.split("."))
            case _:
                pass


def breaches(package: Path) -> list[str]:
    """One sentence for each import that points right, and for each room that is not in the list."""
    found = []
    for path in sorted(package.rglob("*.py")):
        where, room = path.relative_to(package), room_of(path, package)
        if room in ANYWHERE:
            continue
        if room not in ROOMS:
            found.append(f"{where} is in no room of the list.")
            continue
        for line, target in imported_modules(path, package):
            if target[0] != package.name:
                continue
            other = target[1] if len(target) > 1 else ""
            if other not in ROOMS:
                found.append(f"{where}:{line} imports {'.'.join(target)}, which is no room but the public face.")
            elif ROOMS.index(other) > ROOMS.index(room):
                found.append(f"{where}:{line} imports {'.'.join(target)}, which is to the right of {room}.")
    return found


def test_no_import_points_right() -> None:
    assert breaches(PACKAGE) == []


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("import ropewalk.rotation", "imports ropewalk.rotation, which is to the right of phase"),
        ("import torch, ropewalk.cli as c", "imports ropewalk.cli, which is to the right of phase"),
        ("from ropewalk.encodings.rotary import Rotary", "imports ropewalk.encodings.rotary.Rotary, which is to the"),
        ("from ropewalk import rotation", "imports ropewalk.rotation, which is to the right of phase"),
        ("from . import rotation", "imports ropewalk.rotation, which is to the right of phase"),
        ("from .rotation import rotate", "imports ropewalk.rotation.rotate, which is to the right of phase"),
        ("def f():\n    from ropewalk.rotation import rotate", "imports ropewalk.rotation.rotate, which is to the"),
        ("if TYPE_CHECKING:\n    from ropewalk.cli import main", "imports ropewalk.cli.main, which is to the right"),
        ("importlib.import_module('ropewalk.cli')", "imports ropewalk.cli, which is to the right of phase"),
        ("from ropewalk import Rotary", "imports ropewalk.Rotary, which is no room but the public face"),
        ("import ropewalk", "imports ropewalk, which is no room but the public face"),
    ],
)
def test_an_import_to_the_right_is_found(source: str, sentence: str, tmp_path: Path) -> None:
    package = tmp_path / "ropewalk"
    package.mkdir()
    (package / "phase.py").write_text(source, encoding="utf-8")
    (found,) = breaches(package)
    assert sentence in found


def test_imports_to_the_left_and_from_elsewhere_pass(tmp_path: Path) -> None:
    room = tmp_path / "ropewalk" / "rotation"
    room.mkdir(parents=True)
    (room / "operator.py").write_text(
        "import torch\nfrom ropewalk.phase import table\nfrom . import table\nfrom ..errors import InputError\n",
        encoding="utf-8",
    )
    (tmp_path / "ropewalk" / "__init__.py").write_text("from ropewalk.cli import main\n", encoding="utf-8")
    assert breaches(tmp_path / "ropewalk") == []


def test_a_room_without_a_place_is_found(tmp_path: Path) -> None:
    package = tmp_path / "ropewalk"
    (package / "utils").mkdir(parents=True)
    (package / "utils" / "misc.py").touch()
    assert breaches(package) == ["utils/misc.py is in no room of the list."]
