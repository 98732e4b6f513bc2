"""How much of the machine others take while something is timed.

A kernel on all cores waits for its last thread. Where another process holds a core, that wait is a slice of the
scheduler, 4 to 8 ms, and a call of 10 µs seems to take a thousand times as long: ours and everybody else's, but not
equally. Times taken in such company are kept and marked, and nothing is judged by them.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

__all__ = ["TOLERABLE", "Company", "cores"]

TOLERABLE = 0.05
"""Share of the cores that others may take: what an idle system does by itself."""

_STATISTICS = Path("/proc/stat")
_IDLE = (3, 4)
"""Columns of idle time and of waiting for disks."""

_GUESTS = 8
"""Columns from here on are counted in the first ones already."""


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Company:
    """A look at the clocks, to be compared with a later one."""

    wall: float
    everybody: float | None
    ourselves: float

    @classmethod
    def now(cls) -> "Company":
        times = os.times()
        ourselves = times.user + times.system + times.children_user + times.children_system
        return cls(perf_counter(), _busy_seconds(), ourselves)

    def since(self) -> float | None:
        """Share of all cores that others have taken since; None where the system does not say."""
        later = Company.now()
        if self.everybody is None or later.everybody is None:
            return None
        others = (later.everybody - self.everybody) - (later.ourselves - self.ourselves)
        return max(0.0, others / (later.wall - self.wall) / (os.cpu_count() or 1))


def _busy_seconds() -> float | None:
    """Seconds that the cores have worked since the machine started."""
    if not _STATISTICS.exists():
        return None
    ticks = [int(word) for word in _STATISTICS.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    busy = sum(ticks[:_GUESTS]) - sum(ticks[column] for column in _IDLE)
    return busy / os.sysconf("SC_CLK_TCK")
