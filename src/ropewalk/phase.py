r"""Phases: positions times frequencies as exact fractions of a turn, and their cosines and sines.

    phase = position * theta / 2 pi   mod 1

theta_j / 2 pi is kept as a fixed-point fraction of a turn: 96 bits in three 32-bit words w0 w1 w2, most significant
first, rounded once on the host from 60 decimal digits. The product with a position p, |p| < 2^31, needs int64 only and
never overflows; dropping whole turns is exact, so the error does not grow with the position:

    low  =  p w1 + (p w2 >> 32)
    high = (p w0 + (low >> 32)) mod 2^32            phase = high 2^-32 + (low mod 2^32) 2^-64

A real position is split into its whole part, which goes this way, and its fraction, which is below one and harmless.

Words travel as text (hexadecimal), because nothing casts, moves or quantises a string, and every tracer takes it for
the constant it is. Axes: S positions, P pairs; positions (S,) or (B, S) give tables (S, P) or (B, S, P).
"""

import functools
import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from typing import Final

import torch
from torch import Tensor

from ropewalk.errors import InputError
from ropewalk.frequencies.spectrum import DIGITS
from ropewalk.kernels import native, triton_rotate
from ropewalk.kernels.surroundings import bare, transformed

__all__ = ["INTEGERS", "LARGEST_POSITION", "cos_sin", "device_words", "native_words", "refuse_beyond", "words_of"]

LARGEST_POSITION: Final = 2**31 - 1
"""Positions reach from minus this to this."""

_TAU: Final = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281257242")
_WORD: Final = 2**32
_LOW_WORD: Final = _WORD - 1
INTEGERS: Final = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_REALS: Final = frozenset({torch.float32, torch.float64})
_WITHOUT_FLOAT64: Final = frozenset({"mps"})


def words_of(frequencies: Sequence[Decimal]) -> str:
    """`frequencies` (radians per position) as fractions of a turn: three words of eight hexadecimal digits a pair."""
    with localcontext(Context(prec=DIGITS)):
        turns = [int((theta / _TAU * 2**96).to_integral_value()) % 2**96 for theta in frequencies]
    return "".join(f"{(turn >> shift) & _LOW_WORD:08x}" for shift in (64, 32, 0) for turn in turns)


@functools.lru_cache(maxsize=256)
def native_words(words: str) -> Tensor:
    """int32 (3, P) on the host, the bits of unsigned words: what the C kernel reads."""
    return device_words(words, torch.device("cpu")).to(torch.int32)


@functools.lru_cache(maxsize=256)
def device_words(words: str, device: torch.device) -> Tensor:
    """int64 (3, P) on `device`. A pure function of its arguments; the copy to the device happens once."""
    return _rows(words, device)


def _rows(words: str, device: torch.device) -> Tensor:
    values = [int(words[at : at + 8], 16) for at in range(0, len(words), 8)]
    return torch.tensor(values, dtype=torch.int64, device="cpu").view(3, -1).to(device)


def cos_sin(positions: Tensor, words: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """cos and sin of every phase, (..., S, P), float32 or float64.

    Real positions that require gradients are differentiable; everything else is a constant to autograd. Positions are
    checked to lie within 31 bits, but under function transforms, and compiled where they require gradients, nobody can.
    """
    _check(positions, dtype)
    if torch.compiler.is_compiling() and not positions.requires_grad:
        return _operator(positions, words, dtype)
    if positions.requires_grad or transformed():
        return _by_formula(positions, words, dtype)
    if bare(positions):
        return _fill(positions, words, dtype)
    return _operator(positions, words, dtype)


def _operator(positions: Tensor, words: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One opaque node in whatever graph is being recorded."""
    cos, sin = torch.ops.ropewalk.table(positions, words, dtype)
    return cos, sin


def _check(positions: Tensor, dtype: torch.dtype) -> None:
    if positions.dtype not in INTEGERS and positions.dtype not in _REALS:
        raise InputError(
            "positions",
            "of an integer type, float32 or float64",
            positions.dtype,
            "Half precision cannot even count past 256 or 2048." if positions.is_floating_point() else "",
        )
    if dtype not in _REALS:
        raise InputError("dtype", "torch.float32 or torch.float64", dtype, "The result of `rotate` has the type of x.")


def _fill(positions: Tensor, words: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The body of the operator: a kernel where there is one, else the formula."""
    if positions.dtype in INTEGERS:
        if positions.device.type == "cpu" and native.available():
            return _fill_natively(positions, words, dtype)
        if positions.device.type == "cuda" and dtype == torch.float32 and triton_rotate.available():
            refuse_beyond(positions)
            cos, sin = _empty(positions, words, dtype)
            device = device_words(words, positions.device)
            flat = (1, positions.numel(), cos.shape[-1])
            triton_rotate.build_table(positions.reshape(1, -1), device, cos.view(flat), sin.view(flat))
            return cos, sin
    return _by_formula(positions, words, dtype)


def _empty(positions: Tensor, words: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, len(words) // 24)
    return torch.empty(shape, dtype=dtype, device=positions.device), torch.empty(
        shape, dtype=dtype, device=positions.device
    )


def _fill_natively(positions: Tensor, words: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if positions.dtype not in (torch.int64, torch.int32):
        positions = positions.to(torch.int64)
    cos, sin = _empty(positions, words, dtype)
    if not native.fill_table(positions.contiguous(), native_words(words), cos, sin):
        refuse_beyond(positions)
    return cos, sin


def refuse_beyond(positions: Tensor) -> None:
    """Positions must fit 31 bits. On an accelerator the check does not make the host wait."""
    if positions.numel() == 0 or positions.dtype.itemsize < 4:  # a narrow type cannot even hold the limit
        return
    if positions.dtype in _REALS:
        largest = LARGEST_POSITION if positions.dtype == torch.float64 else 2**31 - 128  # what float32 can hold
        inside = positions.abs() <= largest  # false for NaN
    else:
        inside = (positions <= LARGEST_POSITION) & (positions >= -LARGEST_POSITION)
    if positions.device.type == "cpu":
        if not inside.all():
            raise InputError("positions", f"within ±{LARGEST_POSITION}", positions[~inside][0].item())
    elif positions.device.type != "meta":
        torch._assert_async(inside.all(), f"`positions` must be within ±{LARGEST_POSITION}.")


# ---- the readable formula, on any device ----------------------------------------------------------------------------


def _by_formula(positions: Tensor, words: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if not torch.compiler.is_compiling() and bare(positions):
        refuse_beyond(positions.detach())
        rows = device_words(words, positions.device)
    else:  # what is made here may be fake or belong to a transform: it must not be remembered, nor real words be used
        rows = _rows(words, positions.device)
    if positions.device.type in _WITHOUT_FLOAT64:
        return cos_sin_without_float64(positions, rows)
    return cos_sin_with_float64(positions, rows, dtype)


def _whole_and_fraction(positions: Tensor) -> tuple[Tensor, Tensor | None]:
    if positions.dtype in INTEGERS:
        return positions.to(torch.int64).unsqueeze(-1), None  # (..., S, 1)
    whole = positions.detach().trunc()
    return whole.to(torch.int64).unsqueeze(-1), (positions - whole).unsqueeze(-1)


def _turns(whole: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of whole * theta / 2 pi mod 1; each in [0, 2^32)."""
    low = whole * words[1] + ((whole * words[2]) >> 32)
    high = (whole * words[0] + (low >> 32)) & _LOW_WORD
    return high, low & _LOW_WORD


def cos_sin_with_float64(positions: Tensor, words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The formula where the device has float64: within 1e-15, rounded once to `dtype`."""
    whole, fraction = _whole_and_fraction(positions)
    high, low = _turns(whole, words)
    signed = high - ((high >> 31) << 32)  # half a turn at most to either side
    angle = (signed.double() + low.double() * 2.0**-32) * (math.tau * 2.0**-32)
    if fraction is not None:
        theta = (words[0].double() + words[1].double() * 2.0**-32) * (math.tau * 2.0**-32)
        angle = angle + fraction.double() * theta
    return angle.cos().to(dtype), angle.sin().to(dtype)


def cos_sin_without_float64(positions: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """The formula in int64 and float32, within 6e-8: folded to an eighth of a turn before float32 sees the phase.

    Numbers are kept as a large part and a small one to the end, where they are added once.
    """
    positions = positions.to(torch.int64) if positions.dtype in INTEGERS else positions
    sign = 1 - 2 * (positions < 0).to(positions.dtype)
    whole, fraction = _whole_and_fraction(positions * sign)
    high, low = _turns(whole, words)
    if fraction is not None:
        parts = (fraction.detach() * 2.0**31).to(torch.int64)  # 2^-31 of a position: 5e-10 rad at most
        high = high + ((parts * words[0] + ((parts * words[1]) >> 32)) >> 31) & _LOW_WORD
    quarter = (high + 2**29) >> 30  # 0 .. 4
    rest = high - (quarter << 30)  # of 2^32 parts of a turn; at most 2^29 to either side
    coarse = (
        rest >> 17
    ).float() * 2.0**-13  # of a quarter turn: 12 bits, whose product with 12 bits of pi / 2 is exact
    fine = ((rest & 0x1FFFF).float() + low.float() * 2.0**-32) * 2.0**-30
    angle, small = coarse * 1.5703125, coarse * (math.pi / 2 - 1.5703125) + fine * (math.pi / 2)
    if fraction is not None:  # adds nothing, and carries the gradient
        small = small + (fraction - fraction.detach()) * (words[0].float() * (math.tau * 2.0**-32))
    cos, sin = _cos_sin_of_eighth(angle, small)
    odd, upper = (quarter & 1).bool(), (quarter & 2).bool()
    along, across = torch.where(odd, sin, cos), torch.where(odd, cos, sin)
    return torch.where(odd ^ upper, -along, along), torch.where(upper, -across, across) * sign.unsqueeze(-1)


def _cos_sin_of_eighth(angle: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of angle + small, float32, at most pi / 4: Taylor's series, its largest terms added last."""
    x = angle + small
    square = x * x
    odd = -1 / 6 + square * (1 / 120 + square * (-1 / 5040 + square * (1 / 362880)))
    even = 1 / 24 + square * (-1 / 720 + square * (1 / 40320 + square * (-1 / 3628800)))
    sin = angle + (small + x * square * odd)
    half = 0.5 * angle * angle
    top = 1.0 - half
    lost = (1.0 - top) - half  # what 1 - half rounded off
    cos = top + (lost + (square * square * even - small * (angle + 0.5 * small)))
    return cos, sin


@torch.library.custom_op("ropewalk::table", mutates_args=())
def _table(positions: Tensor, words: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _fill(positions, words, dtype)


@_table.register_fake
def _(positions: Tensor, words: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _empty(positions, words, dtype)
