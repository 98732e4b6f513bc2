"""What a rotation must give, worked out apart from the library: angles in 60 digits, then the NumPy definition.

The phase of a position p is p theta / 2 pi mod 1 in integers of 200 bits, so its error is far below that of float64;
dropping whole turns is exact. Axes: B batch, S positions, P pairs, D channels of a head.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mp  # type: ignore[import-untyped]  # it has no stubs
from numpy.typing import NDArray
from torch import Tensor

from ropewalk import InputError, Pairing, Part, RopewalkError
from ropewalk.rotation import definition

Array = NDArray[np.float64]

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
HUGE = (0, 1, -1, 257, 4095, 131_071, 999_999, 1_000_000, -1_000_000, 2**31 - 1, -(2**31 - 1))

ROUNDING = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half a unit in the last place, relative."""

_BITS = 200


@functools.cache
def _fractions_of_a_turn(width: int, base: float) -> tuple[int, ...]:
    """theta_j / 2 pi in units of 2^-200."""
    with mp.workdps(80):
        return tuple(int(mp.power(base, mp.mpf(-2 * j) / width) / (2 * mp.pi) * 2**_BITS) for j in range(width // 2))


def exact_angles(positions: Tensor, width: int, base: float = 10_000.0) -> Array:
    """position * theta_j within half a turn of 0, (..., P); positions may be integers or reals."""
    turns = []
    for position in positions.flatten().tolist():
        numerator, denominator = position.as_integer_ratio()
        whole = denominator << _BITS
        for fraction in _fractions_of_a_turn(width, base):
            phase = numerator * fraction % whole
            turns.append((phase - whole if 2 * phase > whole else phase) / whole)
    return 2 * np.pi * np.array(turns).reshape(*positions.shape, width // 2)


def turned(
    x: Tensor,
    positions: Tensor,
    *,
    pairing: Pairing,
    base: float = 10_000.0,
    rotary_dim: int | None = None,
    part: Part = Part.LEADING,
    inverse: bool = False,
    factor: float = 1.0,
) -> Array:
    """What `rotate` must give for x (..., H, S, D) and positions (S,) or (B, S), in float64 and not yet rounded."""
    angles = exact_angles(positions, x.shape[-1] if rotary_dim is None else rotary_dim, base)
    if positions.dim() == 2:
        angles = angles[:, None]  # (B, 1, S, P)
    values = x.detach().to(torch.float64).numpy()
    return definition.rotate(values, angles, pairing=pairing, part=part, inverse=inverse, factor=factor)


def sizes(x: Tensor, *, pairing: Pairing, rotary_dim: int | None = None, part: Part = Part.LEADING) -> Array:
    """|(x_a, x_b)| at both channels of each pair, which no rotation changes; 0 where channels pass. Shape of x."""
    values = x.detach().to(torch.float64).numpy()
    pairs = (x.shape[-1] if rotary_dim is None else rotary_dim) // 2
    a, b = definition.pair_channels(x.shape[-1], pairs, pairing, part)
    size = np.zeros_like(values)
    size[..., a] = size[..., b] = np.hypot(values[..., a], values[..., b])
    return size


def assert_turned(
    got: Tensor,
    x: Tensor,
    positions: Tensor,
    *,
    pairing: Pairing,
    base: float = 10_000.0,
    rotary_dim: int | None = None,
    part: Part = Part.LEADING,
    inverse: bool = False,
    factor: float = 1.0,
) -> None:
    """`got` is x turned exactly and rounded once: to a few units of float32 and half a unit of its own type."""
    want = turned(
        x,
        positions,
        pairing=pairing,
        base=base,
        rotary_dim=rotary_dim,
        part=part,
        inverse=inverse,
        factor=factor,
    )
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    size = sizes(x, pairing=pairing, rotary_dim=rotary_dim, part=part) * (1 / factor if inverse else factor)
    arithmetic = 8 * 2.0**-53 if x.dtype == torch.float64 else 4 * 2.0**-24
    allowed = arithmetic * size + ROUNDING[x.dtype] * np.abs(want) + (2.0**-25 if x.dtype == torch.float16 else 0.0)
    error = np.abs(got.detach().to(torch.float64).numpy() - want)
    assert np.all(error <= allowed), f"off by {np.max(error - allowed):.3g} at {np.argmax(error - allowed)}"


def bits(*tensors: Tensor) -> list[Tensor]:
    """The bytes of each tensor, in the order of its elements: equal where nothing at all has changed."""
    return [x.detach().reshape(-1).contiguous().view(torch.uint8).clone() for x in tensors]


def same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether two `bits` are equal."""
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def refused(call: Callable[..., object], *arguments: object, **options: Any) -> str:  # noqa: ANN401  # of any call
    """The sentence of the error, after making sure that every tensor handed over is what it was."""
    out = options.get("out")
    handed = [*arguments, *(out if isinstance(out, tuple) else (out,))]
    tensors = [x for x in handed if isinstance(x, Tensor) and not x.is_meta]
    before = bits(*tensors)
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    assert isinstance(caught.value, RopewalkError)
    assert isinstance(caught.value, ValueError)
    assert same_bits(bits(*tensors), before)
    return str(caught.value)
