"""How exact a rotation is at positions to a million, and to the last one; that types of positions and bodies agree."""

import numpy as np
import pytest
import torch
from torch import Tensor

from oracle import FLOATS, HUGE, assert_turned, random, sizes, turned
from ropewalk import Pairing, Rotary, Table, rotate
from ropewalk.kernels import native

pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)

D = 48


def far_positions() -> Tensor:
    """Some of the first million, the million itself, and powers of two at which half types stop counting."""
    chosen = torch.randint(0, 1_000_001, (300,), generator=torch.Generator().manual_seed(7))
    return torch.cat((chosen, torch.tensor([0, 1, 255, 256, 257, 2047, 2048, 2049, 999_999, 1_000_000])))


def root_mean_square(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(error))))


@pairings
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.usefixtures("body")
def test_half_types_are_as_good_as_exact_then_rounded_once(dtype: torch.dtype, pairing: Pairing) -> None:
    at, x = far_positions(), random(1, 4, 310, 128, dtype=dtype)
    want = turned(x, at, pairing=pairing, base=500_000.0)
    floor = root_mean_square(torch.from_numpy(want).to(dtype).double().numpy() - want)
    table = Rotary(head_dim=128, pairing=pairing, base=500_000.0).table(at)
    assert root_mean_square(rotate(x, table).double().numpy() - want) <= 1.05 * floor
    # What peers do is far from that floor, so the test can tell: a table rounded to the type of x.
    coarse = Table(table.cos.to(dtype).float(), table.sin.to(dtype).float(), pairing=pairing, head_dim=128)
    assert root_mean_square(rotate(x, coarse).double().numpy() - want) > 1.2 * floor


@pairings
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=str)
@pytest.mark.usefixtures("body")
def test_wide_types_are_exact_at_any_position(dtype: torch.dtype, limit: float, pairing: Pairing) -> None:
    at = torch.cat((far_positions(), torch.tensor(HUGE)))
    x = random(1, 2, at.numel(), 64, dtype=dtype)
    want = turned(x, at, pairing=pairing)
    got = rotate(x, Rotary(head_dim=64, pairing=pairing).table(at)).double().numpy()
    error = np.abs(got - want) / sizes(x, pairing=pairing)
    assert error.max() <= limit
    few = torch.tensor(HUGE)  # as few as in a decoding step
    x = x[:, :, -few.numel() :]
    got = rotate(x, Rotary(head_dim=64, pairing=pairing).table(few)).double().numpy()
    assert (np.abs(got - want[:, :, -few.numel() :]) / sizes(x, pairing=pairing)).max() <= limit


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("length", [5, 100], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_integer_positions_of_any_type_turn_alike(kind: torch.dtype, length: int) -> None:
    rope, x, at = Rotary(head_dim=8, pairing=Pairing.HALVES), random(1, 2, length, 8), torch.arange(length)
    assert torch.equal(rotate(x, rope.table(at.to(kind))), rotate(x, rope.table(at)))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@floats
@pytest.mark.usefixtures("body")
def test_real_positions_are_turned_as_defined(kind: torch.dtype, dtype: torch.dtype) -> None:
    at = torch.tensor([0.0, 0.5, -1.25, 1000.125, 70_000.75, -999_999.5, 1e6], dtype=kind)
    x = random(1, 2, 7, 16, dtype=dtype)
    got = rotate(x, Rotary(head_dim=16, pairing=Pairing.ADJACENT).table(at))
    assert_turned(got, x, at, pairing=Pairing.ADJACENT)


@pytest.mark.usefixtures("body")
def test_whole_real_positions_turn_like_integers() -> None:
    rope, x, at = Rotary(head_dim=16, pairing=Pairing.HALVES), random(1, 2, 100, 16), torch.arange(100) + 5000
    torch.testing.assert_close(rotate(x, rope.table(at.double())), rotate(x, rope.table(at)), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("body")
def test_non_contiguous_positions_turn_like_their_copy() -> None:
    rope, x = Rotary(head_dim=8, pairing=Pairing.HALVES), random(2, 1, 5, 8)
    for at in (torch.arange(20)[::2].view(2, 5), torch.arange(5).expand(2, 5), torch.arange(10).view(5, 2).t()):
        assert torch.equal(rotate(x, rope.table(at)), rotate(x, rope.table(at.clone())))


@floats
@pairings
@pytest.mark.skipif(not native.available(), reason="without the C kernel there is one body only")
def test_without_the_c_kernel_the_numbers_are_those_of_the_c_kernel(
    dtype: torch.dtype, pairing: Pairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope, x, at = Rotary(head_dim=D, pairing=pairing), random(2, 3, 90, D, dtype=dtype), torch.arange(90) + 30_000
    with_kernel = rotate(x, rope.table(at))
    monkeypatch.setattr(native, "available", lambda: False)
    without = rotate(x, rope.table(at))
    units = (with_kernel.double() - without.double()).abs() / torch.from_numpy(sizes(x, pairing=pairing))
    rounding = {torch.float64: 1e-15, torch.float32: 3e-7, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    assert units.max() <= rounding
    if dtype in (torch.bfloat16, torch.float16):  # the two differ only where the last bit of float32 decides a rounding
        assert (with_kernel != without).double().mean() < 0.01
