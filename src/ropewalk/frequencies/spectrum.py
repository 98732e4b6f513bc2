r"""How fast each pair of channels turns: exact numbers on the host, never a tensor that a cast could round.

    theta_j = base ** (-2 j / width)        j = 0 .. P - 1,  P = width / 2        radians per position

The fastest pair is j = 0 (theta_0 = 1), the slowest the last. Paper: Su et al., RoFormer, arXiv:2104.09864, section
3.2.2 (the paper counts i from 1, so its exponent is -2 (i - 1) / d). `width` is the number of channels that turn, which
is smaller than the head where the rotation is partial.

Frequencies are `decimal.Decimal`s of 60 significant digits: a phase needs 96 exact bits of theta / 2 pi (29 digits),
and a float64 has 16.
"""

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

from ropewalk.errors import ConfigError

__all__ = ["DIGITS", "Geometric"]

DIGITS = 60
"""Significant decimal digits of every frequency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometric:
    """The geometric series of the paper, for any base and any even width."""

    width: int
    """Channels that turn: two for each pair."""

    base: float = 10_000.0
    """Ratio between the fastest frequency and the one that would follow the slowest."""

    def __post_init__(self) -> None:
        problems = []
        if not isinstance(self.width, int) or self.width <= 0 or self.width % 2:
            problems.append(f"`width` must be a positive even integer, but is {self.width!r}.")
        if isinstance(self.base, bool) or not isinstance(self.base, int | float) or not 1 <= self.base < math.inf:
            problems.append(f"`base` must be a finite number of at least 1, but is {self.base!r}.")
        if problems:
            raise ConfigError(problems)

    def frequencies(self) -> tuple[Decimal, ...]:
        """theta_j in radians per position, fastest pair first; P exact decimals."""
        with localcontext(Context(prec=DIGITS + 10)):
            step = Decimal(self.base).ln() * 2 / self.width
            exact = [(-step * pair).exp() for pair in range(self.width // 2)]
        with localcontext(Context(prec=DIGITS)):
            return tuple(+theta for theta in exact)
