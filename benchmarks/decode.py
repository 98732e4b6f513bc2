"""One token more, S = 1: what counts is everything that Python does before the kernel starts.

Each row of the batch stands elsewhere, as in a server. Calls are timed in loops.
"""

import functools
import itertools
from collections.abc import Callable

import torch
from benchmarks.peers import TRANSFORMERS, llama
from benchmarks.timing import Contender, Run
from benchmarks.work import DTYPES, Layout, Shape, Work, dtype_name
from torch import Tensor

from ropewalk import Pairing, rotate_both

__all__ = ["FROM_POSITIONS", "FROM_POSITIONS_IN_PLACE", "IN_PLACE", "NEW", "TRANSFORMERS_FROM_POSITIONS", "plan"]

IN_PLACE = "ropewalk in place"
NEW = "ropewalk out of place"
FROM_POSITIONS_IN_PLACE = "ropewalk from positions, in place"
FROM_POSITIONS = "ropewalk from positions"
TRANSFORMERS_FROM_POSITIONS = "transformers eager from positions"

CALLS = 100


def plan(*, quick: bool) -> list[Callable[[], Run]]:
    """A batch of 1 and of 16, in each dtype."""
    calls = 10 if quick else CALLS
    return [functools.partial(_run, batch, dtype, calls) for batch, dtype in itertools.product((1, 16), DTYPES)]


def _run(batch: int, dtype: torch.dtype, calls: int) -> Run:
    shape = Shape(name=f"decode {batch}", batch=batch, heads=32, key_heads=8, length=1, head_dim=128)
    positions = torch.arange(4000, 4000 + batch)[:, None]  # (B, 1)
    work = Work(shape, dtype, Layout.HEADS_FIRST, positions)
    contenders = [one for pairing in Pairing for one in _ours(work, pairing, calls)]
    notes = []
    try:
        contenders += _transformers(work, calls)
    except ImportError as missing:
        notes.append(f"transformers is not timed: {missing}")
    return Run(
        section="decode",
        work=shape.name,
        contenders=contenders,
        q=tuple(work.q.shape),
        k=tuple(work.k.shape),
        dtype=dtype_name(dtype),
        layout=work.layout.value,
        notes=notes,
        rounds=60,
    )


def _ours(work: Work, pairing: Pairing, calls: int) -> list[Contender]:
    q, k, positions = work.q, work.k, work.positions
    rope, table = work.rope(pairing), work.table(pairing)
    ours = functools.partial(work.ours, calls=calls)
    return [
        ours(IN_PLACE, pairing, lambda: rotate_both(q, k, table, inplace=True)),
        ours(NEW, pairing, lambda: rotate_both(q, k, table)),
        ours(FROM_POSITIONS_IN_PLACE, pairing, lambda: rope(q, k, positions, inplace=True)),
        ours(FROM_POSITIONS, pairing, lambda: rope(q, k, positions)),
    ]


def _transformers(work: Work, calls: int) -> list[Contender]:
    q, k, positions = work.q, work.k, work.positions
    embedding, turn = llama(work.shape.head_dim)
    cos, sin = embedding(q, positions)

    def from_positions() -> tuple[Tensor, Tensor]:
        return turn(q, k, *embedding(q, positions))

    peer = functools.partial(work.peer, calls=calls)
    return [
        peer(TRANSFORMERS, Pairing.HALVES, lambda: turn(q, k, cos, sin)),
        peer(TRANSFORMERS_FROM_POSITIONS, Pairing.HALVES, from_positions),
    ]
