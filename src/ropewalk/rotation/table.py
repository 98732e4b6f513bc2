"""`Table`: all that one rotation needs, made once per forward pass and shared by every layer.

    cos, sin    (S, P), or (B, S, P) where each row of the batch stands elsewhere; float32, or float64
    pairing     which two channels are a pair
    head_dim    D; channels [first, first + 2 P) turn, the others pass
    factor      attention factor of the scaling; kept out of cos and sin, so that the inverse is R^T / factor

A table made from positions remembers them. On a GPU, and for the few positions of a decoding step that is turned here
and now on a CPU, that is all it holds: the kernel makes the phases itself, and cos and sin come into being only for
those who ask.

A plain class on purpose: no dataclass, tuple or pytree, because wrappers that cast the inputs of a forward pass to half
precision look into those, and a rounded table is a wrong rotation.
"""

import math
from typing import Final, final

import torch
from torch import Tensor

from ropewalk.errors import InputError
from ropewalk.kernels import native, triton_rotate
from ropewalk.kernels.surroundings import bare
from ropewalk.pairing import Pairing, Part
from ropewalk.phase import cos_sin, device_words, native_words

__all__ = ["Source", "Table"]

_FEW: Final = 64
"""Positions whose phases the C kernel makes in the call that turns them: a decoding step of a batch."""


@final
class Source:
    """What a table was made from: positions, and the frequencies as words (see `ropewalk.phase`)."""

    __slots__ = ("positions", "words")

    def __init__(self, positions: Tensor, words: str, *, copy: bool = True) -> None:
        # A caller may count his positions on in place before the table, or the backward pass, reads them again.
        copy = copy and not torch.compiler.is_compiling() and bare(positions) and not positions.requires_grad
        self.positions = positions.clone() if copy else positions
        self.words = words

    def words_for_kernel(self) -> Tensor:
        """The frequencies as the kernel on the device of the positions reads them."""
        if self.positions.is_cpu:
            return native_words(self.words)
        return device_words(self.words, self.positions.device)

    def enough_for_a_kernel(self, *, kept: bool) -> bool:
        """Whether a kernel can make the phases itself, at less cost than a table that is `kept` for other calls."""
        positions = self.positions
        if positions.dtype not in (torch.int64, torch.int32) or torch.compiler.is_compiling() or not bare(positions):
            return False
        if positions.is_cuda:
            return triton_rotate.available()
        few = positions.is_cpu and positions.numel() <= _FEW
        return few and not kept and positions.is_contiguous() and native.available()


@final
class Table:
    """Cosines and sines of given positions, with the conventions they are to be used by."""

    __slots__ = ("_cos", "_sin", "factor", "first", "head_dim", "pairing", "pairs", "shape", "source")

    def __init__(
        self,
        cos: Tensor | None,
        sin: Tensor | None,
        *,
        pairing: Pairing,
        head_dim: int,
        part: Part = Part.LEADING,
        factor: float = 1.0,
        source: Source | None = None,
    ) -> None:
        if cos is not None and sin is not None:
            _check(cos, sin, head_dim)
            _check_conventions(pairing, part, factor)
            self.shape: tuple[int, ...] = tuple(cos.shape)
            cos, sin = cos.contiguous(), sin.contiguous()
        elif source is not None:
            self.shape = (*source.positions.shape, len(source.words) // 24)
        else:
            raise InputError("table", "made of cos and sin, or of a source", None)
        self._cos = cos
        self._sin = sin
        self.pairing = pairing
        self.head_dim = head_dim
        self.pairs = self.shape[-1]
        self.first = 0 if part is Part.LEADING else head_dim - 2 * self.pairs
        self.factor = factor
        self.source = source

    @property
    def deferred(self) -> bool:
        """Whether cos and sin have not been made: only the source is there."""
        return self._cos is None

    @property
    def cos(self) -> Tensor:
        """(S, P) or (B, S, P)."""
        return self.cos_sin(self.dtype)[0]

    @property
    def sin(self) -> Tensor:
        """(S, P) or (B, S, P)."""
        return self.cos_sin(self.dtype)[1]

    def cos_sin(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Both, in float32 or float64. Float64 is made anew from the positions: rounded numbers will not do."""
        cos, sin = self._cos, self._sin
        if cos is not None and sin is not None:
            if cos.dtype == dtype:
                return cos, sin
            if dtype == torch.float32:
                return cos.to(dtype), sin.to(dtype)
        if self.source is None:
            raise InputError("table", "of float64 for `x` of float64", "of float32", "Make cos and sin in float64.")
        return cos_sin(self.source.positions, self.source.words, dtype)

    @property
    def device(self) -> torch.device:
        """Where the table is."""
        if self._cos is not None:
            return self._cos.device
        assert self.source is not None
        return self.source.positions.device

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64."""
        return torch.float32 if self._cos is None else self._cos.dtype

    def made_for(self, dtype: torch.dtype) -> "Table":
        """A table whose numbers are good for tensors of `dtype`, made once for the forward and the backward pass."""
        if dtype != torch.float64 or self.dtype == torch.float64:
            return self
        cos, sin = self.cos_sin(dtype)
        part = Part.LEADING if self.first == 0 else Part.TRAILING
        return Table(cos, sin, pairing=self.pairing, head_dim=self.head_dim, part=part, factor=self.factor)

    @property
    def learned(self) -> bool:
        """Whether gradients flow into the table itself."""
        return self._cos is not None and self._cos.requires_grad

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Table({self.shape}, {dtype}, {self.pairing.name}, head_dim={self.head_dim})"


def _check(cos: Tensor, sin: Tensor, head_dim: int) -> None:
    if cos.dtype not in (torch.float32, torch.float64) or sin.dtype != cos.dtype:
        raise InputError("table", "of float32 or float64", cos.dtype, "In half precision it is a wrong rotation.")
    if cos.dim() not in (2, 3) or cos.shape != sin.shape or 2 * cos.shape[-1] > head_dim:
        rule = f"two tensors of equal shape (S, P) or (B, S, P) with 2 P ≤ {head_dim}"
        raise InputError("table", rule, f"{tuple(cos.shape)} and {tuple(sin.shape)}")


def _check_conventions(pairing: Pairing, part: Part, factor: float) -> None:
    if not isinstance(pairing, Pairing):
        raise InputError("pairing", "Pairing.ADJACENT or Pairing.HALVES", repr(pairing))
    if not isinstance(part, Part):
        raise InputError("part", "Part.LEADING or Part.TRAILING", repr(part))
    if not (math.isfinite(factor) and factor > 0):
        raise InputError("factor", "a positive finite number", factor)
