r"""What a rotation is, in NumPy and float64: the oracle of every test and every kernel.

Pair i of a head, channels (a, b), is a point in the plane; position m turns it by the angle m theta_i:

    y_a = factor (x_a cos(m theta_i) - x_b sin(m theta_i))
    y_b = factor (x_a sin(m theta_i) + x_b cos(m theta_i))               RoFormer, arXiv:2104.09864, eq. 15 and 34

so that <R_m q, R_n k> = q^T R_(n-m) k depends on the positions only through their difference (eq. 16).

Axes: ... any, S positions, D channels of a head, P turned pairs. x (..., S, D); angles broadcast to (..., S, P).
"""

import numpy as np
from numpy.typing import NDArray

from ropewalk.pairing import Pairing, Part

__all__ = ["pair_channels", "rotate"]


def pair_channels(
    head_dim: int, pairs: int, pairing: Pairing, part: Part
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The two channels (a, b) of every pair, each (P,)."""
    first = 0 if part is Part.LEADING else head_dim - 2 * pairs
    index = np.arange(pairs)
    if pairing is Pairing.ADJACENT:
        return first + 2 * index, first + 2 * index + 1
    return first + index, first + pairs + index


def rotate(
    x: NDArray[np.float64],
    angles: NDArray[np.float64],
    *,
    pairing: Pairing,
    part: Part = Part.LEADING,
    inverse: bool = False,
    factor: float = 1.0,
) -> NDArray[np.float64]:
    """Turn every pair of `x` (..., S, D) by `angles` (..., S, P); `inverse` undoes exactly that, factor and all."""
    a, b = pair_channels(x.shape[-1], angles.shape[-1], pairing, part)
    cos, sin = np.cos(angles), np.sin(angles)
    if inverse:
        sin, factor = -sin, 1.0 / factor
    turned = x.copy()
    turned[..., a] = factor * (x[..., a] * cos - x[..., b] * sin)
    turned[..., b] = factor * (x[..., a] * sin + x[..., b] * cos)
    return turned
