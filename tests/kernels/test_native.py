"""The C kernel, bare, at every level of this processor: against the definition, bit by bit, and at its edges.

Axes: B batch, H heads, S positions, D channels of a head, P pairs.
"""

import functools
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import ropewalk
from ropewalk.errors import ConfigError
from ropewalk.frequencies import Geometric
from ropewalk.kernels import native
from ropewalk.kernels.native import Level
from ropewalk.pairing import Pairing, Part
from ropewalk.phase import native_words, words_of
from ropewalk.rotation import definition

LEVELS = native.levels()
if not LEVELS:
    pytest.skip("the C kernel has not been built (no C compiler was found)", allow_module_level=True)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PAIRS = (1, 2, 3, 4, 7, 8, 12, 16, 20, 24, 32, 40, 64, 128)
LAYOUTS = ("BHSD", "BSHD", "fused", "cache", "slice")
CARRIER = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float64: torch.int64,
}
SENTINEL = -77.0

levels = pytest.mark.parametrize("level", LEVELS, ids=[level.name.lower() for level in LEVELS])
pairings = pytest.mark.parametrize("pairing", Pairing, ids=[pairing.value for pairing in Pairing])
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=[str(dtype).removeprefix("torch.") for dtype in DTYPES])


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One kind of rotation, for the kernel and for the definition."""

    head_dim: int
    pairs: int
    pairing: Pairing
    part: Part = Part.LEADING
    inverse: bool = False
    factor: float = 1.0

    def options(self, level: Level) -> dict[str, Any]:
        """The arguments of the kernel. Its factor multiplies; that of the definition is undone by the inverse."""
        return {
            "adjacent": self.pairing is Pairing.ADJACENT,
            "first": 0 if self.part is Part.LEADING else self.head_dim - 2 * self.pairs,
            "inverse": self.inverse,
            "factor": 1 / self.factor if self.inverse else self.factor,
            "at": level,
        }

    def channels(self) -> NDArray[np.int64]:
        """All channels that turn."""
        return np.concatenate(definition.pair_channels(self.head_dim, self.pairs, self.pairing, self.part))


def fresh(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tables(angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return angles.cos().to(wide).contiguous(), angles.sin().to(wide).contiguous()


def some_angles(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, generator=fresh(seed), dtype=torch.float64) * 12 - 6


def laid_out(
    layout: str, shape: tuple[int, int, int, int], dtype: torch.dtype, values: Tensor | None = None, seed: int = 2
) -> tuple[Tensor, Tensor]:
    """The memory, all sentinels but for `values` (or random numbers) in the view (B, H, S, D), and the view."""
    B, H, S, D = shape
    memory_shape, cut = {
        "BHSD": ((B, H, S, D), (slice(None),) * 4),
        "BSHD": ((B, S, H, D), (slice(None),) * 4),
        "fused": ((B, S, H + 3, D), (slice(None), slice(None), slice(2, H + 2))),
        "cache": ((B, H, S + 5, D), (slice(None), slice(None), slice(3, S + 3))),
        "slice": ((B, H, S, D + 5), (slice(None), slice(None), slice(None), slice(3, D + 3))),  # unaligned rows
    }[layout]
    memory = torch.full(memory_shape, SENTINEL, dtype=dtype)
    view = memory[cut]
    view = view.transpose(1, 2) if layout in {"BSHD", "fused"} else view
    view.copy_(torch.randn(shape, generator=fresh(seed), dtype=torch.float64) if values is None else values)
    return memory, view


def bits(x: Tensor) -> Tensor:
    return x.view(CARRIER[x.dtype])


def identical(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(bits(x), bits(y))


def tolerance(exact: NDArray[np.float64], size: NDArray[np.float64], dtype: torch.dtype) -> NDArray[np.float64]:
    """Half a unit in the last place of `dtype`, and what float32 (or float64) arithmetic with such a table may add.

    `size` is the length of the pair, turned: errors are relative to it, not to a channel that happens to be small.
    """
    if dtype == torch.float64:
        return 1e-15 * size
    if dtype == torch.float32:
        return 2.5e-7 * size
    digits, smallest = (8, -133) if dtype == torch.bfloat16 else (11, -24)
    last_place = np.ldexp(1.0, np.maximum(np.frexp(exact)[1] - digits, smallest))
    return np.asarray(0.5 * last_place + 2.5e-7 * size)


def assert_turned(y: Tensor, x: Tensor, angles: Tensor, turn: Turn) -> None:
    """`y` is `x` (B, H, S, D) turned by angles (S, P) or (B, S, P), rounded once; other channels are the same bits."""
    source = x.double().numpy()
    by = (angles if angles.dim() == 2 else angles.unsqueeze(1)).numpy()
    exact = definition.rotate(
        source, by, pairing=turn.pairing, part=turn.part, inverse=turn.inverse, factor=turn.factor
    )
    a, b = definition.pair_channels(turn.head_dim, turn.pairs, turn.pairing, turn.part)
    size = np.hypot(exact[..., a], exact[..., b])
    got = y.double().numpy()
    for channels in (a, b):
        error = np.abs(got[..., channels] - exact[..., channels])
        assert (error <= tolerance(exact[..., channels], size, y.dtype)).all()
    outside = np.setdiff1d(np.arange(turn.head_dim), turn.channels())
    assert identical(y[..., outside], x[..., outside])


# ---- against the definition ------------------------------------------------------------------------------------------


def ends(pairs: int) -> list[tuple[int, Part]]:
    """Heads that turn whole, or at one end."""
    return [(2 * pairs, Part.LEADING), (2 * pairs + 5, Part.LEADING), (2 * pairs + 3, Part.TRAILING)]


@levels
@dtypes
@pairings
def test_every_width_part_and_layout_agrees_with_the_definition(
    level: Level, dtype: torch.dtype, pairing: Pairing
) -> None:
    B, H, S = 2, 3, 5
    for pairs, layout in itertools.product(PAIRS, LAYOUTS):
        for head_dim, part in ends(pairs):
            turn = Turn(head_dim=head_dim, pairs=pairs, pairing=pairing, part=part)
            angles = some_angles(S, pairs, seed=pairs)
            (before, x), (memory, y) = (
                laid_out(layout, (B, H, S, head_dim), dtype),
                laid_out(LAYOUTS[pairs % 5], (B, H, S, head_dim), dtype, seed=3),
            )
            kept = before.clone()
            native.rotate((x,), (y,), *tables(angles, dtype), **turn.options(level))
            assert_turned(y, x, angles, turn)
            assert identical(before, kept)
            y.fill_(SENTINEL)
            assert memory.eq(SENTINEL).all()


@levels
@dtypes
@pairings
def test_in_place_gives_the_same_bits_and_touches_nothing_else(
    level: Level, dtype: torch.dtype, pairing: Pairing
) -> None:
    B, H, S = 2, 3, 19
    for pairs, layout in itertools.product((1, 7, 8, 12, 20, 32, 64), LAYOUTS):
        for head_dim, part in ends(pairs):
            turn = Turn(head_dim=head_dim, pairs=pairs, pairing=pairing, part=part)
            cos, sin = tables(some_angles(S, pairs), dtype)
            memory, x = laid_out(layout, (B, H, S, head_dim), dtype)
            before, y = x.clone(), torch.empty(B, H, S, head_dim, dtype=dtype)
            native.rotate((x,), (y,), cos, sin, **turn.options(level))
            native.rotate((x,), (x,), cos, sin, **turn.options(level))
            assert identical(x, y)
            outside = np.setdiff1d(np.arange(head_dim), turn.channels())
            assert identical(x[..., outside], before[..., outside])
            assert not identical(x, before)
            x.fill_(SENTINEL)
            assert memory.eq(SENTINEL).all()


@levels
@dtypes
def test_other_channels_are_copied_bit_by_bit_whatever_they_hold(level: Level, dtype: torch.dtype) -> None:
    """Signalling NaNs, subnormals, infinities: every pattern."""
    carrier = CARRIER[dtype]
    limits = torch.iinfo(carrier)
    patterns = torch.randint(limits.min, limits.max, (1, 2, 64, 40), generator=fresh(), dtype=carrier)
    x = patterns.view(dtype)
    for part in Part:
        turn = Turn(head_dim=40, pairs=8, pairing=Pairing.HALVES, part=part)
        outside = np.setdiff1d(np.arange(40), turn.channels())
        y = torch.zeros_like(x)
        native.rotate((x,), (y,), *tables(some_angles(64, 8), dtype), **turn.options(level))
        assert torch.equal(bits(y)[..., outside], patterns[..., outside])


@levels
@dtypes
def test_nothing_is_the_same_as_another_pairing_part_or_direction(level: Level, dtype: torch.dtype) -> None:
    """The companion of the comparisons above: each convention changes the numbers."""
    _, x = laid_out("BHSD", (2, 3, 5, 40), dtype)
    angles = some_angles(5, 16)
    results = []
    for pairing, part, inverse, factor in itertools.product(Pairing, Part, (False, True), (1.0, 1.25)):
        turn = Turn(head_dim=40, pairs=16, pairing=pairing, part=part, inverse=inverse, factor=factor)
        y = torch.empty_like(x)
        native.rotate((x,), (y,), *tables(angles, dtype), **turn.options(level))
        assert_turned(y, x, angles, turn)
        results.append(y)
    for one, two in itertools.combinations(results, 2):
        assert (one.double() - two.double()).abs().max() > 0.05


@levels
@dtypes
@pairings
@pytest.mark.parametrize("factor", [1.0, 0.7, 1.2079441541679836])
def test_inverse_and_factor_agree_with_the_definition(
    level: Level, dtype: torch.dtype, pairing: Pairing, factor: float
) -> None:
    for pairs in (3, 8, 20, 64):
        _, x = laid_out("BSHD", (2, 3, 5, 2 * pairs + 2), dtype)
        angles, there, back = some_angles(5, pairs), torch.empty_like(x), torch.empty_like(x)
        forward = Turn(head_dim=2 * pairs + 2, pairs=pairs, pairing=pairing, factor=factor)
        inverse = replace(forward, inverse=True)
        native.rotate((x,), (there,), *tables(angles, dtype), **forward.options(level))
        native.rotate((there,), (back,), *tables(angles, dtype), **inverse.options(level))
        assert_turned(there, x, angles, forward)
        assert_turned(back, there, angles, inverse)
        ulp = {torch.float64: 1e-15, torch.float32: 5e-7, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
        assert (back.double() - x.double()).abs().max() <= 8 * ulp
        assert (there.double() - x.double()).abs().max() > 0.5


@levels
@dtypes
@pairings
def test_each_row_of_the_batch_may_have_its_own_table(level: Level, dtype: torch.dtype, pairing: Pairing) -> None:
    B, H, S, pairs = 3, 2, 11, 12
    turn = Turn(head_dim=2 * pairs, pairs=pairs, pairing=pairing)
    for layout in LAYOUTS:
        _, x = laid_out(layout, (B, H, S, 2 * pairs), dtype)
        angles = some_angles(B, S, pairs)
        y, alone = torch.empty(B, H, S, 2 * pairs, dtype=dtype), torch.empty(B, H, S, 2 * pairs, dtype=dtype)
        native.rotate((x,), (y,), *tables(angles, dtype), **turn.options(level))
        assert_turned(y, x, angles, turn)
        for b in range(B):
            rows = slice(b, b + 1)
            native.rotate((x[rows],), (alone[rows],), *tables(angles[b], dtype), **turn.options(level))
        assert identical(y, alone)
        shared, one_row = torch.empty_like(y), torch.empty_like(y)
        native.rotate((x,), (shared,), *tables(angles[0], dtype), **turn.options(level))
        native.rotate((x,), (one_row,), *tables(angles[:1], dtype), **turn.options(level))
        assert identical(shared, one_row)
        assert identical(shared[0], y[0])
        assert not identical(shared[1], y[1])


@levels
@dtypes
@pairings
@pytest.mark.parametrize("heads", [(4, 1), (3, 2), (5, 5), (1, 1), (7, 2), (1, 6)], ids=str)
def test_two_tensors_in_one_call_are_two_calls(
    level: Level, dtype: torch.dtype, pairing: Pairing, heads: tuple[int, int]
) -> None:
    B, S, D, pairs = 2, 9, 20, 8
    turn = Turn(head_dim=D, pairs=pairs, pairing=pairing, part=Part.TRAILING)
    angles = some_angles(B, S, pairs)
    for layouts in (("BHSD", "BHSD"), ("fused", "fused"), ("BSHD", "cache")):
        inputs = tuple(laid_out(f, (B, H, S, D), dtype, seed=H)[1] for f, H in zip(layouts, heads, strict=True))
        together = tuple(laid_out("slice", (B, H, S, D), dtype)[1] for H in heads)
        native.rotate(inputs, together, *tables(angles, dtype), **turn.options(level))
        for x, y in zip(inputs, together, strict=True):
            alone = torch.empty(x.shape, dtype=dtype)
            native.rotate((x,), (alone,), *tables(angles, dtype), **turn.options(level))
            assert identical(alone, y)
            assert_turned(y, x, angles, turn)
        native.rotate(inputs, inputs, *tables(angles, dtype), **turn.options(level))
        assert all(itertools.starmap(identical, zip(inputs, together, strict=True)))


@levels
@pairings
def test_any_number_of_heads_and_positions_is_covered(level: Level, pairing: Pairing) -> None:
    """Heads go in groups and positions in runs: all remainders of both."""
    turn = Turn(head_dim=8, pairs=4, pairing=pairing)
    for H, S, layout in itertools.product(range(1, 6), range(1, 20), ("BHSD", "BSHD")):
        _, x = laid_out(layout, (2, H, S, 8), torch.float32)
        angles, y = some_angles(S, 4), torch.full((2, H, S, 8), math.nan)
        native.rotate((x,), (y,), *tables(angles, torch.float32), **turn.options(level))
        assert_turned(y, x, angles, turn)


@levels
@dtypes
@pairings
def test_rows_of_any_size_are_turned(level: Level, dtype: torch.dtype, pairing: Pairing) -> None:
    """The kernel keeps a row of the table on its stack where it is not too long for that."""
    for pairs, layout in itertools.product((1_023, 1_024, 1_025, 2_063), ("BSHD", "BHSD")):
        turn = Turn(head_dim=2 * pairs + 1, pairs=pairs, pairing=pairing, factor=1.25)
        _, x = laid_out(layout, (1, 3, 2, 2 * pairs + 1), dtype)
        angles, y = some_angles(2, pairs), torch.empty_like(x)
        native.rotate((x,), (y,), *tables(angles, dtype), **turn.options(level))
        assert_turned(y, x, angles, turn)


LARGE = [(torch.float32, "BHSD"), (torch.float32, "slice"), (torch.bfloat16, "BHSD"), (torch.float16, "fused")]


@levels
@pairings
@pytest.mark.parametrize(("dtype", "layout"), LARGE, ids=[f"{dtype}-{layout}"[6:] for dtype, layout in LARGE])
def test_results_larger_than_the_caches_are_the_same_bits(
    level: Level, dtype: torch.dtype, pairing: Pairing, layout: str
) -> None:
    """They are written past the caches where rows are whole cache lines, not in a `slice`; nothing beside them is."""
    S, D = (2_060, 64) if layout == "fused" else (1_030, 128)
    heads = 2**24 // (S * D * dtype.itemsize) + 1  # 16 MiB and a bit
    memory, y = laid_out(layout, (1, heads, S, D), dtype, torch.tensor(SENTINEL))
    x = torch.empty_like(y).copy_(torch.randn(heads, 1, 1, generator=fresh(0)) * torch.randn(S, D, generator=fresh(1)))
    assert y.numel() * y.element_size() >= 2**24
    assert (y.data_ptr() % 64 == 0) == (layout != "slice")
    turn = Turn(head_dim=D, pairs=D // 2, pairing=pairing)
    cos, sin = tables(some_angles(S, turn.pairs), dtype)
    native.rotate((x,), (y,), cos, sin, **turn.options(level))
    untouched = torch.empty_like(x)
    native.rotate((x,), (untouched,), cos, sin, **turn.options(level), fresh=True)
    native.rotate((x,), (x,), cos, sin, **turn.options(level))
    assert identical(x, y)
    assert identical(x, untouched)
    y.fill_(SENTINEL)
    assert memory.eq(SENTINEL).all()


@levels
@dtypes
def test_an_expanded_input_is_read_through_its_strides(level: Level, dtype: torch.dtype) -> None:
    row = torch.randn(1, 1, 1, 16, generator=fresh(), dtype=torch.float64).to(dtype)
    turn = Turn(head_dim=16, pairs=8, pairing=Pairing.HALVES)
    for shape in ((2, 3, 5, 16), (2, 1, 5, 16), (1, 3, 1, 16)):
        x, y, angles = row.expand(shape), torch.empty(shape, dtype=dtype), some_angles(shape[2], 8)
        native.rotate((x,), (y,), *tables(angles, dtype), **turn.options(level))
        assert_turned(y, x, angles, turn)


@levels
def test_no_tokens_heads_or_rows_are_no_work(level: Level) -> None:
    turn = Turn(head_dim=8, pairs=4, pairing=Pairing.HALVES)
    for shape in ((0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8)):
        x = torch.empty(shape)
        native.rotate((x,), (x,), *tables(some_angles(shape[2], 4), torch.float32), **turn.options(level))


@levels
@dtypes
@pairings
def test_position_zero_is_the_identity(level: Level, dtype: torch.dtype, pairing: Pairing) -> None:
    for pairs in (7, 8, 16):
        _, x = laid_out("BHSD", (2, 3, 5, 2 * pairs), dtype)
        y = torch.empty_like(x)
        turn = Turn(head_dim=2 * pairs, pairs=pairs, pairing=pairing)
        native.rotate((x,), (y,), *tables(torch.zeros(5, pairs), dtype), **turn.options(level))
        assert identical(x, y)


@dtypes
@pairings
def test_all_levels_agree_but_for_the_last_place(dtype: torch.dtype, pairing: Pairing) -> None:
    """Fused multiplication and addition may differ from the two in turn, by no more than one rounding of a product."""
    for pairs, layout in itertools.product(PAIRS, ("BHSD", "fused")):
        turn = Turn(head_dim=2 * pairs, pairs=pairs, pairing=pairing)
        _, x = laid_out(layout, (2, 3, 9, 2 * pairs), dtype)
        angles = some_angles(9, pairs)
        results = []
        for level in LEVELS:
            y = torch.empty(2, 3, 9, 2 * pairs, dtype=dtype)
            native.rotate((x,), (y,), *tables(angles, dtype), **turn.options(level))
            results.append(y)
        a, b = definition.pair_channels(2 * pairs, pairs, pairing, Part.LEADING)
        length = torch.hypot(x[..., a].double(), x[..., b].double())
        length = torch.cat((length, length), -1)[..., np.argsort(turn.channels())]
        for one, two in itertools.pairwise(results):
            slack = length * (2.0**-51 if dtype == torch.float64 else 2.0**-22)
            if dtype in {torch.bfloat16, torch.float16}:
                slack += one.double().abs() * (2.0**-7 if dtype == torch.bfloat16 else 2.0**-10) + 2.0**-24
                assert (one != two).double().mean() < 0.02
            assert ((one.double() - two.double()).abs() <= slack).all()


# ---- rounding, bit by bit --------------------------------------------------------------------------------------------


def turned_to(values: Tensor, dtype: torch.dtype, turn: Turn, level: Level, *, second: bool) -> Tensor:
    """float32 `values` as they come out of the kernel: they are the cosine that multiplies a channel of 1."""
    P = turn.pairs
    filled = torch.cat((values, values.new_zeros(-len(values) % P))).view(-1, P)  # (S, P)
    a, b = definition.pair_channels(turn.head_dim, P, turn.pairing, turn.part)
    x = torch.zeros(1, 1, len(filled), turn.head_dim, dtype=dtype)
    x[..., b if second else a] = 1.0
    x[..., a if second else b] = -0.0 if second else 0.0  # so that a negative zero stays one
    y = torch.empty_like(x)
    native.rotate((x,), (y,), filled, torch.zeros_like(filled), **turn.options(level))
    return y[0, 0][:, b if second else a].reshape(-1)[: len(values)]


@functools.cache
def every_kind_of_float32(dtype: torch.dtype) -> Tensor:
    """Each number of `dtype` as float32, and around the middle between it and the next: where rounding decides."""
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    here, beyond = (bits(x.view(dtype).float()) for x in (patterns, patterns + 1))
    gap = torch.where(beyond.view(torch.float32).isfinite(), beyond - here, 2**13)
    around = torch.cat([here, here + 1, *(here + gap // 2 + step for step in (-1, 0, 1))])
    tie = torch.tensor([2.0**-25, 2.0**-134, 65_520.0])  # with zero, and with infinity
    edges = [tie, tie.nextafter(tie + 1), tie.nextafter(-tie), torch.tensor([1e38, 3.4e38, math.inf, math.nan, 1e-45])]
    return torch.cat([around.view(torch.float32), *edges, *(-x for x in edges)])


@levels
@pairings
@pytest.mark.parametrize("pairs", [7, 8, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_every_kind_of_number_is_rounded_to_nearest_even_as_torch_rounds(
    level: Level, dtype: torch.dtype, pairing: Pairing, pairs: int
) -> None:
    values = every_kind_of_float32(dtype)
    expected = values.to(dtype)
    turn = Turn(head_dim=2 * pairs, pairs=pairs, pairing=pairing)
    for second in (False, True):
        got = turned_to(values, dtype, turn, level, second=second)
        same = (bits(got) == bits(expected)) | (got.isnan() & expected.isnan())
        if level is Level.AVX512 and dtype == torch.bfloat16:  # its conversion takes subnormals of float32 for zero
            same |= (values.abs() < 2.0**-126) & (got == 0) & (got.signbit() == values.signbit())
        assert same.all()


def test_the_numbers_to_be_rounded_are_ties_and_edges_indeed() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        values = every_kind_of_float32(dtype)
        rounded = values.to(dtype)
        chopped = bits(values).bitwise_and(~0xFFFF).view(torch.float32)
        assert rounded.isinf().any()
        assert rounded.isnan().any()
        assert (rounded == 0).any()
        assert (rounded.float() != chopped).any()
        below, above = rounded.float() < values, rounded.float() > values
        assert min(below.sum(), above.sum()) > 50_000


@levels
@pairings
@pytest.mark.parametrize("pairs", [7, 8, 16, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_every_bit_pattern_is_read_and_written_back_unchanged(
    level: Level, dtype: torch.dtype, pairing: Pairing, pairs: int
) -> None:
    patterns = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    patterns = torch.cat((patterns, patterns.new_zeros(-len(patterns) % pairs))).view(-1, pairs)
    a, b = definition.pair_channels(2 * pairs, pairs, pairing, Part.LEADING)
    cos = torch.ones(len(patterns), pairs)
    for channels, zero in ((a, 0.0), (b, -0.0)):
        x = torch.full((1, 1, len(patterns), 2 * pairs), zero, dtype=dtype)
        x[0, 0][:, channels] = patterns.view(dtype)
        turn = Turn(head_dim=2 * pairs, pairs=pairs, pairing=pairing)
        native.rotate((x,), (x,), cos, torch.zeros_like(cos), **turn.options(level))
        got, expected = x[0, 0][:, channels], patterns.view(dtype)
        same = (bits(got) == patterns) | (got.isnan() & expected.isnan())
        if level is Level.AVX512 and dtype == torch.bfloat16:
            same |= (expected.abs() < 2.0**-126) & (got == 0) & (got.signbit() == expected.signbit())
        assert same.all()


@levels
@dtypes
def test_infinities_and_nans_stay_in_their_pair(level: Level, dtype: torch.dtype) -> None:
    for pairing, pairs in itertools.product(Pairing, (3, 8, 16)):
        turn = Turn(head_dim=2 * pairs, pairs=pairs, pairing=pairing)
        a, b = definition.pair_channels(2 * pairs, pairs, pairing, Part.LEADING)
        clean = torch.randn(1, 1, 1, 2 * pairs, generator=fresh(), dtype=torch.float64).to(dtype)
        cos, sin = tables(some_angles(1, pairs), dtype)
        expected = torch.empty_like(clean)
        native.rotate((clean,), (expected,), cos, sin, **turn.options(level))
        for j, value in itertools.product(range(pairs), (math.inf, math.nan)):
            x = clean.clone()
            x[..., a[j]] = value
            native.rotate((x,), (x,), cos, sin, **turn.options(level))
            touched = torch.zeros(2 * pairs, dtype=torch.bool)
            touched[[a[j], b[j]]] = True
            assert not x[..., touched].isfinite().any()
            assert identical(x[..., ~touched], expected[..., ~touched])


# ---- positions in the place of tables --------------------------------------------------------------------------------


def words(pairs: int) -> Tensor:
    return native_words(words_of(Geometric(width=2 * pairs, base=5e5).frequencies()))


@levels
@dtypes
@pairings
def test_turning_at_positions_is_filling_a_table_and_turning(
    level: Level, dtype: torch.dtype, pairing: Pairing
) -> None:
    B, H = 2, 3
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for S, pairs, narrow, rows in (
        (1, 64, False, 0),
        (5, 7, True, 0),
        (3, 12, False, B),
        (300, 20, True, 1),
        (1, 8, True, B),
    ):
        turn = Turn(head_dim=2 * pairs + 2, pairs=pairs, pairing=pairing, part=Part.TRAILING, inverse=True, factor=1.25)
        shape = (rows, S) if rows else (S,)
        positions = torch.randint(-(2**31) + 1, 2**31, shape, generator=fresh())
        positions = positions.to(torch.int32) if narrow else positions
        cos, sin = torch.empty(*shape, pairs, dtype=wide), torch.empty(*shape, pairs, dtype=wide)
        assert native.fill_table(positions, words(pairs), cos, sin, at=level)
        inputs = tuple(laid_out("BSHD", (B, heads, S, 2 * pairs + 2), dtype)[1] for heads in (H, 1))
        by_table, directly = (tuple(torch.zeros(x.shape, dtype=dtype) for x in inputs) for _ in range(2))
        native.rotate(inputs, by_table, cos, sin, **turn.options(level))
        assert native.rotate_at(inputs, directly, positions, words(pairs), **turn.options(level))
        assert all(itertools.starmap(identical, zip(by_table, directly, strict=True)))
        assert native.rotate_at(inputs, directly, positions.flip(-1) + 1, words(pairs), **turn.options(level))
        assert not identical(by_table[0], directly[0])


@levels
@pytest.mark.parametrize("position", [2**31, -(2**31), 2**62, -(2**63)])
def test_nothing_is_turned_where_one_position_is_beyond_31_bits(level: Level, position: int) -> None:
    turn = Turn(head_dim=16, pairs=8, pairing=Pairing.HALVES)
    x, y = torch.randn(1, 2, 3, 16, generator=fresh()), torch.full((1, 2, 3, 16), SENTINEL)
    before = x.clone()
    positions = torch.tensor([5, 6, position])
    assert not native.rotate_at((x,), (y,), positions, words(8), **turn.options(level))
    assert not native.rotate_at((x,), (x,), positions, words(8), **turn.options(level))
    assert y.eq(SENTINEL).all()
    assert identical(x, before)
    assert not native.fill_table(positions, words(8), torch.empty(3, 8), torch.empty(3, 8), at=level)
    edge = torch.tensor([5, 2**31 - 1, -(2**31) + 1])
    assert native.rotate_at((x,), (y,), edge, words(8), **turn.options(level))
    assert not y.eq(SENTINEL).any()


@levels
def test_the_least_int32_is_beyond_31_bits_too(level: Level) -> None:
    for least, good in ((-(2**31), False), (-(2**31) + 1, True)):
        positions = torch.tensor([least], dtype=torch.int32)
        assert native.fill_table(positions, words(4), torch.empty(1, 4), torch.empty(1, 4), at=level) == good


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def _threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_restored")
@levels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", ["BHSD", "BSHD"])
def test_the_number_of_threads_changes_no_bit(level: Level, dtype: torch.dtype, layout: str) -> None:
    """Far above the least work of a thread, in odd sizes, so that shares end inside heads, groups and runs."""
    B, S, D = 2, 517, 72
    turn = Turn(head_dim=D, pairs=32, pairing=Pairing.ADJACENT, part=Part.TRAILING)
    inputs = tuple(laid_out(layout, (B, H, S, D), dtype)[1] for H in (3, 1))
    angles = some_angles(S, 32)
    cos, sin = tables(angles, dtype)
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        outputs = tuple(torch.full_like(x, SENTINEL) for x in inputs)
        native.rotate(inputs, outputs, cos, sin, **turn.options(level))
        results.append(outputs)
    for x, y in zip(inputs, results[0], strict=True):
        assert_turned(y, x, angles, turn)
        assert y.ne(SENTINEL).all()
    for outputs in results[1:]:
        assert all(itertools.starmap(identical, zip(outputs, results[0], strict=True)))


@pytest.mark.usefixtures("_threads_restored")
@levels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_number_of_threads_changes_no_bit_of_a_table(level: Level, dtype: torch.dtype) -> None:
    positions = torch.arange(-3_000, 3_001)
    tables_of = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        cos, sin = torch.full((2, len(positions), 33), SENTINEL, dtype=dtype)
        assert native.fill_table(positions, words(33), cos, sin, at=level)
        tables_of.append(torch.cat((cos, sin)))
    assert tables_of[0].ne(SENTINEL).all()
    assert all(identical(table, tables_of[0]) for table in tables_of[1:])


@pytest.mark.usefixtures("_threads_restored")
def test_one_position_beyond_31_bits_is_found_by_whichever_thread_meets_it() -> None:
    torch.set_num_threads(2)
    for at in (0, 3_000, 5_999):
        positions = torch.arange(6_000)
        positions[at] = 2**31
        cos, sin = torch.empty(2, 6_000, 32)
        assert not native.fill_table(positions, words(32), cos, sin, at=LEVELS[-1])
        assert native.fill_table(positions.clamp_max(2**31 - 1), words(32), cos, sin, at=LEVELS[-1])


def test_many_threads_of_python_do_not_disturb_each_other() -> None:
    """Different sizes, types and tables at once, some large enough to be shared among threads again."""

    def job(seed: int) -> tuple[Tensor, Tensor]:
        S, pairs, dtype = 3 + 97 * (seed % 5), 8 + 4 * (seed % 3), DTYPES[seed % 4]
        turn = Turn(head_dim=2 * pairs, pairs=pairs, pairing=list(Pairing)[seed % 2])
        _, x = laid_out(LAYOUTS[seed % 5], (2, 4, S, 2 * pairs), dtype, seed=seed)
        positions = torch.arange(seed, seed + S)
        y, z = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=dtype)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        cos, sin = torch.empty(2, S, pairs, dtype=wide)
        assert native.fill_table(positions, words(pairs), cos, sin, at=LEVELS[-1])
        native.rotate((x,), (y,), cos, sin, **turn.options(LEVELS[-1]))
        assert native.rotate_at((x,), (z,), positions, words(pairs), **turn.options(LEVELS[-1]))
        return y, z

    seeds = list(range(40))
    expected = [job(seed) for seed in seeds]
    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(job, seeds * 3))
    for (y, z), (y_alone, z_alone) in zip(got, expected * 3, strict=True):
        assert identical(y, y_alone)
        assert identical(z, z_alone)
    assert not identical(expected[0][0][:, :, :3, :16], expected[20][0][:, :, :3, :16])


# ---- which level -----------------------------------------------------------------------------------------------------


def test_the_levels_are_those_of_the_processor_slowest_first() -> None:
    assert tuple(sorted(LEVELS)) == LEVELS
    assert LEVELS[0] is Level.BASELINE
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    assert (Level.AVX2 in LEVELS) <= all(flag in flags for flag in (" avx2", " fma", " f16c"))
    assert (Level.AVX512 in LEVELS) <= (" avx512_bf16" in flags)


def test_the_variable_caps_the_level() -> None:
    everything = tuple(Level)
    assert native._capped(everything, "") is Level.AVX512
    assert native._capped(everything, "baseline") is Level.BASELINE
    assert native._capped(everything, "avx2") is Level.AVX2
    assert native._capped(everything, "avx512") is Level.AVX512
    assert native._capped(everything, "off") is None
    assert native._capped((Level.BASELINE,), "avx512") is Level.BASELINE
    with pytest.raises(ConfigError) as caught:
        native._capped(everything, "sse9")
    rule = "must be off, baseline, avx2, avx512"
    assert str(caught.value) == f"The environment variable `ROPEWALK_CPU` {rule}, but is 'sse9'."


PROBE = """
import json, os, sys
from ropewalk import Pairing, Rotary, kernels
from ropewalk.kernels import native
import torch

def told():
    report = kernels.info()
    q, k = Rotary(head_dim=64, pairing=Pairing.HALVES)(x, x, 1_000)
    return {
        "level": report.native_level, "levels": report.native_levels, "available": native.available(),
        "sum": q.double().abs().sum().item(), "some": q[1, 2, 199, ::9].tolist(),
    }

x = torch.linspace(-1, 1, 2 * 3 * 200 * 64).view(2, 3, 200, 64)
answers = {}
for os.environ["ROPEWALK_CPU"] in sys.argv[1:]:
    native._library.cache_clear(), native.level.cache_clear()  # as if the process had just begun
    try:
        answers[os.environ["ROPEWALK_CPU"]] = told()
    except Exception as error:
        answers[os.environ["ROPEWALK_CPU"]] = [type(error).__name__, str(error)]
print(json.dumps(answers))
"""

Answers = dict[str, Any]


@pytest.fixture(scope="module")
def told() -> Answers:
    """What a process says of itself for each value of the variable; a warning would be an error."""
    source = Path(ropewalk.__file__).parents[1]
    path = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, "-W", "error", "-c", PROBE, "", "nonsense", "baseline", "AVX2", "off"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    answers: Answers = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("value", ["", "baseline", "AVX2", "off"])
def test_the_variable_chooses_the_kernel_and_not_the_answer(told: Answers, value: str) -> None:
    """Without the kernel it is off silently: it was asked for."""
    best = {"": Level.AVX512, "baseline": Level.BASELINE, "AVX2": Level.AVX2}.get(value)
    expected = "off" if best is None else max(level for level in LEVELS if level <= best).name.lower()
    answer = told[value]
    assert answer["level"] == expected
    assert answer["available"] == (value != "off")
    assert answer["levels"] == [level.name.lower() for level in LEVELS]
    assert answer["sum"] == pytest.approx(told[""]["sum"], rel=1e-7)
    assert answer["some"] == pytest.approx(told[""]["some"], abs=3e-7)
    assert max(map(abs, answer["some"])) > 0.1


def test_a_variable_that_makes_no_sense_is_refused_in_one_sentence(told: Answers) -> None:
    sentence = "The environment variable `ROPEWALK_CPU` must be off, baseline, avx2, avx512, but is 'nonsense'."
    assert told["nonsense"] == ["ConfigError", sentence]


def test_threads_are_borrowed_from_a_runtime_that_was_there_before() -> None:
    source = native.thread_source()
    if source is None:
        pytest.skip("torch runs on no OpenMP runtime that speaks GNU's ABI here")
    assert Path(source).exists()
    maps = Path("/proc/self/maps")
    if maps.exists():
        runtimes = {line.split()[-1] for line in maps.read_text(encoding="utf-8").splitlines() if "omp" in line}
        assert source in runtimes
