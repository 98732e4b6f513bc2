"""Queries and keys to be turned, the limits of memory on them, and how far an answer is from the definition.

Axes: B batch, H heads, S positions, D channels of a head, P pairs. Every layout is seen as (B, H, S, D).
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from benchmarks.timing import Contender
from numpy.typing import NDArray
from torch import Tensor

from ropewalk import Pairing, Part, Rotary, Table
from ropewalk.rotation import definition

__all__ = ["DTYPES", "OURS", "PEERS", "Layout", "Shape", "Work", "dtype_name"]

DTYPES = (torch.float32, torch.bfloat16)

OURS = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8 * 1.001}
"""Largest relative error allowed of one head at one position: one rounding."""

PEERS = {torch.float32: 1e-3, torch.bfloat16: 1.5e-2}
"""The same for others: angles in float32, tables and products rounded to bfloat16."""

_Pair = tuple[Tensor, Tensor]


class Layout(enum.Enum):
    """How (B, H, S, D) lies in memory."""

    HEADS_FIRST = "(B,H,S,D)"
    POSITIONS_FIRST = "(B,S,H,D)"
    FUSED = "fused qkv"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of the queries and keys, and how much of a head turns."""

    name: str
    batch: int
    heads: int
    key_heads: int
    length: int
    head_dim: int
    rotary_dim: int | None = None
    part: Part | None = None


class Work:
    """Tensors of one shape, dtype and layout, and their positions."""

    def __init__(self, shape: Shape, dtype: torch.dtype, layout: Layout, positions: Tensor | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.layout = layout
        self.positions = torch.arange(shape.length) if positions is None else positions
        self.q, self.k = _tensors(shape, dtype, layout)

    def rope(self, pairing: Pairing) -> Rotary:
        s = self.shape
        return Rotary(head_dim=s.head_dim, pairing=pairing, rotary_dim=s.rotary_dim, part=s.part)

    def table(self, pairing: Pairing) -> Table:
        return self.rope(pairing).table(self.positions)

    def error(
        self, call: Callable[[], Sequence[Tensor]], pairing: Pairing, *, of: _Pair | None = None, inverse: bool = False
    ) -> float:
        """Call it, and compare with the definition: the largest relative error of one head at one position.

        `of`: the tensors it turns, if not q and k. Heads and rows of the batch: the first and the last.
        """
        theta = self.rope(pairing).inverse_frequencies().numpy()
        angles = _ends(self.positions.numpy()[..., None] * theta)[..., None, :, :]  # (1 | B, 1, S, P) or (1, S, P)
        before = [_sample(x) for x in of or (self.q, self.k)]
        after = [_sample(y) for y in call()]
        part = self.shape.part or Part.LEADING
        wanted = [definition.rotate(x, angles, pairing=pairing, part=part, inverse=inverse) for x in before]
        return max(_distance(y, right) for y, right in zip(after, wanted, strict=True))

    def ours(self, what: str, pairing: Pairing, call: Callable[[], _Pair], *, calls: int = 1) -> Contender:
        """A contender of Ropewalk, held to its own precision."""
        return self._contender(what, pairing, call, OURS[self.dtype], calls)

    def peer(self, what: str, pairing: Pairing, call: Callable[[], _Pair], *, calls: int = 1) -> Contender:
        """A contender of somebody else."""
        return self._contender(what, pairing, call, PEERS[self.dtype], calls)

    def _contender(
        self, what: str, pairing: Pairing, call: Callable[[], _Pair], tolerance: float, calls: int
    ) -> Contender:
        def error() -> float:
            return self.error(call, pairing)

        return Contender(what=what, call=call, pairing=pairing.value, error=error, tolerance=tolerance, calls=calls)

    def scaling(self) -> Contender:
        """The limit of anything in place: one stream in, one stream out."""
        q, k = self.q, self.k
        return Contender(what="mul_", call=lambda: (q.mul_(1.0), k.mul_(1.0)))

    def copying(self) -> Contender:
        """The limit of anything that writes into tensors that are there."""
        q, k = self.q, self.k
        q_out, k_out = torch.empty_like(q), torch.empty_like(k)
        return Contender(what="copy_", call=lambda: (q_out.copy_(q), k_out.copy_(k)))

    def cloning(self) -> Contender:
        """The limit of anything that returns new tensors."""
        q, k = self.q, self.k
        return Contender(what="clone", call=lambda: (q.clone(), k.clone()))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensors(s: Shape, dtype: torch.dtype, layout: Layout) -> _Pair:
    random = torch.Generator().manual_seed(20210420)
    if layout is Layout.FUSED:
        heads = (s.heads, s.key_heads, s.key_heads)
        qkv = torch.randn(s.batch, s.length, sum(heads), s.head_dim, generator=random, dtype=dtype)
        q, k, _ = qkv.split(heads, dim=2)  # (B, S, H, D) each, with the others in between
        return q.transpose(1, 2), k.transpose(1, 2)
    q, k = (_randn(s, heads, dtype, layout, random) for heads in (s.heads, s.key_heads))
    return q, k


def _randn(s: Shape, heads: int, dtype: torch.dtype, layout: Layout, random: torch.Generator) -> Tensor:
    if layout is Layout.POSITIONS_FIRST:
        return torch.randn(s.batch, s.length, heads, s.head_dim, generator=random, dtype=dtype).transpose(1, 2)
    return torch.randn(s.batch, heads, s.length, s.head_dim, generator=random, dtype=dtype)


def _sample(x: Tensor) -> NDArray[np.float64]:
    """(B', H', S, D): the first and the last row of the batch, the first and the last head."""
    x = x.detach()[:: max(1, x.shape[0] - 1), :: max(1, x.shape[1] - 1)]
    return np.asarray(x.double().numpy())


def _ends(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """The angles (S, P) or (B, S, P) of what `_sample` takes."""
    return angles[:: max(1, angles.shape[0] - 1)] if angles.ndim == 3 else angles


def _distance(got: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    return float(np.max(np.linalg.norm(got - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)))
