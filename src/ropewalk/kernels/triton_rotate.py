r"""Rotation on the GPU, as the host sees it: what to launch for tensors of any layout, in one launch for q and k.

`rotate` takes cos and sin from a table; `rotate_at` lets the kernel make them from positions, once for all heads of a
program; `build_table` only makes them. What the kernels compute stands in `triton_device`.

Axes: B batch, H heads, S positions, D channels of a head, P pairs. Tensors are (B, H, S, D) with any strides but 1 for
the channels. Nothing here imports Triton before the first launch.
"""

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels import triton_device

__all__ = ["available", "build_table", "rotate", "rotate_at"]

_ACCESS = 16
"""Bytes that a thread reads at once; their address must be a multiple of it."""

_WARPS = 4

_ENOUGH_PROGRAMS = 2048
"""Three waves on the largest GPUs; where there are more, a program turns more heads with the same cos and sin."""

_TILES_AT_ONCE = 4
"""Tiles that a program reads before it writes: 16 KiB under way, and registers for five programs on one processor."""

_MOST_LAUNCHES = 4096
"""Launches remembered; a server that prefills prompts of every length stays below a few megabytes."""


@functools.cache
def available() -> bool:
    """Whether Triton is installed; says nothing about the device."""
    return importlib.util.find_spec("triton") is not None


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
    fresh: bool = False,  # noqa: ARG001
) -> None:
    """Turn one or two tensors (B, H, S, D) by a contiguous table (S, P) or (1 | B, S, P); an output may be its input.

    A float32 table turns float32, bfloat16 and float16; a float64 table float64. `first`: where the turned part begins.
    """
    if cos.dtype is torch.float64 and factor != 1.0:  # numbers reach a kernel as float32
        cos, sin, factor = cos * factor, sin * factor, 1.0
    _turn(inputs, outputs, cos, sin, (False, adjacent, first, inverse, factor))


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
    fresh: bool = False,  # noqa: ARG001
) -> bool:
    """The same without a table, not for float64: integer positions (S,) or (1 | B, S), words (3, P) in int64.

    True: the launch has been made. A position beyond 2^31 - 1 gives NaN: to refuse it, the host would have to wait.
    """
    _turn(inputs, outputs, positions, words, (True, adjacent, first, inverse, factor))
    return True


def build_table(positions: Tensor, words: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Fill cos and sin, contiguous float32 (B, S, P), at the positions (B, S) for the words (3, P)."""
    key = ("table", positions.shape, positions.stride(), positions.dtype, positions.device, words.shape)
    _launch("_table_kernel", key, (positions, words, cos, sin), lambda: _table_plan(positions, words.shape[1]))


_Flags = tuple[bool, bool, int, bool, float]  # exact, adjacent, first, inverse, factor
_Plan = tuple[int, tuple[Any, ...]]  # programs; the arguments of the kernel behind its tensors


def _turn(
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    cos_or_positions: Tensor,
    sin_or_words: Tensor,
    flags: _Flags,
) -> None:
    q, k, q_out, k_out = inputs[0], inputs[-1], outputs[0], outputs[-1]
    # All that the plan and Triton's own specialisation depend on, but for the addresses. Python counts here: at decode
    # it takes longer than the kernel.
    key = (
        flags, len(inputs), q.dtype, q.device,
        cos_or_positions.dtype, cos_or_positions.shape, cos_or_positions.stride(), sin_or_words.shape,
        q.shape, q.stride(), q_out is q or q_out.stride(), k.shape, k.stride(), k_out is k or k_out.stride(),
    )  # fmt: skip
    tensors = (q, q_out, k, k_out, cos_or_positions, sin_or_words)
    _launch("_rotate_kernel", key, tensors, lambda: _rotate_plan(inputs, outputs, *tensors[4:], flags))


def _rotate_plan(
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    cos_or_positions: Tensor,
    sin_or_words: Tensor,
    flags: _Flags,
) -> _Plan:
    exact, adjacent, first, inverse, factor = flags
    q, k = inputs[0], inputs[-1]
    batch, q_heads, length, width = q.shape
    k_heads = k.shape[1] if len(inputs) == 2 else 0
    pairs = sin_or_words.shape[-1]
    padded = _power(pairs)
    heads_tile, positions_tile = _tile(padded, length, max(q_heads, k_heads), q.element_size())
    blocks = -(-length // positions_tile)
    columns = batch * blocks * -(-(q_heads + k_heads) // heads_tile)
    tiles = next((tiles for tiles in (8, 4, 2) if columns >= tiles * _ENOUGH_PROGRAMS), 1)
    span = tiles * heads_tile
    q_groups, k_groups = -(-q_heads // span), -(-k_heads // span)
    steps = [step for x in (q, outputs[0], k, outputs[-1]) for step in _steps(x)]
    unit = math.gcd(_ACCESS, *steps)  # a constant of the kernel, so that it knows how wide an access may be
    passing = 0 if all(x is y for x, y in zip(inputs, outputs, strict=True)) else width - 2 * pairs
    each = cos_or_positions.dim() == (2 if exact else 3) and cos_or_positions.shape[0] > 1  # row of the batch
    row_batch, row_position = (cos_or_positions.stride(0), cos_or_positions.stride(-1)) if exact else (length, 1)
    return batch * blocks * (q_groups + k_groups), (
        *(step // unit for step in steps), row_batch if each else 0, row_position,
        length, q_heads, k_heads, blocks, q_groups, q_groups + k_groups,
        float(factor), float(-factor if inverse else factor),
        pairs, padded, first, width, _power(passing) if passing else 0,
        adjacent, exact, unit, max(tiles // _TILES_AT_ONCE, 1), min(tiles, _TILES_AT_ONCE), heads_tile, positions_tile,
    )  # fmt: skip


def _table_plan(positions: Tensor, pairs: int) -> _Plan:
    batch, length = positions.shape
    padded = _power(pairs)
    _, positions_tile = _tile(padded, length, 1, 4)
    blocks = -(-length // positions_tile)
    return batch * blocks, (*positions.stride(), length, blocks, pairs, padded, positions_tile)


def _power(size: int) -> int:
    """The smallest power of two that is not smaller."""
    return 1 << max(size - 1, 0).bit_length()


def _tile(padded: int, length: int, heads: int, bytes_each: int) -> tuple[int, int]:
    """HEADS, POSITIONS of a tile: one access of every thread for each channel of a pair, positions before heads."""
    rows = max(32 * _WARPS * _ACCESS // (padded * bytes_each), 1)
    positions = min(_power(length), rows)
    return min(_power(heads), rows // positions), positions


def _steps(x: Tensor) -> tuple[int, ...]:
    """Strides of (B, H, S); an axis of one element may have any, and must not spoil what the others have in common."""
    return tuple(0 if size == 1 else step for size, step in zip(x.shape[:3], x.stride()[:3], strict=True))


_launches: dict[tuple[Any, ...], tuple[Callable[..., None], tuple[Any, ...]]] = {}
"""Compiled kernels with their grids and arguments, by all that decides them: no values, so nothing can go stale."""


def _launch(name: str, key: tuple[Any, ...], tensors: tuple[Tensor, ...], plan: Callable[[], _Plan]) -> None:
    """Start a kernel. A launch like an earlier one goes to its compiled form, past Triton's binding of 40 arguments."""
    device = tensors[0].device
    addresses = [tensor.data_ptr() for tensor in tensors]
    together = 0
    for address in addresses:
        together |= address
    aligned = together % _ACCESS == 0  # what Triton compiled for; else it looks at each pointer again
    known = _launches.get(key) if aligned else None
    if known is not None and device.index == torch.cuda.current_device():
        start, arguments = known
        start(*addresses, *arguments)
        return
    programs, arguments = plan()
    if programs == 0:
        return
    triton_device.load()
    kernel = getattr(triton_device, name)
    if device.type != "cuda":  # Triton's interpreter, on a CPU
        kernel[(programs,)](*tensors, *arguments)
        return
    with torch.cuda.device(device):
        compiled = kernel[(programs,)](*tensors, *arguments, num_warps=_WARPS, enable_fp_fusion=True)
        if aligned:
            if len(_launches) >= _MOST_LAUNCHES:
                _launches.clear()
            _launches[key] = compiled[(programs, 1, 1)], arguments
