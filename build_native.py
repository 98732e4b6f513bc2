"""Builds the native kernels with nothing but a C compiler; without one the package is built all the same.

Three ways in, one result:

    pip install . / pip wheel . / python -m build    the library goes into the wheel
    pip install -e .                                 the library lands beside its sources
    python build_native.py                           the same, without installing anything (this is what `make` does)

Every `*.c` of `src/ropewalk/kernels/native` is one translation unit. What its name ends with chooses its instruction
set, so that one library serves every processor and picks its level when it runs:

    *_avx2.c, *_avx512.c    compiled with those flags, if this compiler makes x86-64 code and takes them
    everything else         baseline, told by -DROPEWALK_HAVE_... which of the two are there

Nothing here needs Python's headers or torch: the library is loaded with ctypes and serves every Python. CFLAGS is not
read on purpose, because one `-march=native` in it would break the promise above. ROPEWALK_REQUIRE_NATIVE=1 turns a
missing library into an error, for those who publish wheels.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

NATIVE = Path(__file__).parent / "src" / "ropewalk" / "kernels" / "native"
LIBRARY = "libropewalk.dylib" if sys.platform == "darwin" else "libropewalk.so"
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden")


@dataclass(frozen=True, slots=True)
class Level:
    """An instruction set beyond the baseline: how its files are named, compiled and announced."""

    suffix: str
    flags: tuple[str, ...]
    macro: str
    """What the compiler defines when the flags have really taken effect."""

    announcement: str
    """What the baseline files are compiled with when this level is there."""


LEVELS = (
    Level("_avx2", ("-mavx2", "-mfma", "-mf16c"), "__AVX2__", "-DROPEWALK_HAVE_AVX2"),
    Level(
        "_avx512",
        ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16", "-mavx2", "-mfma", "-mf16c"),
        "__AVX512BF16__",
        "-DROPEWALK_HAVE_AVX512",
    ),
)


class NoLibraryError(Exception):
    """The library cannot be built here; the message says why, in a few words."""


def build(target: Path) -> None:
    """Compile and link the library to `target`, which is replaced in one step or not touched at all."""
    compiler = _find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        levels = [level for level in LEVELS if _takes(compiler, level, scratch)]
        objects = []
        for source, flags in _translation_units(levels):
            objects.append(str(scratch / f"{source.stem}.o"))
            _run(compiler, *FLAGS, *flags, "-c", str(source), "-o", objects[-1])
        linked = scratch / LIBRARY
        _run(compiler, "-shared", "-o", str(linked), *objects, "-lm")
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy(linked, fresh)
        fresh.replace(target)  # a process that has the old one loaded keeps the old one


def build_or_say_why(target: Path) -> bool:
    """Build the library, or remove what an earlier build left, print one sentence and return False."""
    try:
        build(target)
    except NoLibraryError as error:
        target.unlink(missing_ok=True)
        if os.environ.get("ROPEWALK_REQUIRE_NATIVE", "") not in {"", "0"}:
            raise
        print(f"ropewalk: built without its native kernels, so rotations take the slower path: {error}.", flush=True)
        return False
    return True


def is_fresh(target: Path) -> bool:
    """Whether `target` is newer than everything it is made from."""
    made_from = [Path(__file__), *(path for path in NATIVE.iterdir() if path.suffix in {".c", ".h", ".inc"})]
    return target.exists() and target.stat().st_mtime > max(path.stat().st_mtime for path in made_from)


def platform_tag() -> str:
    """The platform of a wheel that holds the library, such as `linux_x86_64` or `macosx_15_0_arm64`."""
    platforms = (tag.platform for tag in sys_tags())
    return next(name for name in platforms if not name.startswith(("manylinux", "musllinux")))


def _find_compiler() -> list[str]:
    if os.name != "posix":
        raise NoLibraryError("they are built on Linux and macOS only")
    if named := shlex.split(os.environ.get("CC", "")):
        if shutil.which(named[0]) is None:
            raise NoLibraryError(f"the C compiler that CC names, `{named[0]}`, was not found")
        return named
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NoLibraryError("no C compiler (cc, gcc, clang or the one that CC names) was found")


def _takes(compiler: list[str], level: Level, scratch: Path) -> bool:
    """Whether this compiler makes code for `level`: some only warn about flags of another processor."""
    probe = scratch / f"probe{level.suffix}.c"
    probe.write_text(f"#if !defined(__x86_64__) || !defined({level.macro})\n#error\n#endif\n#include <immintrin.h>\n")
    try:
        _run(compiler, *level.flags, "-c", str(probe), "-o", str(probe.with_suffix(".o")))
    except NoLibraryError:
        return False
    return True


def _translation_units(levels: list[Level]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Each source with its own flags; the files of levels that this compiler cannot make are left out."""
    announcements = tuple(level.announcement for level in levels)
    for source in sorted(NATIVE.glob("*.c")):
        of_level = next((level for level in LEVELS if source.stem.endswith(level.suffix)), None)
        if of_level is None:
            yield source, announcements
        elif of_level in levels:
            yield source, of_level.flags


def _run(compiler: list[str], *arguments: str) -> None:
    command = [*compiler, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoLibraryError(f"`{compiler[0]}` could not be run ({error.strerror})") from error
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise NoLibraryError(f"`{compiler[0]}` failed ({first.strip()})")


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # its parameter is the builder's own config
    """Hatchling's way in: adds the library to a wheel, or puts it beside the sources of an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called once for each wheel; `version` is "editable" or "standard"."""
        if version == "editable":
            # The wheel holds no more than a path to src, so it stays the same whether the library is there or not.
            if not is_fresh(NATIVE / LIBRARY):
                build_or_say_why(NATIVE / LIBRARY)
            return
        self._folder = tempfile.TemporaryDirectory()  # until `finalize`: the library is packed in between
        library = Path(self._folder.name) / LIBRARY
        if build_or_say_why(library):
            build_data["force_include"][str(library)] = f"ropewalk/kernels/native/{LIBRARY}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Called when the wheel is written."""
        if version != "editable":
            self._folder.cleanup()


if __name__ == "__main__" and not is_fresh(NATIVE / LIBRARY):
    build_or_say_why(NATIVE / LIBRARY)
