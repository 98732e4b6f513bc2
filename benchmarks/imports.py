"""What `import ropewalk` adds to `import torch`, each in a fresh process."""

import functools
import subprocess
import sys
from collections.abc import Callable

from benchmarks.timing import Contender, Run

__all__ = ["OURS", "TORCH", "plan"]

OURS = "import ropewalk"
TORCH = "import torch"


def plan(*, quick: bool) -> list[Callable[[], Run]]:
    """One run; the best of its rounds counts, since everything else that a machine does only adds to it."""
    return [functools.partial(_run, 1 if quick else 7)]


def _run(rounds: int) -> Run:
    contenders = [Contender(what=what, call=functools.partial(_start, what)) for what in (TORCH, OURS)]
    return Run(section="import", work="import", contenders=contenders, rounds=rounds, seconds=60.0, pick=min)


def _start(statement: str) -> None:
    subprocess.run([sys.executable, "-c", statement], check=True)
