"""How fast each pair turns: spectra as exact numbers on the host."""

from ropewalk.frequencies.spectrum import Geometric

__all__ = ["Geometric"]
