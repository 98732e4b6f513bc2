"""The C kernel: turns tensors and builds tables on the CPU. Bare tensors in, bare tensors out.

A plain shared library (no Python headers, no torch headers) reached with ctypes: one call takes one packed description,
the structs of `rotate.h` field by field. Loading happens at the first use, never at import.

Axes: B batch, H heads, S positions, D channels of a head, P pairs. Tensors are (B, H, S, D) by strides, last stride 1;
tables are (B | 1, S, P), contiguous.
"""

import ctypes
import enum
import functools
import os
import sys
from pathlib import Path
from struct import Struct
from typing import Final

import torch
from torch import Tensor

from ropewalk.errors import ConfigError

__all__ = [
    "Level",
    "available",
    "fill_table",
    "level",
    "levels",
    "library_path",
    "rotate",
    "rotate_at",
    "thread_source",
]

LEVEL_VARIABLE: Final = "ROPEWALK_CPU"
"""Environment variable that caps the level: `baseline`, `avx2`, `avx512`, or `off` for no C kernel at all."""


class Level(enum.IntEnum):
    """The instruction sets the kernel is compiled for, slowest first."""

    BASELINE = 0
    AVX2 = 1
    AVX512 = 2


_DTYPES: Final = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_ONE_TENSOR: Final = Struct("15q2dqq9q").pack  # Rotation with one tensor
_TWO_TENSORS: Final = Struct("15q2dqq18q").pack
_PHASES: Final = Struct("10q")


class _Library:
    """The loaded functions, and the best level this processor has."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        handle.ropewalk_rotate.argtypes = [ctypes.c_char_p]
        handle.ropewalk_fill_table.argtypes = [ctypes.c_char_p]
        handle.ropewalk_use_threads_of.argtypes = [ctypes.c_void_p]
        handle.ropewalk_use_threads_of.restype = None
        self.rotate = handle.ropewalk_rotate
        self.fill_table = handle.ropewalk_fill_table
        self.levels = tuple(level for level in Level if handle.ropewalk_has_level(int(level)))
        self.thread_source = _openmp_of_torch()
        if self.thread_source is not None:
            parallel = ctypes.CDLL(self.thread_source).GOMP_parallel
            handle.ropewalk_use_threads_of(ctypes.cast(parallel, ctypes.c_void_p))
        wanted = os.environ.get(LEVEL_VARIABLE, "").lower()
        self.level = _capped(self.levels, wanted)


def _capped(levels: tuple[Level, ...], wanted: str) -> Level | None:
    if wanted == "off":
        return None
    if not wanted:
        return levels[-1]
    names = {level.name.lower(): level for level in Level}
    if wanted not in names:
        rule = "must be off, " + ", ".join(names)
        raise ConfigError([f"The environment variable `{LEVEL_VARIABLE}` {rule}, but is {wanted!r}."])
    return max(level for level in levels if level <= names[wanted])


def _openmp_of_torch() -> str | None:
    """Path of the OpenMP runtime torch runs on, if it speaks GNU's ABI (libgomp, and LLVM's and Intel's too)."""
    for path in _loaded_libraries():
        name = Path(path).name
        if name.startswith(("libgomp", "libomp", "libiomp")) and _has_gomp(path):
            return path
    return None


def _loaded_libraries() -> list[str]:
    """OpenMP runtimes of this process, torch's own first: other packages may have brought theirs."""
    own = Path(torch.__file__).parent / "lib"
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return sorted(str(path) for path in own.glob("lib*omp*"))
    loaded = {line.split(maxsplit=5)[-1].strip() for line in maps.read_text().splitlines() if "omp" in line}
    paths = sorted(path for path in loaded if path.startswith("/"))
    return sorted(paths, key=lambda path: not path.startswith(str(own)))


def _has_gomp(path: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(path), "GOMP_parallel")
    except OSError:
        return False


def library_path() -> Path:
    """Where the package's own build puts the library."""
    return Path(__file__).parent / ("libropewalk.dylib" if sys.platform == "darwin" else "libropewalk.so")


@functools.cache
def _library() -> _Library | None:
    path = library_path()
    return _Library(ctypes.CDLL(str(path))) if path.exists() else None


@functools.cache
def level() -> Level | None:
    """The level in use; None where there is no library, or it is switched off."""
    library = _library()
    return None if library is None else library.level


def available() -> bool:
    """Whether the C kernel is there and switched on."""
    return level() is not None


def levels() -> tuple[Level, ...]:
    """Every level this processor and this build have."""
    library = _library()
    return () if library is None else library.levels


def thread_source() -> str | None:
    """The OpenMP runtime whose threads the kernel borrows; None: it runs on one thread."""
    library = _library()
    return None if library is None else library.thread_source


def rotate(
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    cos: Tensor,
    sin: Tensor,
    *,
    adjacent: bool,
    first: int,
    inverse: bool,
    factor: float,
    fresh: bool = False,
    at: Level | None = None,
) -> None:
    """Turn one or two tensors of equal (B, S, D): y_a = factor (a cos - b sin), y_b = factor (a sin + b cos).

    An output may be its input. Channels outside [first, first + 2 P) are copied, or left alone in place. Tables are
    (S, P) or (B | 1, S, P), in float64 for float64 tensors and in float32 for all others. `fresh`: the outputs are
    memory that nobody has touched yet.
    """
    shape = cos.shape
    table = (shape[0] if len(shape) == 3 else 1, cos.data_ptr(), sin.data_ptr(), 0, 0, 0)
    _turn(inputs, outputs, shape[-1], table, adjacent, first, inverse, factor, fresh, at)


def rotate_at(
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    positions: Tensor,
    words: Tensor,
    *,
    adjacent: bool,
    first: int,
    inverse: bool,
    factor: float,
    fresh: bool = False,
    at: Level | None = None,
) -> bool:
    """`rotate` with contiguous int32 or int64 positions (S,) or (B | 1, S) in the place of tables; `words` as in
    `fill_table`. False where a position lies beyond 2^31 - 1: nothing has been turned then.
    """
    rows = positions.shape[0] if positions.dim() == 2 else 1
    table = (rows, 0, 0, positions.data_ptr(), positions.dtype == torch.int32, words.data_ptr())
    return _turn(inputs, outputs, words.shape[1], table, adjacent, first, inverse, factor, fresh, at) == 0


def _turn(
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    pairs: int,
    table: tuple[int, ...],
    adjacent: bool,
    first: int,
    inverse: bool,
    factor: float,
    fresh: bool,
    at: Level | None,
) -> int:
    library = _library()
    assert library is not None
    x = inputs[0]
    batch, heads, length, width = x.shape
    level, threads = library.level if at is None else at, torch.get_num_threads()
    head = (level, threads, _DTYPES[x.dtype], adjacent, batch, length, width, first, pairs, *table)
    factors = (factor, -factor if inverse else factor)
    one = (x.data_ptr(), outputs[0].data_ptr(), heads, *x.stride()[:3], *outputs[0].stride()[:3])
    if len(inputs) == 1:
        description = _ONE_TENSOR(*head, *factors, fresh, 1, *one)
    else:
        x, y = inputs[1], outputs[1]
        two = (x.data_ptr(), y.data_ptr(), x.shape[1], *x.stride()[:3], *y.stride()[:3])
        description = _TWO_TENSORS(*head, *factors, fresh, 2, *one, *two)
    failed: int = library.rotate(description)
    if failed > 1:
        raise MemoryError
    return failed


def fill_table(positions: Tensor, words: Tensor, cos: Tensor, sin: Tensor, *, at: Level | None = None) -> bool:
    """Fill cos and sin (count, P), float32 or float64, for contiguous int32 or int64 positions.

    `words` is int32 (3, P), the bits of unsigned words, most significant first. False where a position lies beyond
    2^31 - 1: nothing to use then.
    """
    library = _library()
    assert library is not None
    failed: int = library.fill_table(
        _PHASES.pack(
            library.level if at is None else at,
            torch.get_num_threads(),
            cos.dtype == torch.float64,
            positions.data_ptr(),
            positions.dtype == torch.int32,
            positions.numel(),
            cos.shape[-1],
            words.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
        )
    )
    return not failed
