"""Break the code on purpose, many times, and see the suite fail each time.

    python tests/mutation/run.py               the whole table: which tests catch what (a quarter of an hour)
    python tests/mutation/run.py --quick       stop each run at its first failure
    python tests/mutation/run.py sign offset   only the breaks with one of these words in their name

Each break of `breaks.py` is made in a copy of the sources, from which the tests then import. Breaks of the C kernel are
compiled, with the package's own build; without a C compiler they are left out, and that is said.
"""

# ruff: noqa: T201  # a script prints
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # as pytest does, for those who run this file

from mutation.breaks import BREAKS, Break  # noqa: E402  # after the line above

__all__ = ["BuildError", "Workshop", "apply", "main"]

SUITE: Final = (
    "tests/rotation/test_operator_numbers.py",
    "tests/rotation/test_operator_exactness.py",
    "tests/rotation/test_operator_positions.py",
    "tests/rotation/test_operator_options.py",
    "tests/rotation/test_operator_autograd.py",
    "tests/rotation/test_table.py",
    "tests/encodings",
)
"""The part of the suite that runs against each break: fast, and through the public face alone."""

PASSED, FAILED = 0, 1
"""Exit codes of pytest. Others mean that it could not even begin, and catch nothing."""


class BuildError(Exception):
    """The library cannot be built here."""


def apply(broken: Break, root: Path) -> dict[Path, str]:
    """Make the break in the sources under `root`; what was there is returned. A text must be there exactly once."""
    before: dict[Path, str] = {}
    for edit in broken.edits:
        path = root / edit.file
        text = path.read_text(encoding="utf-8")
        found = text.count(edit.old)
        if found != 1:
            message = f"{broken.name}: {edit.file} must hold this text once, but holds it {found} times:\n{edit.old}"
            raise ValueError(message)
        before.setdefault(path, text)
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    return before


class Workshop:
    """A copy of the sources and the tests, to be broken, built and run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        rubbish = shutil.ignore_patterns("__pycache__", "*.so", "*.dylib", ".*")
        for folder in ("src", "tests"):
            shutil.copytree(ROOT / folder, root / folder, ignore=rubbish)
        for file in ("pyproject.toml", "build_native.py"):
            shutil.copy(ROOT / file, root / file)
        hidden = ("ROPEWALK_CPU", "ROPEWALK_REQUIRE_NATIVE", "PYTEST_ADDOPTS")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment |= {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.can_build = True
        try:
            self.build()
        except BuildError as error:
            self.can_build = False
            self.why_not = str(error)
        self.check_that_the_copy_is_imported()

    def build(self) -> None:
        """The library of the copy, from its sources as they are now."""
        native = self.root / "src" / "ropewalk" / "kernels" / "native"
        for old in native.glob("libropewalk.*"):
            old.unlink()
        done = self._python("build_native.py")
        if not list(native.glob("libropewalk.*")):
            raise BuildError((done.stdout + done.stderr).strip().splitlines()[-1])

    def check_that_the_copy_is_imported(self) -> None:
        """And not the package that may be installed."""
        program = "import ropewalk, ropewalk.kernels as k; print(ropewalk.__file__); print(k.info().native_level)"
        done = self._python("-W", "ignore", "-c", program)
        file, level = done.stdout.split()
        assert Path(file).is_relative_to(self.root), f"{file} is imported in the place of the copy"
        assert (level not in {"off", "absent"}) == self.can_build, level

    @contextmanager
    def broken(self, broken: Break) -> Iterator[None]:
        """The copy with this break in it, built anew if it concerns the C kernel."""
        before = apply(broken, self.root)
        in_c = any(path.suffix != ".py" for path in before)
        try:
            if in_c:
                self.build()
            yield
        finally:
            for path, text in before.items():
                path.write_text(text, encoding="utf-8")
            if in_c:
                self.build()

    def run(self, *, quick: bool) -> tuple[int, list[str]]:
        """Exit code of the suite, and the tests that failed."""
        options = ["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-m", "not slow", *(["-x"] if quick else [])]
        done = self._python("-m", "pytest", *options, *SUITE)
        if done.returncode not in {PASSED, FAILED}:
            print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
        return done.returncode, re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.root, env=self.environment, capture_output=True, text=True, check=False)


def _verdict(code: int, failed: Sequence[str], *, quick: bool) -> str:
    if code == PASSED:
        return "NOT CAUGHT"
    if code != FAILED:
        return f"NO ANSWER (pytest ended with {code})"
    if quick:
        return f"caught by {failed[0].split('/')[-1].split('[')[0]}"
    files = Counter(name.split("::")[0].split("/")[-1].removeprefix("test_").removesuffix(".py") for name in failed)
    return f"{len(failed):5}  " + ", ".join(f"{file} {count}" for file, count in files.most_common())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if something was not caught."""
    parser = argparse.ArgumentParser(description="Break the code on purpose and see the suite fail.")
    parser.add_argument("words", nargs="*", help="only breaks with one of these words in their name")
    parser.add_argument("--quick", action="store_true", help="stop each run at its first failure")
    asked = parser.parse_args(arguments)
    chosen = [b for b in BREAKS if not asked.words or any(word in b.name for word in asked.words)]
    escaped = 0
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder).resolve())
        code, failed = workshop.run(quick=True)
        if code != PASSED:
            print("The suite fails without any break:", *failed)
            return 1
        for broken in chosen:
            if broken.body == "C" and not workshop.can_build:
                print(f"{broken.name:75} left out: {workshop.why_not}", flush=True)
                continue
            with workshop.broken(broken):
                code, failed = workshop.run(quick=asked.quick)
            escaped += code != FAILED
            print(f"{broken.name:75} {_verdict(code, failed, quick=asked.quick)}", flush=True)
    return int(escaped > 0)


if __name__ == "__main__":
    sys.exit(main())
