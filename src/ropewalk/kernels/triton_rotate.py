r"""Rotation on the GPU: one Triton launch for the queries and the keys, in every layout and both pairings.

    y_a = m (a cos - s b sin)          m the factor, s = -1 for the inverse rotation and +1 otherwise,
    y_b = m (s a sin + b cos)          a and b the two channels of one pair; one rounding, at the very end

`rotate` takes cos and sin from a table. `rotate_at` makes them where they are used, once for all heads of a program:

    turn  = p (w0 2^-32 + w1 2^-64) mod 1            p the position, w the words of the frequency: theta / 2 pi
    angle = (turn - quarter / 4) 2 pi                quarter = the nearest multiple of 1/4, so |angle| <= pi / 4

in 32-bit integers, where dropping whole turns is exact, so the error does not grow with the position, and without
float64. The third word is not read: it moves the turn by less than 2^-33, a fortieth of what rounding to float32 does.

Axes: B batch, H heads, S positions, D channels of a head, P pairs. Tensors are (B, H, S, D), the strides free but for
that of the channels, which is 1; tables (S, P) or (1 | B, S, P) and words (3, P) are contiguous; positions are (S,) or
(1 | B, S).

A program turns one block of positions of one batch row, for a group of heads of the queries or of the keys, all with
the same cos and sin. It works in tiles of ROWS x P, where a row is one head at one position: a tile is a block of
positions of one head, or at decode one position of many heads. Halves are read as two runs of P channels, adjacent
pairs as one run of 2 P that is sorted in registers, so that every access is 16 bytes wide where the strides allow it.

The device functions below are plain Python until the first call, when `_load` imports Triton and makes kernels of them.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ropewalk.errors import MissingPartError

if TYPE_CHECKING:
    import triton.language as tl

__all__ = ["available", "build_table", "rotate", "rotate_at"]


# ---- device code ---------------------------------------------------------------------------------------------------


def _phase(magnitude: tl.tensor, word_0: tl.tensor, word_1: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """cos and sin, float32 within 6e-8, of positions and words of frequencies; both are uint32 and broadcast."""
    low = magnitude * word_1  # in 2^-64 of a turn; products of 32-bit words keep the lower half by themselves
    high = magnitude * word_0 + tl.umulhi(magnitude, word_1)  # in 2^-32 of a turn, whole turns gone
    quarter = (high + 536870912) >> 30  # 2^29: to the nearest; 4 wraps to 0
    rest = (high - (quarter << 30)).to(tl.int32, bitcast=True)  # |rest| <= 2^29

    # In quarter turns. Twelve bits of the rest times twelve bits of pi / 2 are exact in float32; what is left is small.
    coarse = (rest >> 17).to(tl.float32) * 1.220703125e-4  # 2^-13
    fine = ((rest & 131071).to(tl.float32) + low.to(tl.float32) * 2.3283064365386963e-10) * 9.313225746154785e-10
    x = coarse * 1.5703125
    x_low = coarse * 4.8382679489661923e-4 + fine * 1.5707963267948966
    angle = x + x_low
    square = angle * angle

    # Minimax on [0, pi / 4], 2.6e-9 and 5e-10 off. (1 - top) - half gives back what top = 1 - half rounded away.
    odd = -1.6666650772094727e-1 + square * (8.331975899636745e-3 - square * 1.9495293963700533e-4)
    even = 4.166664555668831e-2 + square * (-1.3887364184483886e-3 + square * 2.443809171381872e-5)
    sine = x + (x_low + angle * square * odd)
    half = 0.5 * x * x
    top = 1.0 - half
    cosine = top + (((1.0 - top) - half) + (square * square * even - x_low * (x + 0.5 * x_low)))

    swapped = (quarter & 1) != 0
    cos = tl.where(swapped, sine, cosine)
    sin = tl.where(swapped, cosine, sine)
    return tl.where(((quarter + 1) & 2) != 0, -cos, cos), tl.where((quarter & 2) != 0, -sin, sin)


def _phase_of(
    positions: tl.tensor, inside: tl.tensor, words: tl.tensor, PAIRS: tl.constexpr, PADDED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """cos and sin (ROWS, P) of the positions at the pointers (ROWS,); NaN for those that 32 bits do not hold."""
    pair = tl.arange(0, PADDED)
    word_0 = tl.load(words + pair, mask=pair < PAIRS, other=0).to(tl.uint32)
    word_1 = tl.load(words + PAIRS + pair, mask=pair < PAIRS, other=0).to(tl.uint32)
    position = tl.load(positions, mask=inside, other=0).to(tl.int64)
    magnitude = tl.abs(position)
    cos, sin = _phase(magnitude.to(tl.uint32)[:, None], word_0[None, :], word_1[None, :])
    sin = tl.where((position < 0)[:, None], -sin, sin)
    held = ((magnitude >> 31) == 0)[:, None]
    return tl.where(held, cos, float("nan")), tl.where(held, sin, float("nan"))


def _load_pairs(
    row: tl.tensor, inside: tl.tensor,
    PAIRS: tl.constexpr, PADDED: tl.constexpr, ADJACENT: tl.constexpr, ROWS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Both channels, (ROWS, P) each, of the pairs at the pointers (ROWS, 1)."""
    if ADJACENT:
        channel = tl.arange(0, 2 * PADDED)[None, :]
        pairs = tl.load(row + channel, mask=inside & (channel < 2 * PAIRS))  # (ROWS, 2 P), one run
        a, b = tl.split(tl.reshape(pairs, (ROWS, PADDED, 2)))
    else:
        pair = tl.arange(0, PADDED)[None, :]
        mask = inside & (pair < PAIRS)
        a = tl.load(row + pair, mask=mask)
        b = tl.load(row + PAIRS + pair, mask=mask)
    return a, b


def _load_tiles(
    source: tl.tensor, source_head: tl.tensor, head: tl.tensor, heads: tl.tensor, inside: tl.tensor,
    PAIRS: tl.constexpr, PADDED: tl.constexpr, ADJACENT: tl.constexpr, UNIT: tl.constexpr,
    TILES: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
) -> tuple[tuple[tl.tensor, tl.tensor], ...]:  # fmt: skip
    """The pairs of TILES tiles. In place no compiler moves a load above a store: all are read before one is written."""
    tiles = ()
    for tile in tl.static_range(TILES):
        row = source + (head + tile * HEADS).to(tl.int64) * source_head * UNIT
        within = inside & (head + tile * HEADS < heads)
        pairs = _load_pairs(row, within, PAIRS, PADDED, ADJACENT, ROWS)
        tiles = tiles + (pairs,)  # type: ignore[assignment]  # noqa: RUF005  # it grows, and Triton cannot unpack
    return tiles


def _store_pairs(
    row: tl.tensor, inside: tl.tensor, a: tl.tensor, b: tl.tensor,
    PAIRS: tl.constexpr, PADDED: tl.constexpr, ADJACENT: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """The inverse of `_load_pairs`; rounds to the type of the tensor."""
    dtype = row.dtype.element_ty
    if ADJACENT:
        channel = tl.arange(0, 2 * PADDED)[None, :]
        pairs = tl.reshape(tl.join(a.to(dtype), b.to(dtype)), (ROWS, 2 * PADDED))
        tl.store(row + channel, pairs, mask=inside & (channel < 2 * PAIRS))
    else:
        pair = tl.arange(0, PADDED)[None, :]
        mask = inside & (pair < PAIRS)
        tl.store(row + pair, a.to(dtype), mask=mask)
        tl.store(row + PAIRS + pair, b.to(dtype), mask=mask)


def _copy_channels(
    source: tl.tensor, target: tl.tensor, inside: tl.tensor, COUNT: tl.constexpr, PADDED: tl.constexpr
) -> None:
    """COUNT channels that do not turn, at the pointers (ROWS, 1)."""
    channel = tl.arange(0, PADDED)[None, :]
    mask = inside & (channel < COUNT)
    tl.store(target + channel, tl.load(source + channel, mask=mask), mask=mask)


def _copy_rest(
    source: tl.tensor, target: tl.tensor, inside: tl.tensor,
    PAIRS: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
) -> None:  # fmt: skip
    """All channels before and after those that turn."""
    if FIRST > 0:
        _copy_channels(source, target, inside, FIRST, REST)
    if FIRST + 2 * PAIRS < WIDTH:
        source += FIRST + 2 * PAIRS
        target += FIRST + 2 * PAIRS
        _copy_channels(source, target, inside, WIDTH - FIRST - 2 * PAIRS, REST)


def _turn_heads(
    source: tl.tensor, target: tl.tensor, source_head: tl.tensor, target_head: tl.tensor,
    head: tl.tensor, heads: tl.tensor, inside: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    PAIRS: tl.constexpr, PADDED: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
    ADJACENT: tl.constexpr, UNIT: tl.constexpr,
    STEPS: tl.constexpr, TILES: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
    """Turn STEPS x TILES tiles of HEADS heads; source, target, head, inside: (ROWS, 1); cos, sin: (ROWS, P)."""
    for _ in range(STEPS):
        tiles = _load_tiles(
            source + FIRST, source_head, head, heads, inside, PAIRS, PADDED, ADJACENT, UNIT, TILES, HEADS, ROWS
        )
        for tile in tl.static_range(TILES):
            row = target + (head + tile * HEADS).to(tl.int64) * target_head * UNIT
            within = inside & (head + tile * HEADS < heads)
            pairs = tiles[tile]
            a, b = pairs[0].to(cos.dtype), pairs[1].to(cos.dtype)
            _store_pairs(row + FIRST, within, a * cos - b * sin, a * sin + b * cos, PAIRS, PADDED, ADJACENT, ROWS)
            if REST > 0:
                origin = source + (head + tile * HEADS).to(tl.int64) * source_head * UNIT
                _copy_rest(origin, row, within, PAIRS, FIRST, WIDTH, REST)
        head += TILES * HEADS


def _rotate_kernel(
    q: tl.tensor, q_out: tl.tensor, k: tl.tensor, k_out: tl.tensor,
    cos_or_positions: tl.tensor, sin_or_words: tl.tensor,
    q_batch: tl.tensor, q_head: tl.tensor, q_position: tl.tensor,
    q_out_batch: tl.tensor, q_out_head: tl.tensor, q_out_position: tl.tensor,
    k_batch: tl.tensor, k_head: tl.tensor, k_position: tl.tensor,
    k_out_batch: tl.tensor, k_out_head: tl.tensor, k_out_position: tl.tensor,
    row_batch: tl.tensor, row_position: tl.tensor, length: tl.tensor, q_heads: tl.tensor, k_heads: tl.tensor,
    blocks: tl.tensor, q_groups: tl.tensor, groups: tl.tensor, cos_factor: tl.tensor, sin_factor: tl.tensor,
    PAIRS: tl.constexpr, PADDED: tl.constexpr, FIRST: tl.constexpr, WIDTH: tl.constexpr, REST: tl.constexpr,
    ADJACENT: tl.constexpr, EXACT: tl.constexpr, UNIT: tl.constexpr,
    STEPS: tl.constexpr, TILES: tl.constexpr, HEADS: tl.constexpr, POSITIONS: tl.constexpr,
) -> None:  # fmt: skip
    """One block of positions of one batch row, one group of heads of q or of k. Their steps are in units of UNIT."""
    ROWS: tl.constexpr = HEADS * POSITIONS
    program = tl.program_id(0)
    column = program // blocks
    group = column % groups
    batch = (column // groups).to(tl.int64)
    line = tl.arange(0, ROWS)
    position = (program % blocks).to(tl.int64) * POSITIONS + line % POSITIONS
    inside = position < length
    row = batch * row_batch + position * row_position  # in rows of the table, or in positions
    if EXACT:
        cos, sin = _phase_of(cos_or_positions + row, inside, sin_or_words, PAIRS, PADDED)
    else:
        pair = tl.arange(0, PADDED)[None, :]
        at = row[:, None] * PAIRS + pair
        mask = inside[:, None] & (pair < PAIRS)
        cos = tl.load(cos_or_positions + at, mask=mask)
        sin = tl.load(sin_or_words + at, mask=mask)
    cos *= cos_factor
    sin *= sin_factor
    head = (line // POSITIONS)[:, None]
    position = position[:, None]
    inside = inside[:, None]
    if group < q_groups:
        _turn_heads(
            q + (batch * q_batch + position * q_position) * UNIT,
            q_out + (batch * q_out_batch + position * q_out_position) * UNIT,
            q_head, q_out_head, head + group * (STEPS * TILES * HEADS), q_heads, inside, cos, sin,
            PAIRS, PADDED, FIRST, WIDTH, REST, ADJACENT, UNIT, STEPS, TILES, HEADS, ROWS,
        )  # fmt: skip
    else:
        _turn_heads(
            k + (batch * k_batch + position * k_position) * UNIT,
            k_out + (batch * k_out_batch + position * k_out_position) * UNIT,
            k_head, k_out_head, head + (group - q_groups) * (STEPS * TILES * HEADS), k_heads, inside, cos, sin,
            PAIRS, PADDED, FIRST, WIDTH, REST, ADJACENT, UNIT, STEPS, TILES, HEADS, ROWS,
        )  # fmt: skip


def _table_kernel(
    positions: tl.tensor, words: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    row_batch: tl.tensor, row_position: tl.tensor, length: tl.tensor, blocks: tl.tensor,
    PAIRS: tl.constexpr, PADDED: tl.constexpr, POSITIONS: tl.constexpr,
) -> None:  # fmt: skip
    """One block of positions of one batch row of a table."""
    program = tl.program_id(0)
    batch = (program // blocks).to(tl.int64)
    position = (program % blocks).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    inside = position < length
    here = positions + batch * row_batch + position * row_position
    table_cos, table_sin = _phase_of(here, inside, words, PAIRS, PADDED)
    pair = tl.arange(0, PADDED)[None, :]
    at = (batch * length + position)[:, None] * PAIRS + pair
    mask = inside[:, None] & (pair < PAIRS)
    tl.store(cos + at, table_cos, mask=mask)
    tl.store(sin + at, table_sin, mask=mask)


_DEVICE_CODE = (
    _phase,
    _phase_of,
    _load_pairs,
    _load_tiles,
    _store_pairs,
    _copy_channels,
    _copy_rest,
    _turn_heads,
    _rotate_kernel,
    _table_kernel,
)


# ---- host code -----------------------------------------------------------------------------------------------------

_ACCESS = 16
"""Bytes that a thread reads at once; their address must be a multiple of it."""

_WARPS = 4

_SIZES = (
    *(f"{name}_{axis}" for name in ("q", "q_out", "k", "k_out") for axis in ("batch", "head", "position")),
    *("row_batch", "row_position", "length", "q_heads", "k_heads", "blocks", "q_groups", "groups"),
)
"""Arguments whose values make no new kernel: what must be known of strides is in UNIT."""

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


@functools.cache
def _load() -> None:
    """Import Triton and turn the device functions of this module into kernels."""
    try:
        import triton
        import triton.language
    except ImportError as error:
        raise MissingPartError("The Triton kernels need Triton: `pip install triton`.") from error
    names = globals()
    names["tl"] = triton.language
    for function in _DEVICE_CODE:
        names[function.__name__] = triton.jit(function, do_not_specialize=_SIZES)


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
    _load()
    kernel = globals()[name]
    if device.type != "cuda":  # Triton's interpreter, on a CPU
        kernel[(programs,)](*tensors, *arguments)
        return
    with torch.cuda.device(device):
        compiled = kernel[(programs,)](*tensors, *arguments, num_warps=_WARPS, enable_fp_fusion=True)
        if aligned:
            if len(_launches) >= _MOST_LAUNCHES:
                _launches.clear()
            _launches[key] = compiled[(programs, 1, 1)], arguments
