"""Whole sequences: in place, into given tensors, into new ones, backward; beside memory's limits and beside peers."""

import functools
import itertools
from collections.abc import Callable, Iterator

import torch
from benchmarks.peers import peers
from benchmarks.timing import Contender, Run
from benchmarks.work import DTYPES, OURS, Layout, Shape, Work, dtype_name
from torch import Tensor

from ropewalk import Pairing, Part, rotate_both
from ropewalk.kernels import native

__all__ = [
    "AVX2",
    "BACKWARD",
    "FORWARD",
    "IN_PLACE",
    "INTO",
    "NEW",
    "plan_in_place",
    "plan_new",
    "plan_peers",
    "plan_widths",
]

IN_PLACE = "ropewalk in place"
AVX2 = "ropewalk in place, AVX2"
INTO = "ropewalk out="
NEW = "ropewalk out of place"
FROM_POSITIONS = "ropewalk from positions"
FORWARD = "ropewalk forward"
BACKWARD = "ropewalk backward"

_Pair = tuple[Tensor, Tensor]
_Plan = list[Callable[[], Run]]


def _shapes(*, quick: bool) -> tuple[Shape, Shape, Shape]:
    long, short = (256, 64) if quick else (4096, 512)
    return (
        Shape(name="batch 1", batch=1, heads=32, key_heads=8, length=long, head_dim=128),
        Shape(name="batch 4", batch=4, heads=32, key_heads=8, length=long, head_dim=128),
        Shape(name="small", batch=8, heads=12, key_heads=12, length=short, head_dim=64),
    )


def _widths(*, quick: bool) -> Iterator[Shape]:
    wide = functools.partial(Shape, batch=1, heads=32, key_heads=8, length=256 if quick else 4096)
    for width in (64, 80, 256):
        yield wide(name=f"width {width}", head_dim=width)
    for turning, width, part in ((64, 128, Part.LEADING), (32, 128, Part.TRAILING), (64, 192, Part.TRAILING)):
        name = f"{turning} of {width} {part.value}"
        yield wide(name=name, head_dim=width, rotary_dim=turning, part=part)


def plan_in_place(*, quick: bool) -> _Plan:
    """Turning what is there, and into tensors that are there."""
    every = itertools.product(_shapes(quick=quick), DTYPES, Layout)
    return [functools.partial(_in_place, *one) for one in every]


def plan_widths(*, quick: bool) -> _Plan:
    """Other head widths, and heads that turn in part."""
    every = itertools.product(_widths(quick=quick), DTYPES, (Layout.HEADS_FIRST, Layout.POSITIONS_FIRST))
    return [functools.partial(_width, *one) for one in every]


def plan_new(*, quick: bool) -> _Plan:
    """Whatever allocates: out of place, from positions, forward and backward."""
    every = itertools.product(_shapes(quick=quick), DTYPES, (Layout.HEADS_FIRST,))
    return [functools.partial(_new, *one) for one in every]


def plan_peers(*, quick: bool) -> _Plan:
    """In place, beside what others do."""
    first, fourfold, small = _shapes(quick=quick)
    both = (Layout.HEADS_FIRST, Layout.POSITIONS_FIRST)
    layouts = ((first, both), (fourfold, both[:1]), (small, both[:1]))
    return [
        functools.partial(_beside_peers, shape, dtype, layout)
        for shape, some in layouts
        for dtype in DTYPES
        for layout in some
    ]


def _in_place(shape: Shape, dtype: torch.dtype, layout: Layout) -> Run:
    work = Work(shape, dtype, layout)
    contenders = [work.scaling(), work.copying()]
    notes = []
    for pairing in Pairing:
        contenders += [_turning(work, pairing), _turning_into(work, pairing)]
        if native.Level.AVX2 in native.levels():
            contenders.append(_turning_by_avx2(work, pairing))
        else:
            notes.append(f"the C kernel has no AVX2 level here: {AVX2}, {pairing.value}, is not timed")
    return _run("in-place", work, contenders, notes, rounds=40 if shape.batch != 4 else 30, seconds=20.0)


def _width(shape: Shape, dtype: torch.dtype, layout: Layout) -> Run:
    work = Work(shape, dtype, layout)
    contenders = [work.scaling(), *(_turning(work, pairing) for pairing in Pairing)]
    if shape.rotary_dim is not None:
        contenders.append(_scaling_of_what_turns(work))
    return _run("widths", work, contenders)


def _new(shape: Shape, dtype: torch.dtype, layout: Layout) -> Run:
    work = Work(shape, dtype, layout)
    contenders = [work.cloning()]
    for pairing in Pairing:
        contenders += [_turning_anew(work, pairing), _turning_from_positions(work, pairing)]
        contenders += _forward_and_backward(work, pairing)
    return _run("new", work, contenders, seconds=20.0)


def _beside_peers(shape: Shape, dtype: torch.dtype, layout: Layout) -> Run:
    work = Work(shape, dtype, layout)
    others, notes = peers(work)
    contenders = [work.scaling(), work.copying(), *(_turning(work, pairing) for pairing in Pairing), *others]
    return _run("peers", work, contenders, notes, seconds={1: 24.0, 4: 40.0}.get(shape.batch, 10.0))


def _run(
    section: str,
    work: Work,
    contenders: list[Contender],
    notes: list[str] | None = None,
    *,
    rounds: int = 30,
    seconds: float = 10.0,
) -> Run:
    return Run(
        section=section,
        work=work.shape.name,
        contenders=contenders,
        q=tuple(work.q.shape),
        k=tuple(work.k.shape),
        dtype=dtype_name(work.dtype),
        layout=work.layout.value,
        notes=notes or [],
        rounds=rounds,
        seconds=seconds,
    )


def _turning(work: Work, pairing: Pairing) -> Contender:
    q, k, table = work.q, work.k, work.table(pairing)
    return work.ours(IN_PLACE, pairing, lambda: rotate_both(q, k, table, inplace=True))


def _turning_by_avx2(work: Work, pairing: Pairing) -> Contender:
    both, table = (work.q, work.k), work.table(pairing)
    cos, sin = table.cos, table.sin
    turn = functools.partial(
        native.rotate, adjacent=pairing is Pairing.ADJACENT, first=table.first, inverse=False, factor=1.0
    )

    def call() -> _Pair:
        turn(both, both, cos, sin, at=native.Level.AVX2)
        return both

    return work.ours(AVX2, pairing, call)


def _turning_into(work: Work, pairing: Pairing) -> Contender:
    q, k, table = work.q, work.k, work.table(pairing)
    out = torch.empty_like(q), torch.empty_like(k)
    return work.ours(INTO, pairing, lambda: rotate_both(q, k, table, out=out))


def _turning_anew(work: Work, pairing: Pairing) -> Contender:
    q, k, table = work.q, work.k, work.table(pairing)
    return work.ours(NEW, pairing, lambda: rotate_both(q, k, table))


def _turning_from_positions(work: Work, pairing: Pairing) -> Contender:
    q, k, rope, positions = work.q, work.k, work.rope(pairing), work.positions
    return work.ours(FROM_POSITIONS, pairing, lambda: rope(q, k, positions))


def _forward_and_backward(work: Work, pairing: Pairing) -> Iterator[Contender]:
    """Out of place as training sees it, and its gradient; the graph is there before the clock starts."""
    table = work.table(pairing)
    q, k = (x.detach().requires_grad_() for x in (work.q, work.k))  # the same memory
    gradients = torch.randn_like(work.q), torch.randn_like(work.k)

    @torch.enable_grad()
    def forward() -> _Pair:
        return rotate_both(q, k, table)

    graph = forward()

    def backward() -> _Pair:
        q_gradient, k_gradient = torch.autograd.grad(graph, (q, k), gradients, retain_graph=True)
        return q_gradient, k_gradient

    def error() -> float:
        return work.error(backward, pairing, of=gradients, inverse=True)

    yield work.ours(FORWARD, pairing, forward)
    yield Contender(what=BACKWARD, call=backward, pairing=pairing.value, error=error, tolerance=OURS[work.dtype])


def _scaling_of_what_turns(work: Work) -> Contender:
    """`mul_` on the turning channels alone, for comparison: rows this short are not what it is good at."""
    first = work.table(Pairing.HALVES).first
    q, k = (x[..., first : first + (work.shape.rotary_dim or 0)] for x in (work.q, work.k))
    return Contender(what="mul_ of what turns", call=lambda: (q.mul_(1.0), k.mul_(1.0)))
