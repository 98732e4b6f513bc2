r"""Rotary position embedding: queries and keys are turned, and their product sees differences of positions only.

    q_m = R_m W_q x_m,   k_n = R_n W_k x_n,   q_m . k_n = (W_q x_m)^T R_(n-m) (W_k x_n)

R_m is block-diagonal: pair j of a head turns by m theta_j, theta_j = base ** (-2 j / rotary_dim).
Paper: Su et al., RoFormer, arXiv:2104.09864, section 3.2.2, eq. 14-16 (we count pairs from 0).

Among the four terms of (x_m W_q + p_m W_q)(x_n W_k + p_n W_k)^T it has none of its own: it multiplies the first.

Axes: B batch, H heads, S positions, D channels of a head, P = rotary_dim / 2 pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ropewalk.errors import ConfigError, InputError
from ropewalk.frequencies import Geometric
from ropewalk.pairing import Pairing, Part
from ropewalk.phase import LARGEST_POSITION, cos_sin, words_of
from ropewalk.rotation import Table, rotate_both
from ropewalk.rotation.table import Source

__all__ = ["Rotary", "RotaryConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryConfig:
    """All that fixes a rotary embedding: equal values turn alike."""

    head_dim: int
    """Channels of a head (D)."""

    pairing: Pairing
    """Which two channels are a pair. No default: nothing in a checkpoint's weights tells."""

    base: float = 10_000.0
    """Base of the geometric series of frequencies."""

    rotary_dim: int | None = None
    """Channels that turn; None: all of them."""

    part: Part | None = None
    """Which end of the head turns. Needed where `rotary_dim` is below `head_dim`, and without meaning elsewhere."""

    def __post_init__(self) -> None:
        problems = []
        if not isinstance(self.pairing, Pairing):
            problems.append(f"`pairing` must be Pairing.ADJACENT or Pairing.HALVES, but is {self.pairing!r}.")
        if not isinstance(self.head_dim, int) or self.head_dim <= 0:
            problems.append(f"`head_dim` must be a positive integer, but is {self.head_dim!r}.")
        else:
            problems += self._problems_of_width()
        try:
            Geometric(width=2, base=self.base)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)

    def _problems_of_width(self) -> list[str]:
        name = "head_dim" if self.rotary_dim is None else "rotary_dim"
        width = self.head_dim if self.rotary_dim is None else self.rotary_dim
        if not isinstance(width, int) or width <= 0 or width % 2:
            return [f"`{name}` must be positive and even, but is {width!r}."]
        if width > self.head_dim:
            return [f"`rotary_dim` must be at most `head_dim` = {self.head_dim}, but is {width}."]
        if width == self.head_dim and not isinstance(self.part, Part | None):
            return [f"`part` must be Part.LEADING, Part.TRAILING or None, but is {self.part!r}."]
        if width < self.head_dim and not isinstance(self.part, Part):
            rule = "Part.LEADING or Part.TRAILING where `rotary_dim` is below `head_dim`"
            return [f"`part` must be {rule}, but is {self.part!r}."]
        return []

    def spectrum(self) -> Geometric:
        """The frequencies, exact."""
        return Geometric(width=self.head_dim if self.rotary_dim is None else self.rotary_dim, base=self.base)


class Rotary(nn.Module):
    """Turns queries and keys: a shell around `rotate` that holds a frozen configuration and nothing else.

    It has no parameters, no buffers and no cache: casts, `to_empty`, copies, foreign checkpoints and threads have
    nothing to change, positions have no limit but 2^31 - 1, and no call changes what a later call returns.
    """

    def __init__(
        self,
        *,
        head_dim: int,
        pairing: Pairing,
        base: float = 10_000.0,
        rotary_dim: int | None = None,
        part: Part | None = None,
    ) -> None:
        super().__init__()
        self.config = RotaryConfig(head_dim=head_dim, pairing=pairing, base=base, rotary_dim=rotary_dim, part=part)
        self._words = words_of(self.config.spectrum().frequencies())

    @property
    def attention_factor(self) -> float:
        """What the turned channels are multiplied by, queries and keys alike."""
        return 1.0

    def inverse_frequencies(self) -> Tensor:
        """theta_j, (P,), float64: what others call `inv_freq`. For reading; the rotation uses exact numbers."""
        return torch.tensor([float(theta) for theta in self.config.spectrum().frequencies()], dtype=torch.float64)

    def table(self, positions: Tensor, *, dtype: torch.dtype = torch.float32) -> Table:
        """cos and sin of `positions` (S,) or (B, S): once in a forward pass, for all layers."""
        return self._table(positions, dtype, kept=True)

    def _table(self, positions: Tensor, dtype: torch.dtype, *, kept: bool) -> Table:
        """`kept`: the table outlives this call, and what the caller does to his positions then."""
        if not isinstance(positions, Tensor):
            raise InputError("positions", "a tensor, (S,) or (B, S)", repr(positions), "A start alone has no length.")
        if positions.dim() not in (1, 2):
            raise InputError("positions", "(S,) or (B, S)", f"of shape {tuple(positions.shape)}")
        source = Source(positions, self._words, copy=kept)
        on_demand = dtype == torch.float32 and source.enough_for_a_kernel(kept=kept)
        cos, sin = (None, None) if on_demand else cos_sin(source.positions, self._words, dtype)
        return Table(
            cos,
            sin,
            pairing=self.config.pairing,
            head_dim=self.config.head_dim,
            part=self.config.part or Part.LEADING,
            factor=self.attention_factor,
            source=source,
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        positions: Tensor | int,
        *,
        inplace: bool = False,
        out: tuple[Tensor, Tensor] | None = None,
        inverse: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """q (..., H, S, D) and k (..., H_kv, S, D), turned to their positions.

        `positions`: (S,), (B, S), or the first of consecutive ones. The options are those of `rotate`.
        """
        if isinstance(positions, Tensor):
            _check_positions(positions, q)
        elif isinstance(positions, (int, torch.SymInt)) and not isinstance(positions, bool):
            _check_start(positions)
            positions = torch.arange(positions, positions + q.shape[-2], device=q.device)
        else:
            raise InputError("positions", "a tensor, or an int (the first of consecutive positions)", repr(positions))
        table = self._table(positions, torch.float32, kept=torch.is_grad_enabled())  # else it is used here and now
        return rotate_both(q, k, table, inplace=inplace, out=out, inverse=inverse)

    def extra_repr(self) -> str:
        """The configuration, for `print(model)`."""
        c = self.config
        parts = [f"head_dim={c.head_dim}", f"pairing={c.pairing.name}", f"base={c.base:,}".replace(",", "_")]
        if c.rotary_dim is not None:
            parts.append(f"rotary_dim={c.rotary_dim}")
        if c.part is not None:
            parts.append(f"part={c.part.name}")
        return ", ".join(parts)


def _check_start(start: int | torch.SymInt) -> None:
    if not -LARGEST_POSITION <= start <= LARGEST_POSITION:
        raise InputError("positions", f"within ±{LARGEST_POSITION}", start)


def _check_positions(positions: Tensor, q: Tensor) -> None:
    if q.dim() < 2:
        return  # `rotate` says what is wrong with q
    length = q.shape[-2]
    batch = q.shape[-4] if q.dim() >= 4 else None
    shape = tuple(positions.shape)
    if shape == (length,) or (batch is not None and len(shape) == 2 and shape[1] == length and shape[0] in (1, batch)):
        return
    rule = f"({length},)" if batch is None else f"({length},) or ({batch}, {length})"
    raise InputError("positions", f"of shape {rule} for `q` {tuple(q.shape)}", f"of shape {shape}")
