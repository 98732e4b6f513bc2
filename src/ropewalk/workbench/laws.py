r"""The laws of the rotation, each checked on random data as a deviation that ought to be rounding and nothing more.

    |R_m x| = |x|      R_m^T = R_(-m)      R_m^T R_m = 1      R_m R_n = R_(m+n)
    <R_m q, R_n k> = q^T R_(n-m) k = Re sum_j h_j e^(i (m-n) theta_j),      h_j = q_j conj(k_j)

and one that must not hold: the same score with the positions exchanged. Everything in float64, through `rotate`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.encodings import Rotary
from ropewalk.pairing import Pairing
from ropewalk.rotation import rotate

__all__ = ["Law", "check_laws"]

_WIDTH = 128
_SAMPLES = 1000
_FARTHEST = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """One law and how far it is off."""

    statement: str
    """The law, in symbols."""

    deviation: float
    """Largest difference between its two sides, over all samples and both pairings."""

    bound: float
    """What rounding in float64 may do to it."""

    must_hold: bool = True
    """False for a statement that ought to be false."""

    @property
    def passed(self) -> bool:
        """Whether it came out as it should."""
        return (self.deviation <= self.bound) is self.must_hold


def check_laws(seed: int = 0) -> list[Law]:
    """Check every law with `seed`'s random vectors and positions up to a million."""
    worst: dict[str, float] = {}
    for pairing in Pairing:
        for statement, deviation in _deviations(pairing, seed).items():
            worst[statement] = max(worst.get(statement, 0.0), deviation)
    bound = 1e-12
    return [Law(statement=s, deviation=d, bound=bound, must_hold="≠" not in s) for s, d in worst.items()]


def _deviations(pairing: Pairing, seed: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    rope = Rotary(head_dim=_WIDTH, pairing=pairing)
    x, q, k = torch.randn(3, _SAMPLES, _WIDTH, dtype=torch.float64, generator=generator)
    m, n = torch.randint(0, _FARTHEST, (2, _SAMPLES), generator=generator)

    def turn(vectors: Tensor, positions: Tensor, *, inverse: bool = False) -> Tensor:
        return rotate(vectors, rope.table(positions, dtype=torch.float64), inverse=inverse)

    def largest(a: Tensor, b: Tensor) -> float:
        return (a - b).abs().max().item()

    score = (turn(q, m) * turn(k, n)).sum(-1)
    h = _as_complex(q, pairing) * _as_complex(k, pairing).conj()
    closed_form = _at_difference(h, rope, m - n)
    return {
        "‖R_m x‖ = ‖x‖": largest(turn(x, m).norm(dim=-1), x.norm(dim=-1)),
        "R_mᵀ = R_(−m)": largest(turn(x, m, inverse=True), turn(x, -m)),
        "R_mᵀ R_m = 1": largest(turn(turn(x, m), m, inverse=True), x),
        "R_m R_n = R_(m+n)": largest(turn(turn(x, n), m), turn(x, m + n)),
        "⟨R_m q, R_n k⟩ = qᵀ R_(n−m) k": largest(score, (q * turn(k, n - m)).sum(-1)),
        "⟨R_m q, R_n k⟩ = Re Σ h_j e^(i(m−n)θ_j)": largest(score, closed_form),
        "⟨R_m q, R_n k⟩ ≠ qᵀ R_(m−n) k": largest(score, (q * turn(k, m - n)).sum(-1)),
    }


def _as_complex(x: Tensor, pairing: Pairing) -> Tensor:
    if pairing is Pairing.ADJACENT:
        return torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.complex(*x.chunk(2, -1))


def _at_difference(h: Tensor, rope: Rotary, difference: Tensor) -> Tensor:
    table = rope.table(difference, dtype=torch.float64)
    return (h * torch.complex(table.cos, table.sin)).real.sum(-1)
