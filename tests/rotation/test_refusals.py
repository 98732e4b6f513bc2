"""What a rotation refuses, word for word; nothing has been computed then, and nothing has been written."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oracle import bits, random, refused, same_bits
from ropewalk import InputError, Pairing, Rotary, Table, rotate

ROPE = Rotary(head_dim=8, pairing=Pairing.HALVES)
PER_ROW = torch.arange(10).view(2, 5)


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, H, S, D) = (2, 3, 5, 8) unless told."""
    return random(*(shape or (2, 3, 5, 8)), dtype=dtype)


def table(at: Tensor | None = None) -> Table:
    return ROPE.table(torch.arange(5) if at is None else at)


# ---- x -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
def test_types_that_cannot_be_turned(kind: torch.dtype, inplace: bool) -> None:
    x = torch.ones(2, 3, 5, 8).to(kind)
    assert refused(rotate, x, table(), inplace=inplace) == (
        f"`x` must be of float32, bfloat16, float16 or float64, but is {kind}."
    )


@pytest.mark.parametrize("shape", [(), (8,)], ids=str)
def test_too_few_axes(shape: tuple[int, ...]) -> None:
    assert refused(rotate, torch.ones(shape), table()) == f"`x` must be (..., H, S, D), but is of shape {shape}."


@pytest.mark.parametrize("width", [4, 7, 9, 16])
def test_heads_of_another_width(width: int) -> None:
    """A library that reshapes instead of asking turned batch 1 of 32 channels into batch 2."""
    assert refused(rotate, tensor(2, 3, 5, width), table()) == (
        f"`x` must be of 8 channels in its last dimension, but is of shape (2, 3, 5, {width})."
    )


@pytest.mark.parametrize(
    ("scattered", "strides"),
    [
        (lambda: tensor(2, 3, 8, 5).mT, (120, 40, 1, 5)),
        (lambda: tensor(2, 3, 5, 16)[..., ::2], (240, 80, 16, 2)),
        (lambda: tensor(2, 3, 5, 1).expand(2, 3, 5, 8), (15, 5, 1, 0)),
    ],
    ids=["transposed", "every other", "expanded"],
)
@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
def test_channels_that_do_not_lie_side_by_side(
    scattered: Callable[[], Tensor], strides: tuple[int, ...], inplace: bool
) -> None:
    assert refused(rotate, scattered(), table(), inplace=inplace) == (
        f"`x` must be contiguous in its last dimension, but is of strides {strides}. Call `.contiguous()` first."
    )


# ---- x and the table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 4, 6, 90])
@pytest.mark.usefixtures("body")
def test_a_table_of_another_length(length: int) -> None:
    assert refused(rotate, tensor(), table(torch.arange(length))) == (
        f"`table` must be for 5 positions, the S of `x` (2, 3, 5, 8), but is for {length}."
    )


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.usefixtures("body")
def test_a_table_of_another_number_of_rows(rows: int) -> None:
    at = torch.zeros(rows, 5, dtype=torch.int64)
    assert refused(rotate, tensor(), table(at)) == (
        f"`table` must be for 1 or 2 rows, the B of `x` (2, 3, 5, 8), but is for {rows}."
    )


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8)], ids=str)
def test_a_table_of_rows_for_a_tensor_without_a_batch(shape: tuple[int, ...]) -> None:
    assert refused(rotate, tensor(*shape), table(PER_ROW)) == (
        f"`x` must be (B, H, S, D), but is of shape {shape}. "
        "A table with rows of its own for each B needs the axis of heads."
    )


def test_a_table_on_another_device() -> None:
    assert refused(rotate, tensor(), table(torch.arange(5, device="meta"))) == (
        "`table` must be on cpu, the device of `x`, but is on meta."
    )
    assert refused(rotate, tensor().to("meta"), table()) == "`table` must be on meta, the device of `x`, but is on cpu."


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_a_table_in_half_precision(kind: torch.dtype) -> None:
    cos, sin = torch.ones(5, 4).to(kind), torch.zeros(5, 4).to(kind)
    assert refused(Table, cos, sin, pairing=Pairing.HALVES, head_dim=8) == (
        f"`table` must be of float32 or float64, but is {kind}. In half precision it is a wrong rotation."
    )


@pytest.mark.parametrize(
    ("cos", "sin"), [((5, 4), (5, 3)), ((5,), (5,)), ((2, 3, 5, 4), (2, 3, 5, 4)), ((5, 5), (5, 5))], ids=str
)
def test_a_table_of_tensors_that_make_none(cos: tuple[int, ...], sin: tuple[int, ...]) -> None:
    assert refused(Table, torch.ones(cos), torch.ones(sin), pairing=Pairing.HALVES, head_dim=8) == (
        f"`table` must be two tensors of equal shape (S, P) or (B, S, P) with 2 P ≤ 8, but is {cos} and {sin}."
    )


@pytest.mark.parametrize("value", ["adjacent", "halves", None, True], ids=repr)
def test_a_table_with_a_convention_that_is_none(value: object) -> None:
    cos, sin = torch.ones(5, 4), torch.zeros(5, 4)
    assert refused(Table, cos, sin, pairing=value, head_dim=8) == (
        f"`pairing` must be Pairing.ADJACENT or Pairing.HALVES, but is {value!r}."
    )
    assert refused(Table, cos, sin, pairing=Pairing.HALVES, head_dim=8, part=value) == (
        f"`part` must be Part.LEADING or Part.TRAILING, but is {value!r}."
    )


def test_a_table_of_nothing() -> None:
    assert refused(Table, None, None, pairing=Pairing.HALVES, head_dim=8) == (
        "`table` must be made of cos and sin, or of a source, but is None."
    )


@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
@pytest.mark.usefixtures("body")
def test_a_table_of_float32_numbers_for_float64(inplace: bool) -> None:
    own = Table(table().cos, table().sin, pairing=Pairing.HALVES, head_dim=8)
    assert refused(rotate, tensor(dtype=torch.float64), own, inplace=inplace) == (
        "`table` must be of float64 for `x` of float64, but is of float32. Make cos and sin in float64."
    )


def test_a_table_in_a_type_it_cannot_have() -> None:
    assert refused(ROPE.table, torch.arange(90), dtype=torch.bfloat16) == (
        "`dtype` must be torch.float32 or torch.float64, but is torch.bfloat16. "
        "The result of `rotate` has the type of x."
    )


# ---- positions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [5, 90], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_positions_in_half_precision(kind: torch.dtype, length: int) -> None:
    x = tensor(1, 1, length, 8).to(kind)
    assert refused(ROPE, x, x.clone(), torch.arange(length).to(kind), inplace=True) == (
        f"`positions` must be of an integer type, float32 or float64, but is {kind}. "
        "Half precision cannot even count past 256 or 2048."
    )


LIMIT = 2**31 - 1


@pytest.mark.parametrize("length", [1, 5, 90], ids=["one token", "few", "many"])
@pytest.mark.parametrize("beyond", [LIMIT + 1, -LIMIT - 1, 2**32, 2**63 - 1, -(2**63)], ids=str)
@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
@pytest.mark.usefixtures("body")
def test_positions_beyond_the_limit(length: int, beyond: int, inplace: bool) -> None:
    at = torch.full((length,), LIMIT)
    ROPE(tensor(2, 1, length, 8), tensor(2, 1, length, 8), at)  # the limit itself is in
    at[length // 2] = beyond
    q, k = tensor(2, 3, length, 8), tensor(2, 1, length, 8)
    before = bits(q, k)
    with pytest.raises(InputError) as caught:
        ROPE(q, k, at, inplace=inplace)
    assert str(caught.value) == f"`positions` must be within ±2147483647, but is {beyond}."
    assert same_bits(bits(q, k), before)
    with pytest.raises(InputError), torch.no_grad():
        rotate(q, ROPE.table(at.expand(2, length)), inplace=inplace)
    assert same_bits(bits(q, k), before)


@pytest.mark.parametrize("length", [1, 90], ids=["one token", "many"])
@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
@pytest.mark.usefixtures("body")
def test_positions_beyond_the_limit_in_training(length: int, inplace: bool) -> None:
    hidden = tensor(2, 3, length, 8).requires_grad_() * 1
    before = bits(hidden)
    with pytest.raises(InputError) as caught:
        ROPE(hidden, hidden * 1, LIMIT - length + 2, inplace=inplace)
    assert str(caught.value) == "`positions` must be within ±2147483647, but is 2147483648."
    assert same_bits(bits(hidden), before)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("value", "shown"), [(torch.nan, "nan"), (torch.inf, "inf"), (-3e9, "-3000000000.0")])
@pytest.mark.usefixtures("body")
def test_real_positions_that_are_none(kind: torch.dtype, value: float, shown: str) -> None:
    at = torch.arange(5, dtype=kind)
    at[3] = value
    assert refused(ROPE, tensor(), tensor(2, 1, 5, 8), at, inplace=True) == (
        f"`positions` must be within ±2147483647, but is {shown}."
    )


@pytest.mark.parametrize("shape", [(4,), (6,), (1,), (2, 6), (3, 5), (5, 2), (2, 1, 5), ()], ids=str)
def test_positions_of_another_shape(shape: tuple[int, ...]) -> None:
    at = torch.zeros(shape, dtype=torch.int64)
    assert refused(ROPE, tensor(), tensor(2, 1, 5, 8), at, inplace=True) == (
        f"`positions` must be of shape (5,) or (2, 5) for `q` (2, 3, 5, 8), but is of shape {shape}."
    )


def test_positions_of_rows_for_a_tensor_without_a_batch() -> None:
    assert refused(ROPE, tensor(3, 5, 8), tensor(1, 5, 8), PER_ROW) == (
        "`positions` must be of shape (5,) for `q` (3, 5, 8), but is of shape (2, 5)."
    )


@pytest.mark.parametrize("shape", [(), (1, 2, 5)], ids=str)
def test_positions_that_make_no_table(shape: tuple[int, ...]) -> None:
    assert refused(ROPE.table, torch.zeros(shape, dtype=torch.int64)) == (
        f"`positions` must be (S,) or (B, S), but is of shape {shape}."
    )


@pytest.mark.parametrize("value", [None, True, False, 3.0, "0", [0, 1, 2, 3, 4]], ids=repr)
def test_positions_that_are_neither_a_tensor_nor_an_int(value: object) -> None:
    """None above all: a library that guesses turns cached tokens at the wrong places."""
    assert refused(ROPE, tensor(), tensor(2, 1, 5, 8), value, inplace=True) == (
        f"`positions` must be a tensor, or an int (the first of consecutive positions), but is {value!r}."
    )
