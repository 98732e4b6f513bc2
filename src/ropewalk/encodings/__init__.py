"""Everything that gives attention a sense of position."""

from ropewalk.encodings.rotary import Rotary, RotaryConfig

__all__ = ["Rotary", "RotaryConfig"]
