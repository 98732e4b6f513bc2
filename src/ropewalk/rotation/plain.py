"""The rotation in plain torch operations: what compilers fuse, and what transforms and foreign tensors run through.

    y_a = factor (a cos - b sin)        y_b = factor (a sin + b cos)

Differentiable in x and in the table; works under `torch.compile`, `torch.export`, vmap, forward-mode autograd, on any
device and tensor subclass. Arithmetic in the table's type, one rounding at the end. Axes as in `definition.py`.
"""

import torch
from torch import Tensor

__all__ = ["turned"]


def turned(x: Tensor, cos: Tensor, sin: Tensor, *, adjacent: bool, first: int, inverse: bool, factor: float) -> Tensor:
    """`x` (..., H, S, D) turned by (S, P) or (B, S, P) tables; the arguments are those of the kernels."""
    if cos.dim() == 3:
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # (B, 1, S, P): the same for all heads
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    if inverse:
        sin = -sin
    end = first + 2 * cos.shape[-1]
    whole = end - first == x.shape[-1]
    a, b = _split((x if whole else x[..., first:end]).to(cos.dtype), adjacent)  # (..., H, S, P) each
    middle = _join(a * cos - b * sin, a * sin + b * cos, adjacent).to(x.dtype)
    if whole:
        return middle
    return torch.cat((x[..., :first], middle, x[..., end:]), -1)


def _split(x: Tensor, adjacent: bool) -> tuple[Tensor, Tensor]:
    if adjacent:
        a, b = x[..., 0::2], x[..., 1::2]
    else:
        a, b = x.chunk(2, -1)
    return a, b


def _join(a: Tensor, b: Tensor, adjacent: bool) -> Tensor:
    if not adjacent:
        return torch.cat((a, b), -1)
    return torch.stack((a, b), -1).view(*a.shape[:-1], 2 * a.shape[-1])  # (..., P, 2) -> (..., 2 P)
