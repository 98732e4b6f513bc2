"""How wrong a cosine is at a position: ours, and those that multiply positions by frequencies in float32.

The truth is the phase m theta / 2 pi mod 1 in 60 decimal digits, and its cosine in float64 (error below 2e-16).
"""

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import torch
from torch import Tensor

from ropewalk.encodings import Rotary
from ropewalk.frequencies import Geometric
from ropewalk.pairing import Pairing

__all__ = ["ErrorByPosition", "measure_exactness"]

_TAU = Decimal("6.283185307179586476925286766559005768394338798750211641949889")
_WINDOW = 8
"""Neighbouring positions looked at around each point of the curve: one alone may be right by luck."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorByPosition:
    """Largest error of any cosine at and around each position."""

    head_dim: int
    base: float
    positions: tuple[int, ...]
    ours: tuple[float, ...]
    float32: tuple[float, ...]
    """Angles made in float32, as in most code."""

    bfloat16: tuple[float, ...]
    """The same with frequencies that went through bfloat16 with their model."""


def measure_exactness(head_dim: int = 128, base: float = 500_000.0) -> ErrorByPosition:
    """Errors at positions from 1 to 2^31 - 1, four to a factor of ten."""
    points = sorted({round(10 ** (step / 4)) for step in range(38)} | {2**31 - 1 - _WINDOW})
    around = torch.tensor([[at + i for i in range(_WINDOW)] for at in points])  # (points, _WINDOW)
    truth = _true_cosines(around, Geometric(width=head_dim, base=base))
    rope = Rotary(head_dim=head_dim, pairing=Pairing.HALVES, base=base)
    inverse = rope.inverse_frequencies().float()

    def worst(cosines: Tensor) -> tuple[float, ...]:
        return tuple((cosines.double() - truth).abs().amax((1, 2)).tolist())

    positions = around.float().unsqueeze(-1)
    return ErrorByPosition(
        head_dim=head_dim,
        base=base,
        positions=tuple(points),
        ours=worst(rope.table(around).cos),
        float32=worst((positions * inverse).cos()),
        bfloat16=worst((positions * inverse.bfloat16().float()).cos()),
    )


def _true_cosines(positions: Tensor, spectrum: Geometric) -> Tensor:
    with localcontext(Context(prec=60)):
        turns = [theta / _TAU for theta in spectrum.frequencies()]
        rows = [[math.tau * float(m * turn % 1) for turn in turns] for m in positions.flatten().tolist()]
    return torch.tensor(rows, dtype=torch.float64).cos().view(*positions.shape, -1)
