"""The rotation: its meaning, its tables, the operator, and the permutation between the pairings."""

from ropewalk.rotation.operator import rotate, rotate_both
from ropewalk.rotation.permutation import channel_order, convert_projection
from ropewalk.rotation.table import Table

__all__ = ["Table", "channel_order", "convert_projection", "rotate", "rotate_both"]
