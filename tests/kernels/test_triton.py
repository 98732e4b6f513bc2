"""The Triton kernels against a NumPy definition in float64, in Triton's interpreter: no GPU is needed.

    y_a = m (a cos - s b sin),   y_b = m (s a sin + b cos)        a, b the channels of one pair, s = -1 for the inverse

What an interpreter cannot show is tested on what Triton compiles for a GPU (that it compiles, how wide it reads)
and on the host function that starts it (which path a launch takes).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.errors import MissingPartError
from ropewalk.kernels import triton_device, triton_rotate

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")

Float = NDArray[np.float64]

# One rounding of the result, in units of |a| + |b|. The interpreter cuts bfloat16 off where a GPU rounds to nearest.
ROUNDING = {torch.float64: 2**-51, torch.float32: 2**-22, torch.bfloat16: 2**-7, torch.float16: 2**-10}
WIDTHS = [(1, 2, 0), (3, 6, 0), (3, 10, 0), (3, 10, 4), (40, 80, 0), (40, 96, 16), (8, 16, 0)]  # P, D, first
HUGE = [0, 1, -1, 4095, 131_071, 1_000_000, -1_000_000, 10_000_000, 2**31 - 1, -(2**31 - 1)]


@pytest.fixture(autouse=True, scope="module")
def interpreter() -> Iterator[None]:
    """Kernels made here are interpreted; those of other tests are not."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    triton_device.load.cache_clear()
    yield
    triton_device.load.cache_clear()
    if before is None:
        del os.environ["TRITON_INTERPRET"]
    else:
        os.environ["TRITON_INTERPRET"] = before


# ---- the definition ------------------------------------------------------------------------------------------------


def definition(
    x: Tensor, cos: Float, sin: Float, *, adjacent: bool, first: int, inverse: bool = False, factor: float = 1.0
) -> tuple[Float, Float]:
    """The turned x (B, H, S, D) for tables (1 | B, S, P), and |a| + |b| of each channel, which scales its rounding."""
    values = x.detach().to(torch.float64).numpy()
    pairs = cos.shape[-1]
    step, apart = (2, 1) if adjacent else (1, pairs)
    left = first + step * np.arange(pairs)
    a, b = values[..., left], values[..., left + apart]
    c, s = cos[:, None], (-sin if inverse else sin)[:, None]
    turned, size = values.copy(), np.zeros_like(values)
    turned[..., left], turned[..., left + apart] = factor * (a * c - b * s), factor * (a * s + b * c)
    size[..., left] = size[..., left + apart] = abs(factor) * (np.abs(a) + np.abs(b))
    return turned, size


def assert_turned(got: Tensor, expected: tuple[Float, Float], *, slack: float = 0.0) -> None:
    turned, size = expected
    error = np.abs(got.to(torch.float64).numpy() - turned)
    assert (error <= size * (ROUNDING[got.dtype] + slack)).all(), f"off by {(error / np.maximum(size, 1e-30)).max()}"


def words_of(base: float, pairs: int) -> Tensor:
    """theta / 2 pi in 96 bits: three words (3, P)."""
    with mp.workdps(60):
        turns = [mp.power(mpf(base), -mpf(i) / pairs) / (2 * mp.pi) for i in range(pairs)]
        fixed = [int(mp.nint(turn * mpf(2) ** 96)) for turn in turns]
    return torch.tensor([[(f >> shift) & 0xFFFFFFFF for f in fixed] for shift in (64, 32, 0)])


def exact_table(positions: list[int], base: float, pairs: int) -> tuple[Float, Float]:
    """cos and sin (S, P) of position * theta."""
    with mp.workdps(60):
        angles = [[p * mp.power(mpf(base), -mpf(i) / pairs) for i in range(pairs)] for p in positions]
        cos = np.array([[float(mp.cos(angle)) for angle in row] for row in angles])
        sin = np.array([[float(mp.sin(angle)) for angle in row] for row in angles])
    return cos, sin


# ---- inputs --------------------------------------------------------------------------------------------------------


def random_table(batch: int, length: int, pairs: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    angle = torch.rand(batch, length, pairs, dtype=torch.float64) * 100 - 50
    table_dtype = torch.float64 if dtype is torch.float64 else torch.float32
    return angle.cos().to(table_dtype), angle.sin().to(table_dtype)


def as_float64(*tensors: Tensor) -> list[Float]:
    return [tensor.to(torch.float64).numpy() for tensor in tensors]


def contiguous(batch: int, q_heads: int, k_heads: int, length: int, width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, q_heads, length, width), torch.randn(batch, k_heads, length, width)


def transposed(batch: int, q_heads: int, k_heads: int, length: int, width: int) -> tuple[Tensor, Tensor]:
    q, k = torch.randn(batch, length, q_heads, width), torch.randn(batch, length, k_heads, width)
    return q.transpose(1, 2), k.transpose(1, 2)


def fused(batch: int, q_heads: int, k_heads: int, length: int, width: int) -> tuple[Tensor, Tensor]:
    """Views of one projection (B, S, (H + 2 H_k) D), as attention layers make them."""
    qkv = torch.randn(batch, length, q_heads + 2 * k_heads, width)
    q, k, _ = qkv.split([q_heads, k_heads, k_heads], dim=2)
    return q.transpose(1, 2), k.transpose(1, 2)


Layout = Callable[[int, int, int, int, int], tuple[Tensor, Tensor]]
pairings = pytest.mark.parametrize("adjacent", [False, True], ids=["halves", "adjacent"])


# ---- a table -------------------------------------------------------------------------------------------------------


@pairings
@pytest.mark.parametrize(("pairs", "width", "first"), WIDTHS)
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_it_is_the_definition_in_every_dtype_and_width(
    dtype: torch.dtype, pairs: int, width: int, first: int, adjacent: bool
) -> None:
    x = torch.randn(2, 3, 5, width).to(dtype)
    cos, sin = random_table(2, 5, pairs, dtype)
    expected = definition(x, *as_float64(cos, sin), adjacent=adjacent, first=first)
    out = torch.full_like(x, float("nan"))
    triton_rotate.rotate((x,), (out,), cos, sin, adjacent=adjacent, first=first, inverse=False, factor=1.0)
    assert_turned(out, expected)


@pairings
@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("layout", [contiguous, transposed, fused])
def test_queries_and_keys_of_any_layout_turn_together(
    layout: Layout, tables: int, in_place: bool, adjacent: bool
) -> None:
    inputs = layout(2, 6, 2, 9, 24)
    cos, sin = random_table(tables, 9, 8)
    expected = [definition(x, *as_float64(cos, sin), adjacent=adjacent, first=8) for x in inputs]
    outputs = inputs if in_place else tuple(torch.full_like(x, float("nan")) for x in inputs)
    triton_rotate.rotate(inputs, outputs, cos, sin, adjacent=adjacent, first=8, inverse=False, factor=1.0)
    for out, turned in zip(outputs, expected, strict=True):
        assert_turned(out, turned)


@pairings
def test_nothing_beside_the_tensors_is_written(adjacent: bool) -> None:
    """The values of a fused projection, and a guard around an output in a larger buffer."""
    qkv = torch.randn(2, 5, 8 * 12)
    q, k, v = (part.transpose(1, 2) for part in qkv.view(2, 5, 8, 12).split([4, 2, 2], dim=2))
    values, buffer = v.clone(), torch.full((2, 4, 7, 16), 7.0)
    cos, sin = random_table(1, 5, 5)
    turn = {"adjacent": adjacent, "first": 2, "inverse": False, "factor": 1.0}
    triton_rotate.rotate((q,), (buffer[:, :, 1:6, 2:14],), cos, sin, **turn)
    assert (buffer[:, :, [0, 6]] == 7.0).all()
    assert (buffer[..., [0, 1, 14, 15]] == 7.0).all()
    triton_rotate.rotate((q, k), (q, k), cos, sin, **turn)
    assert torch.equal(v, values)
    assert torch.equal(buffer[:, :, 1:6, 2:14], q)


@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
def test_channels_outside_the_turned_ones_keep_every_bit(in_place: bool) -> None:
    x = torch.randn(1, 2, 3, 10).to(torch.bfloat16)
    x[..., 8], x[..., 9] = float("nan"), -0.0
    before, out = x.clone(), x if in_place else torch.ones_like(x)
    triton_rotate.rotate((x,), (out,), *random_table(1, 3, 3), adjacent=True, first=0, inverse=False, factor=2.0)
    assert torch.equal(out[..., 6:].view(torch.int16), before[..., 6:].view(torch.int16))


@pairings
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_inverse_and_the_factor_are_those_of_the_definition(dtype: torch.dtype, adjacent: bool) -> None:
    x = torch.randn(2, 2, 4, 6, dtype=dtype)
    cos, sin = random_table(2, 4, 3, dtype)
    out = torch.empty_like(x)
    for inverse, factor in ((True, 1.0), (False, 1.1386294361119891), (True, 0.1)):
        turn: dict[str, Any] = {"adjacent": adjacent, "first": 0, "inverse": inverse, "factor": factor}
        triton_rotate.rotate((x,), (out,), cos, sin, **turn)
        assert_turned(out, definition(x, *as_float64(cos, sin), **turn))


@pairings
def test_the_inverse_undoes_a_rotation(adjacent: bool) -> None:
    x = torch.randn(1, 3, 6, 16)
    cos, sin = random_table(1, 6, 8)
    there, back = torch.empty_like(x), torch.empty_like(x)
    turn = {"adjacent": adjacent, "first": 0}
    triton_rotate.rotate((x,), (there,), cos, sin, inverse=False, factor=2.0, **turn)
    triton_rotate.rotate((there,), (back,), cos, sin, inverse=True, factor=0.5, **turn)
    torch.testing.assert_close(back, x, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(there, 2 * x, atol=0.1)


@pairings
@pytest.mark.parametrize(("length", "q_heads", "k_heads"), [(1, 32, 8), (1, 37, 1), (3, 21, 5), (70, 9, 2)])
def test_many_heads_and_positions_fill_several_tiles(
    monkeypatch: pytest.MonkeyPatch, length: int, q_heads: int, k_heads: int, adjacent: bool
) -> None:
    """A long walk along the heads, which otherwise only large inputs get, gives the bits of a short one."""
    inputs = contiguous(2, q_heads, k_heads, length, 32)
    cos, sin = random_table(1, length, 16)
    expected = [definition(x, *as_float64(cos, sin), adjacent=adjacent, first=0) for x in inputs]
    results = []
    for enough in (1, 2048):
        monkeypatch.setattr(triton_rotate, "_ENOUGH_PROGRAMS", enough)
        outputs = tuple(torch.full_like(x, float("nan")) for x in inputs)
        triton_rotate.rotate(inputs, outputs, cos, sin, adjacent=adjacent, first=0, inverse=False, factor=1.0)
        results.append(outputs)
    for long, short, turned in zip(*results, expected, strict=True):
        assert_turned(long, turned)
        assert torch.equal(long, short)


def test_an_empty_tensor_is_left_in_peace() -> None:
    for shape in ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4)):
        x = torch.empty(shape)
        cos, sin = random_table(1, shape[2], 2)
        triton_rotate.rotate((x,), (x,), cos, sin, adjacent=True, first=0, inverse=False, factor=1.0)
        at = torch.zeros(1, shape[2], dtype=torch.int64)
        triton_rotate.rotate_at((x,), (x,), at, words_of(1e4, 2), adjacent=True, first=0, inverse=False, factor=1.0)
    triton_rotate.build_table(torch.zeros(0, 3, dtype=torch.int64), words_of(1e4, 2), *torch.empty(2, 0, 3, 2))


# ---- positions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [1, 3, 32, 64, 256])
@pytest.mark.parametrize("base", [100.0, 10_000.0, 500_000.0, 10_000_000.0])
def test_tables_are_within_7e_8_at_any_position(base: float, pairs: int) -> None:
    chosen = torch.arange(0, pairs, max(pairs // 16, 1))
    cos, sin = torch.empty(2, 1, len(HUGE), pairs)
    triton_rotate.build_table(torch.tensor([HUGE]), words_of(base, pairs), cos, sin)
    with mp.workdps(60):
        for row, position in enumerate(HUGE):
            for pair in chosen.tolist():
                angle = position * mp.power(mpf(base), -mpf(pair) / pairs)
                assert abs(mpf(cos[0, row, pair].item()) - mp.cos(angle)) <= 7e-8
                assert abs(mpf(sin[0, row, pair].item()) - mp.sin(angle)) <= 7e-8


def test_a_table_is_exact_where_it_can_be() -> None:
    """Position 0 does not turn, and opposite positions turn by opposite angles to the last bit."""
    cos, sin = torch.empty(2, 1, 5, 12)
    triton_rotate.build_table(torch.tensor([[0, 77_777, -77_777, 2**30, -(2**30)]]), words_of(1e4, 12), cos, sin)
    assert (cos[0, 0] == 1).all()
    assert (sin[0, 0] == 0).all()
    assert torch.equal(cos[0, 1::2], cos[0, 2::2])
    assert torch.equal(sin[0, 1::2], -sin[0, 2::2])


def test_a_position_that_31_bits_do_not_hold_gives_nan_and_harms_no_other() -> None:
    cos, sin = torch.empty(2, 1, 5, 4)
    positions = [2**31, 3, -(2**31), -(2**63), 2**40]
    triton_rotate.build_table(torch.tensor([positions]), words_of(1e4, 4), cos, sin)
    assert cos.isnan()[0, :, 0].tolist() == sin.isnan()[0, :, 0].tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("integer", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_tables_are_the_same_for_positions_of_every_integer_type(integer: torch.dtype) -> None:
    positions, words = torch.tensor([[0, 1, 100, 127]]), words_of(1e4, 4)
    tables = torch.empty(2, 2, 1, 4, 4)
    triton_rotate.build_table(positions, words, *tables[0])
    triton_rotate.build_table(positions.to(integer), words, *tables[1])
    assert torch.equal(tables[0], tables[1])


def test_small_angles_keep_their_relative_accuracy() -> None:
    """The slowest pair of base 1e9 turns by 30 units of 2^-32 at position 1: the second word is what makes it exact."""
    cos, sin = torch.empty(2, 1, 1, 8)
    triton_rotate.build_table(torch.tensor([[1]]), words_of(1e9, 8), cos, sin)
    expected = np.sin(1e9 ** (-np.arange(8) / 8))
    np.testing.assert_allclose(sin[0, 0].numpy(), expected, rtol=1e-6)


@pairings
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_positions_turn_as_the_exact_angle_does(integer: torch.dtype, rows: int, adjacent: bool) -> None:
    inputs = transposed(2, 5, 3, len(HUGE), 20)
    positions = torch.tensor([HUGE, HUGE[::-1]][:rows]).to(integer)
    tables = [exact_table(row, 5e5, 7) for row in positions.tolist()]
    cos, sin = (np.stack(part) for part in zip(*tables, strict=True))
    turn: dict[str, Any] = {"adjacent": adjacent, "first": 6, "inverse": False, "factor": 1.25}
    expected = [definition(x, cos, sin, **turn) for x in inputs]
    triton_rotate.rotate_at(inputs, inputs, positions, words_of(5e5, 7), **turn)
    for out, turned in zip(inputs, expected, strict=True):
        assert_turned(out, turned, slack=7e-8)


@pairings
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_positions_give_the_bits_of_their_table(dtype: torch.dtype, adjacent: bool) -> None:
    inputs = tuple(x.to(dtype) for x in contiguous(2, 4, 1, 6, 16))
    positions, words = torch.randint(-(2**31) + 1, 2**31, (2, 6)), words_of(1e4, 8)
    cos, sin = torch.empty(2, 2, 6, 8)
    triton_rotate.build_table(positions, words, cos, sin)
    turn: dict[str, Any] = {"adjacent": adjacent, "first": 0, "inverse": True, "factor": 0.5}
    direct, tabled = ([torch.empty_like(x) for x in inputs] for _ in range(2))
    triton_rotate.rotate_at(inputs, tuple(direct), positions, words, **turn)
    triton_rotate.rotate(inputs, tuple(tabled), cos, sin, **turn)
    for one, other in zip(direct, tabled, strict=True):
        assert torch.equal(one, other)


def test_positions_may_have_any_strides() -> None:
    x, words = torch.randn(3, 2, 4, 6), words_of(1e4, 3)
    turn: dict[str, Any] = {"adjacent": True, "first": 0, "inverse": False, "factor": 1.0}
    plain, strided = torch.empty_like(x), torch.empty_like(x)
    wide = torch.randint(0, 1000, (4, 6))
    for positions in (wide.T[::2], wide[0, :4].expand(3, 4), wide[:3, :1].expand(3, 4)):
        triton_rotate.rotate_at((x,), (plain,), positions.contiguous(), words, **turn)
        triton_rotate.rotate_at((x,), (strided,), positions, words, **turn)
        assert torch.equal(plain, strided)
        tables = torch.empty(2, 2, 3, 4, 3)
        triton_rotate.build_table(positions.contiguous(), words, *tables[0])
        triton_rotate.build_table(positions, words, *tables[1])
        assert torch.equal(tables[0], tables[1])


def test_positions_and_tables_need_no_axis_for_the_batch() -> None:
    x, words, wide = torch.randn(3, 2, 4, 6), words_of(1e4, 3), torch.randint(0, 1000, (8,))
    cos, sin = torch.empty(2, 1, 4, 3)
    triton_rotate.build_table(wide[None, ::2], words, cos, sin)
    turn: dict[str, Any] = {"adjacent": True, "first": 0, "inverse": False, "factor": 1.0}
    results = torch.empty(4, 3, 2, 4, 6)
    assert triton_rotate.rotate_at((x,), (results[0],), wide[::2], words, **turn) is True
    triton_rotate.rotate_at((x,), (results[1],), wide[None, ::2], words, **turn)
    triton_rotate.rotate((x,), (results[2],), cos[0], sin[0], **turn)
    triton_rotate.rotate((x,), (results[3],), cos, sin, **turn)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_decoding_one_token_gives_the_bits_of_the_full_pass() -> None:
    q, k = contiguous(2, 8, 2, 11, 16)
    at, words = torch.arange(100, 111)[None], words_of(1e4, 8)
    turn: dict[str, Any] = {"adjacent": False, "first": 0, "inverse": False, "factor": 1.0}
    last = q[:, :, -1:].clone(), k[:, :, -1:].clone()
    triton_rotate.rotate_at((q, k), (q, k), at, words, **turn)
    triton_rotate.rotate_at(last, last, at[:, -1:], words, **turn)
    assert torch.equal(last[0], q[:, :, -1:])
    assert torch.equal(last[1], k[:, :, -1:])


# ---- the host ------------------------------------------------------------------------------------------------------


class Recorder:
    """A kernel that notes how it was started: through Triton's binding, or as a compiled kernel."""

    def __init__(self) -> None:
        self.starts: list[tuple[object, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        def bind(*arguments: object, **_: object) -> object:
            self.starts.append(("bound", grid, *arguments))
            return {(*grid, 1, 1): lambda *later: self.starts.append(("compiled", grid, *later))}

        return bind


def on_gpu(address: int, index: int = 0) -> SimpleNamespace:
    return SimpleNamespace(device=torch.device("cuda", index), data_ptr=lambda: address)


def test_a_launch_seen_before_skips_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, entered = Recorder(), []

    @contextmanager
    def entering(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", entering)
    monkeypatch.setattr(triton_device, "load", lambda: None)
    monkeypatch.setattr(triton_rotate, "_launches", {})
    monkeypatch.setattr(triton_device, "_rotate_kernel", kernel)

    def launch(key: str, tensor: SimpleNamespace) -> tuple[object, ...]:
        triton_rotate._launch("_rotate_kernel", (key,), (tensor,), lambda: (6, (1.0, 2)))
        return kernel.starts[-1]

    tensor, elsewhere = on_gpu(4096), on_gpu(4096, index=1)
    assert launch("a", tensor) == ("bound", (6,), tensor, 1.0, 2)
    assert launch("a", on_gpu(8192)) == ("compiled", (6,), 8192, 1.0, 2)
    assert launch("a", on_gpu(8194))[0] == "bound"  # compiled for addresses that 16 divides
    assert launch("b", tensor)[0] == "bound"
    assert launch("c", elsewhere)[0] == "bound"
    assert launch("c", elsewhere)[0] == "bound"  # the current device is another
    assert entered[-1] == torch.device("cuda", 1)
    monkeypatch.setattr(triton_rotate, "_MOST_LAUNCHES", 3)
    launch("d", tensor)
    assert list(triton_rotate._launches) == [("d",)]


def test_whatever_changes_a_launch_changes_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    monkeypatch.setattr(triton_rotate, "_launch", lambda *arguments: keys.append(arguments[1]))
    q, k = contiguous(2, 4, 2, 6, 16)
    cos, sin = random_table(1, 6, 8)
    at, words = torch.zeros(1, 6, dtype=torch.int64), words_of(1e4, 8)
    turn: dict[str, Any] = {"adjacent": False, "first": 0, "inverse": False, "factor": 1.0}
    wide = torch.empty(2, 6, 4, 16).transpose(1, 2)
    for inputs, outputs in (((q,), (q,)), ((q,), (wide,)), ((wide,), (wide,)), ((q, k), (q, k)), ((q, q), (q, q))):
        triton_rotate.rotate(inputs, outputs, cos, sin, **turn)
    triton_rotate.rotate((q, k), (q, torch.empty_like(k)), cos, sin, **turn)
    triton_rotate.rotate((q, k), (torch.empty_like(q), torch.empty_like(k)), cos, sin, **turn)
    triton_rotate.rotate((q.half(),), (q.half(),), cos, sin, **turn)
    triton_rotate.rotate((q,), (q,), cos.expand(2, -1, -1).contiguous(), sin.expand(2, -1, -1).contiguous(), **turn)
    triton_rotate.rotate((q,), (q,), cos[..., :4].contiguous(), sin[..., :4].contiguous(), **turn)
    for change in ({"adjacent": True}, {"first": 4}, {"inverse": True}, {"factor": 2.0}):
        triton_rotate.rotate((q,), (q,), cos, sin, **(turn | change))
    for positions in (at, at.int(), at.expand(2, 6), at.repeat(2, 1)):
        triton_rotate.rotate_at((q,), (q,), positions, words, **turn)
    triton_rotate.rotate_at((q,), (q,), at, words[:, :4].contiguous(), **turn)
    assert len(set(keys)) == len(keys)


def test_a_factor_of_float64_reaches_the_kernel_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a number it would be rounded to float32, which the interpreter does not do."""
    launched: list[Any] = []
    monkeypatch.setattr(triton_rotate, "_launch", lambda *arguments: launched.append(arguments))
    x, (cos, sin) = torch.randn(1, 2, 3, 4, dtype=torch.float64), random_table(1, 3, 2, torch.float64)
    triton_rotate.rotate((x,), (x,), cos, sin, adjacent=True, first=0, inverse=False, factor=1.1)
    (_, (flags, *_), tensors, _), *_ = launched
    assert flags[-1] == 1.0
    assert torch.equal(tensors[4], cos * 1.1)
    assert torch.equal(tensors[5], sin * 1.1)


def test_the_stride_of_an_axis_of_one_element_does_not_matter() -> None:
    """At decode torch may put any number there; as an odd one it would make every access narrow."""
    table, flags = torch.empty(1, 1, 8), (False, True, 0, False, 1.0)
    plain = torch.empty(2, 3, 1, 16)
    odd = plain.as_strided(plain.shape, (48, 16, 7, 1))
    plans = [triton_rotate._rotate_plan((x,), (x,), table, table, flags) for x in (plain, odd)]
    assert plans[0] == plans[1]


def test_importing_the_module_does_not_import_triton() -> None:
    code = "import sys, ropewalk.kernels.triton_rotate as t; assert t.available(); assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=without_interpreter())


def test_without_triton_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingPartError, match=r"^The Triton kernels need Triton: `pip install triton`\.$"):
        triton_device.load.__wrapped__()


COMPILE = """
import re
import torch, triton
from triton.backends.compiler import GPUTarget
from ropewalk.kernels import triton_device, triton_rotate

class Driver:  # compiles for an H200 and starts nothing
    class utils:
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 232448})
        load_binary = staticmethod(lambda *_: (None, None, 0, 0, 1024))
        unload_module = staticmethod(lambda module: None)
    launcher_cls = staticmethod(lambda source, metadata: lambda *_: None)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

def wide(instructions):
    return [i.endswith((".v4.b32", ".v2.b64")) for i in instructions]

def check(name, tensors, arguments):
    kernel = getattr(triton_device, name)[(1,)]
    code = kernel(*tensors, *arguments, num_warps=4, enable_fp_fusion=True).asm["ptx"]
    stores, loads = (re.findall(kind + r"\\.global\\S*", code) for kind in ("st", "ld"))
    assert stores and all(wide(stores)) and sum(wide(loads)) >= len(stores) * (name == "_rotate_kernel")
    assert ".local" not in code

triton.runtime.driver.set_active(Driver())
triton_device.load()
positions, words = torch.zeros(1, 64, dtype=torch.int64), torch.zeros(3, 256, dtype=torch.int64)
fused = torch.empty(1, 64, 10, 256)
for dtype, adjacent, exact, pairs, first, out_of_place, length, enough in (
    (torch.bfloat16, False, False, 128, 0, False, 64, 1),
    (torch.bfloat16, True, True, 128, 0, False, 64, 1),
    (torch.float32, False, True, 128, 0, True, 64, 1),
    (torch.float32, True, False, 128, 0, False, 64, 1),
    (torch.float16, False, True, 64, 0, True, 64, 1),
    (torch.bfloat16, True, True, 32, 192, True, 64, 1),
    (torch.bfloat16, True, True, 128, 0, False, 1, 2048),
    (torch.bfloat16, False, True, 128, 0, False, 1, 2048),
    (torch.float64, True, False, 128, 0, False, 64, 2048),
):
    triton_rotate._ENOUGH_PROGRAMS = enough
    x = fused.to(dtype)[:, :length, :8].transpose(1, 2)
    y = torch.empty_like(x) if out_of_place else x
    table = torch.empty(1, length, pairs, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    sources = (positions[:, :length], words[:, :pairs]) if exact else (table, table)
    _, arguments = triton_rotate._rotate_plan((x, x), (y, y), *sources, (exact, adjacent, first, False, 1.0))
    check("_rotate_kernel", (x, y, x, y, *sources), arguments)
table = torch.empty(1, 64, 256)
check("_table_kernel", (positions, words, table, table), triton_rotate._table_plan(positions, 256)[1])
"""


def test_compiled_for_a_gpu_it_writes_16_bytes_at_once_and_spills_nothing(tmp_path: Path) -> None:
    """Triton carries its own compiler, so this needs no GPU; a lost alignment would cost most of the speed."""
    environment = without_interpreter() | {"TRITON_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILE], check=True, env=environment)


def without_interpreter() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path)}
