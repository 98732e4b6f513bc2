"""The gradient of every option against differences: first and second ones, forward mode, batches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from oracle import FLOATS, random
from ropewalk import Pairing, Part, Rotary, Table, rotate, rotate_both

pytestmark = [
    pytest.mark.usefixtures("body"),
    # torch's own forward-mode formulas are scripted at their first use
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]
pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)

AT = torch.tensor([3, 40])
ROWS = torch.tensor([[3, 40], [1000, 2]])
ROPES = {
    "whole": {},
    "leading": {"rotary_dim": 4, "part": Part.LEADING},
    "trailing": {"rotary_dim": 4, "part": Part.TRAILING},
}
parts = pytest.mark.parametrize("part", ROPES)
directions = pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
places = pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])


def rope_of(pairing: Pairing = Pairing.HALVES, part: str = "whole", head_dim: int = 6) -> Rotary:
    options: dict[str, Any] = ROPES[part]
    return Rotary(head_dim=head_dim, pairing=pairing, base=10.0, **options)


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return random(*shape, dtype=dtype, seed=seed).requires_grad_()


def check_twice(function: Callable[..., Any], *inputs: Tensor) -> None:
    """First and second derivatives against differences, and forward mode against both."""
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


@pairings
@parts
@directions
@places
@pytest.mark.parametrize("positions", [AT, ROWS], ids=["shared", "per row"])
def test_gradients_of_rotate(pairing: Pairing, part: str, inverse: bool, inplace: bool, positions: Tensor) -> None:
    rope = rope_of(pairing, part)

    def turn(x: Tensor) -> Tensor:
        return rotate(x * 1, rope.table(positions), inverse=inverse, inplace=inplace)

    check_twice(turn, leaf(2, 1, 2, 6))


@pairings
@directions
@places
def test_gradients_of_rotate_with_a_factor(pairing: Pairing, inverse: bool, inplace: bool) -> None:
    angles = random(2, 2, dtype=torch.float64)
    table = Table(angles.cos(), angles.sin(), pairing=pairing, head_dim=6, part=Part.TRAILING, factor=2.0)
    check_twice(lambda x: rotate(x * 1, table, inverse=inverse, inplace=inplace), leaf(1, 2, 2, 6))


@pairings
@places
def test_gradients_of_rotate_both(pairing: Pairing, inplace: bool) -> None:
    rope = rope_of(pairing, "leading")

    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rotate_both(q * 1, k * 1, rope.table(ROWS), inplace=inplace, inverse=inplace)

    check_twice(turn, leaf(2, 2, 2, 6), leaf(2, 1, 2, 6, seed=1))


@pairings
@parts
@directions
def test_gradients_of_real_positions(pairing: Pairing, part: str, inverse: bool) -> None:
    rope, at = rope_of(pairing, part), torch.tensor([0.25, -1000.75], dtype=torch.float64, requires_grad=True)

    def turn(x: Tensor, at: Tensor) -> Tensor:
        return rotate(x, rope.table(at, dtype=torch.float64), inverse=inverse)

    check_twice(turn, leaf(2, 1, 2, 6), at)


def test_gradients_of_real_positions_per_row_for_both() -> None:
    rope, at = rope_of(), torch.tensor([[0.25, -3.5], [7.5, 0.1]], dtype=torch.float64, requires_grad=True)
    check_twice(rope, leaf(2, 2, 2, 6), leaf(2, 1, 2, 6, seed=1), at)


@pairings
@directions
def test_gradients_of_a_table_of_ones_own(pairing: Pairing, inverse: bool) -> None:
    angles = random(2, 2, 2, dtype=torch.float64).requires_grad_()

    def turn(x: Tensor, angles: Tensor) -> Tensor:
        table = Table(angles.cos(), angles.sin(), pairing=pairing, head_dim=6, part=Part.TRAILING, factor=0.5)
        return rotate(x, table, inverse=inverse)

    check_twice(turn, leaf(2, 1, 2, 6), angles)
