"""What the command line and the reports run: experiments that end in numbers, tables and pages."""

from ropewalk.workbench.exactness import measure_exactness
from ropewalk.workbench.laws import check_laws
from ropewalk.workbench.speed import measure_speed

__all__ = ["check_laws", "measure_exactness", "measure_speed"]
