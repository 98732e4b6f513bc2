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

The functions here are plain Python until the first call of `load`, which imports Triton and makes kernels of them: so
importing this module costs nothing and needs nothing. `triton_rotate` launches them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ropewalk.errors import MissingPartError

if TYPE_CHECKING:
    import triton.language as tl

__all__ = ["load"]


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

_SIZES = (
    *(f"{name}_{axis}" for name in ("q", "q_out", "k", "k_out") for axis in ("batch", "head", "position")),
    *("row_batch", "row_position", "length", "q_heads", "k_heads", "blocks", "q_groups", "groups"),
)
"""Arguments whose values make no new kernel: what must be known of strides is in UNIT."""


@functools.cache
def load() -> None:
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
