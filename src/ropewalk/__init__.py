"""Ropewalk: rotary position embedding, exact at any position and as cheap as touching the memory."""

from ropewalk import kernels, positions
from ropewalk.encodings import Rotary
from ropewalk.errors import ConfigError, InputError, MissingPartError, RopewalkError
from ropewalk.frequencies import Geometric
from ropewalk.pairing import Pairing, Part
from ropewalk.rotation import Table, rotate, rotate_both

__all__ = [
    "ConfigError",
    "Geometric",
    "InputError",
    "MissingPartError",
    "Pairing",
    "Part",
    "RopewalkError",
    "Rotary",
    "Table",
    "__version__",
    "kernels",
    "positions",
    "rotate",
    "rotate_both",
]

__version__ = "0.1.0"
