"""The two conventions that decide which channels of a head turn together.

    P = rotary_dim / 2 pairs                    pair i holds the channels
    Pairing.ADJACENT   the paper, Meta's Llama  2i and 2i + 1
    Pairing.HALVES     GPT-NeoX, Hugging Face   i  and i + P

    Part.LEADING       channels 0 .. rotary_dim - 1 of the head are turned, the rest pass
    Part.TRAILING      channels head_dim - rotary_dim .. head_dim - 1 are turned

Neither is mathematics and neither can be seen in the weights: both are conventions of a checkpoint that change its
numbers, so neither has a default.
"""

import enum

__all__ = ["Pairing", "Part"]


class Pairing(enum.Enum):
    """Which two channels form a pair."""

    ADJACENT = "adjacent"
    HALVES = "halves"


class Part(enum.Enum):
    """Which end of the head is turned, where `rotary_dim` is smaller than `head_dim`."""

    LEADING = "leading"
    TRAILING = "trailing"
