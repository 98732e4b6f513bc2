"""What `rotate` gives, against exact angles and the NumPy definition: every dtype, layout and body."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oracle import FLOATS, assert_turned, random
from ropewalk import Pairing, Part, Rotary, rotate

pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)

B, H, S, D = 2, 5, 11, 48
"""Odd numbers of heads and positions, and 24 pairs: vectors of 16, of 8, and a rest."""


# ---- memory layouts of (B, H, S, D) --------------------------------------------------------------------------------


def contiguous(dtype: torch.dtype) -> Tensor:
    return random(B, H, S, D, dtype=dtype)


def heads_last(dtype: torch.dtype) -> Tensor:
    return random(B, S, H, D, dtype=dtype).transpose(1, 2)


def slice_of_fused_projection(dtype: torch.dtype) -> Tensor:
    """Queries of a projection that makes q, k and v with fewer heads for k and v."""
    return random(B, S, (H + 4) * D, dtype=dtype)[..., : H * D].view(B, S, H, D).transpose(1, 2)


def third_of_fused_projection(dtype: torch.dtype) -> Tensor:
    return random(B, S, 3, H, D, dtype=dtype)[:, :, 1].transpose(1, 2)


def head_by_head(dtype: torch.dtype) -> Tensor:
    """(B, S, H, 3, D): each head has its q, k and v side by side."""
    return random(B, S, H, 3, D, dtype=dtype)[:, :, :, 0].transpose(1, 2)


def positions_first(dtype: torch.dtype) -> Tensor:
    return random(S, B, H, D, dtype=dtype).permute(1, 2, 0, 3)


def front_of_wider_heads(dtype: torch.dtype) -> Tensor:
    return random(B, H, S, D + 7, dtype=dtype)[..., 3 : 3 + D]


def every_other_position(dtype: torch.dtype) -> Tensor:
    return random(B, H, 2 * S, D, dtype=dtype)[:, :, ::2]


def expanded_batch(dtype: torch.dtype) -> Tensor:
    return random(1, H, S, D, dtype=dtype).expand(B, H, S, D)


LAYOUTS = [
    contiguous,
    heads_last,
    slice_of_fused_projection,
    third_of_fused_projection,
    head_by_head,
    positions_first,
    front_of_wider_heads,
    every_other_position,
    expanded_batch,
]
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)


# ---- against the definition ----------------------------------------------------------------------------------------


@floats
@pairings
@layouts
@pytest.mark.parametrize("per_row", [False, True], ids=["shared", "per row"])
@pytest.mark.usefixtures("body")
def test_every_layout_is_turned_as_defined(
    layout: Callable[[torch.dtype], Tensor], pairing: Pairing, dtype: torch.dtype, per_row: bool
) -> None:
    x, rope = layout(dtype), Rotary(head_dim=D, pairing=pairing)
    at = torch.tensor([[400], [100_003]]) + torch.arange(S) if per_row else torch.arange(S) + 400
    assert_turned(rotate(x, rope.table(at)), x, at, pairing=pairing)


@pairings
@pytest.mark.parametrize("head_dim", [2, 4, 6, 16, 30, 32, 34, 64, 66, 80, 128, 256])
@pytest.mark.usefixtures("body")
def test_every_width_of_head_is_turned_as_defined(head_dim: int, pairing: Pairing) -> None:
    rope, at = Rotary(head_dim=head_dim, pairing=pairing, base=500_000.0), torch.arange(70) + 1000
    for dtype in FLOATS:
        x = random(1, 3, 70, head_dim, dtype=dtype)
        assert_turned(rotate(x, rope.table(at)), x, at, pairing=pairing, base=500_000.0)


@pairings
@pytest.mark.usefixtures("body")
def test_heads_wider_than_any_are_turned_as_defined(pairing: Pairing) -> None:
    rope, at = Rotary(head_dim=2100, pairing=pairing), torch.arange(3) + 1000
    for x in (random(1, 2, 3, 2100), random(1, 3, 2, 2100, dtype=torch.bfloat16).transpose(1, 2)):
        assert_turned(rotate(x, rope.table(at)), x, at, pairing=pairing)


@pairings
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("position_major", [False, True], ids=["(B, H, S, D)", "(B, S, H, D)"])
def test_tensors_larger_than_the_caches_are_turned_as_defined(
    head_dim: int, position_major: bool, dtype: torch.dtype, pairing: Pairing
) -> None:
    """Work is shared among threads, and results may be written past the caches."""
    heads, length = 4, 17_000_000 // (4 * head_dim * dtype.itemsize)
    memory = torch.empty(heads * length * head_dim).normal_(generator=torch.Generator().manual_seed(0)).to(dtype)
    x = memory.view(1, length, heads, head_dim).transpose(1, 2) if position_major else memory.view(1, heads, length, -1)
    at = torch.arange(length) + 100_000
    table = Rotary(head_dim=head_dim, pairing=pairing).table(at)
    y = rotate(x, table)
    for part in (slice(0, 9), slice(length // 2 - 9, length // 2 + 9), slice(length - 9, length)):
        assert_turned(y[:, :, part], x[:, :, part], at[part], pairing=pairing)
    assert torch.equal(rotate(x, table, inplace=True), y)


@floats
@pairings
@pytest.mark.parametrize("part", Part, ids=lambda part: part.value)
@pytest.mark.parametrize(("rotary_dim", "head_dim"), [(2, 4), (16, 80), (38, 64), (64, 96), (62, 64)])
@pytest.mark.usefixtures("body")
def test_a_part_of_the_head_is_turned_and_the_rest_passes_bit_by_bit(
    rotary_dim: int, head_dim: int, part: Part, pairing: Pairing, dtype: torch.dtype
) -> None:
    rope = Rotary(head_dim=head_dim, pairing=pairing, rotary_dim=rotary_dim, part=part)
    x, at = random(2, 3, 5, head_dim, dtype=dtype), torch.arange(5) + 77
    y = rotate(x, rope.table(at))
    assert_turned(y, x, at, pairing=pairing, rotary_dim=rotary_dim, part=part)
    turning = slice(0, rotary_dim) if part is Part.LEADING else slice(head_dim - rotary_dim, head_dim)
    passing = slice(rotary_dim, head_dim) if part is Part.LEADING else slice(0, head_dim - rotary_dim)
    assert torch.equal(y[..., passing], x[..., passing])
    assert not torch.equal(y[..., turning], x[..., turning])


@pytest.mark.parametrize(
    "shape",
    [(S, D), (H, S, D), (2, B, H, S, D), (2, 1, B, H, S, D), (1, 1, 1, D), (B, H, 1, D)],
    ids=lambda shape: f"{len(shape)}-D",
)
@pairings
@pytest.mark.usefixtures("body")
def test_any_number_of_leading_axes_is_turned_as_defined(shape: tuple[int, ...], pairing: Pairing) -> None:
    rope = Rotary(head_dim=D, pairing=pairing)
    at = torch.arange(shape[-2]) + 9
    for x in (random(*shape), random(*shape, dtype=torch.bfloat16)):
        assert_turned(rotate(x, rope.table(at)), x, at, pairing=pairing)


@pytest.mark.usefixtures("body")
def test_leading_axes_that_no_view_can_flatten_are_turned_as_defined() -> None:
    rope, at = Rotary(head_dim=D, pairing=Pairing.HALVES), torch.arange(S)
    x = random(B, 3, H, S, D).transpose(0, 1)
    assert_turned(rotate(x, rope.table(at)), x, at, pairing=Pairing.HALVES)
    rows = torch.arange(B * S).view(B, S)  # B is the axis before the heads, however many come before it
    assert_turned(rotate(x, rope.table(rows)), x, rows, pairing=Pairing.HALVES)


@pytest.mark.parametrize("shape", [(0, H, S, D), (B, 0, S, D), (B, H, 0, D), (0, D), (H, 0, D)])
@pairings
@pytest.mark.usefixtures("body")
def test_nothing_to_turn_gives_nothing(shape: tuple[int, ...], pairing: Pairing) -> None:
    rope, x = Rotary(head_dim=D, pairing=pairing), torch.empty(shape)
    table = rope.table(torch.arange(shape[-2]))
    assert rotate(x, table).shape == shape
    assert rotate(x, table, inplace=True) is x
    x.requires_grad_()
    rotate(x, table).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


@st.composite
def scattered(draw: st.DrawFn) -> tuple[Tensor, int, Part]:
    """(B, H, S, D) in any order in memory, with gaps, and how many of its channels turn at which end."""
    sizes_of_axes = [draw(st.integers(1, limit)) for limit in (3, 5, 9)]
    rotary_dim, passing, gap = 2 * draw(st.integers(1, 40)), draw(st.integers(0, 9)), draw(st.integers(0, 3))
    order = draw(st.permutations(range(3)))
    memory = random(*(sizes_of_axes[axis] for axis in order), gap + rotary_dim + passing, seed=draw(st.integers(0, 99)))
    x = memory.to(draw(st.sampled_from(FLOATS)))[..., gap:].permute(*(order.index(axis) for axis in range(3)), 3)
    return x, rotary_dim, draw(st.sampled_from(Part))


@settings(deadline=None, max_examples=150)
@given(scattered(), st.sampled_from(Pairing), st.booleans(), st.booleans())
def test_any_shape_in_any_memory_is_turned_as_defined(
    case: tuple[Tensor, int, Part], pairing: Pairing, per_row: bool, inplace: bool
) -> None:
    x, rotary_dim, part = case
    at = torch.arange(x.shape[0] * x.shape[2]).view(x.shape[0], -1) * 1001 if per_row else torch.arange(x.shape[2]) + 77
    rope = Rotary(head_dim=x.shape[-1], pairing=pairing, rotary_dim=rotary_dim, part=part)
    turned_x = rotate(x.clone() if inplace else x, rope.table(at), inplace=inplace)
    assert_turned(turned_x, x, at, pairing=pairing, rotary_dim=rotary_dim, part=part)


@floats
@pairings
@pytest.mark.usefixtures("body")
def test_rows_of_many_positions_each_take_their_own_table(pairing: Pairing, dtype: torch.dtype) -> None:
    rope, at = Rotary(head_dim=D, pairing=pairing), torch.tensor([[0], [70_000], [300]]) + torch.arange(70)
    for x in (random(3, 2, 70, D, dtype=dtype), random(3, 70, 2, D, dtype=dtype).transpose(1, 2)):
        assert_turned(rotate(x, rope.table(at)), x, at, pairing=pairing)


@pytest.mark.usefixtures("body")
def test_one_row_of_a_table_serves_every_row_of_the_batch() -> None:
    rope, x, at = Rotary(head_dim=D, pairing=Pairing.ADJACENT), contiguous(torch.float32), torch.arange(S) + 3
    assert torch.equal(rotate(x, rope.table(at[None])), rotate(x, rope.table(at)))


@layouts
@pytest.mark.usefixtures("body")
def test_the_output_keeps_the_memory_layout_of_the_input(layout: Callable[[torch.dtype], Tensor]) -> None:
    x = layout(torch.float32)
    y = rotate(x, Rotary(head_dim=D, pairing=Pairing.HALVES).table(torch.arange(S)))
    assert y.stride() == torch.empty_like(x).stride()
    if layout in (contiguous, heads_last, positions_first):
        assert y.stride() == x.stride()


@pytest.mark.parametrize(
    ("position", "x", "adjacent", "halves"),
    [
        # theta = (1, 0.1). cos 3 = -0.9899924966, sin 3 = 0.1411200081; cos 0.3 = 0.9553364891, sin 0.3 = 0.2955202067
        (
            3,
            (1.0, 2.0, 3.0, 4.0),
            (-1.2722325127, -1.8388649851, 1.6839286407, 4.7079065764),
            (-1.4133525208, 0.7285921515, -2.8288574817, 4.4123863698),
        ),
        # cos 1000 = 0.5623790763, sin 1000 = 0.8268795405; cos 100 = 0.8623188723, sin 100 = -0.5063656411
        (
            1000,
            (1.0, -2.0, 0.5, 4.0),
            (2.2161381574, -0.2978786120, 2.4566220006, 3.1960926686),
            (0.1489393060, 0.3008248198, 1.1080690787, 4.4620067714),
        ),
    ],
)
@pytest.mark.usefixtures("body")
def test_four_channels_worked_out_by_hand(
    position: int, x: tuple[float, ...], adjacent: tuple[float, ...], halves: tuple[float, ...]
) -> None:
    for pairing, want in ((Pairing.ADJACENT, adjacent), (Pairing.HALVES, halves)):
        table = Rotary(head_dim=4, pairing=pairing, base=100.0).table(torch.tensor([position]))
        exact = torch.tensor([want], dtype=torch.float64)
        for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-6), (torch.bfloat16, 2.0**-8)):
            got = rotate(torch.tensor([x], dtype=dtype), table).double()
            torch.testing.assert_close(got, exact, rtol=tolerance, atol=tolerance)
