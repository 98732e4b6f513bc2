r"""`rotate`: turn queries or keys by a table.

    y = factor R x        inverse: y = R^T x / factor        gradient: dL/dx = factor R^T dL/dy

The gradient needs the table only, so that nothing of x is saved and turning in place is legal in training. One kernel
call does the work (C on the CPU, Triton on a GPU). Plain torch operations do it where a kernel cannot or should not:
under compilers and exporters, which fuse them; under function transforms and for tensor subclasses; for tables that
need gradients themselves.

Axes: B batch, H heads, S positions, D channels of a head. Tensors are (..., H, S, D); another memory layout is strides.
"""

from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import InputError
from ropewalk.kernels import dispatch
from ropewalk.kernels.surroundings import bare
from ropewalk.pairing import Pairing
from ropewalk.phase import refuse_beyond
from ropewalk.rotation import checks
from ropewalk.rotation.plain import turned
from ropewalk.rotation.table import Table

__all__ = ["rotate", "rotate_both"]

_Tensors = tuple[Tensor, ...]


def rotate(
    x: Tensor, table: Table, *, inplace: bool = False, out: Tensor | None = None, inverse: bool = False
) -> Tensor:
    """Turn every pair of `x` (..., H, S, D) to its position.

    `inplace` reuses the memory of `x`: use the result, not `x`, from then on (under a compiler, and for tables with
    gradients, `x` itself stays as it was). `out` receives the result, and may be a slice of a larger tensor such as a
    key cache. `inverse` turns back.
    """
    return _rotate((x,), ("x",), table, inplace, None if out is None else (out,), inverse)[0]


def rotate_both(
    q: Tensor,
    k: Tensor,
    table: Table,
    *,
    inplace: bool = False,
    out: tuple[Tensor, Tensor] | None = None,
    inverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """`rotate` for queries (..., H, S, D) and keys (..., H_kv, S, D) at the same positions, in one call."""
    turned_q, turned_k = _rotate((q, k), ("q", "k"), table, inplace, out, inverse)
    return turned_q, turned_k


def _rotate(
    xs: _Tensors, names: tuple[str, ...], table: Table, inplace: bool, outs: _Tensors | None, inverse: bool
) -> _Tensors:
    checks.inputs(xs, names, table)
    if outs is not None:
        if inplace:
            raise InputError("out", "None where `inplace` is true", "given")
        checks.outputs(xs, names, outs)
        checks.no_gradient(xs, names, outs)
    factor = 1.0 / table.factor if inverse else table.factor
    if torch.compiler.is_compiling():
        return _written(tuple(_plain(x, table, inverse, factor) for x in xs), outs)
    watched = not bare(*xs) or (outs is not None and not bare(*outs))
    if inplace:
        _check_in_place(xs, names, watched)
    if table.learned or watched:
        results = tuple(_plain(x, table, inverse, factor) for x in xs)
        overwrite = inplace and not table.learned  # the gradient of a learned table needs x as it was
        return _written(results, xs if overwrite else outs)
    if torch.is_grad_enabled() and any(x.requires_grad for x in xs):
        table = table.made_for(xs[0].dtype)
        return tuple(_with_gradient(x, table, inverse, factor, inplace) for x in xs)
    return _turn_now(xs, table, inverse, factor, xs if inplace else outs)


def _check_in_place(xs: _Tensors, names: tuple[str, ...], watched: bool) -> None:
    for at, x in enumerate(xs):
        checks.inplace_target(x, names[at])
    if len(xs) == 1:
        return
    q, k = xs  # what is watched may have no memory: fake and abstract tensors
    if q is k or (not watched and q.data_ptr() == k.data_ptr() and q.numel()):
        raise InputError("k", "another tensor than `q` to be turned in place", "the same")
    if not watched and checks.share_memory(q, k):
        raise InputError("k", "apart from `q` in memory to be turned in place", "a view that overlaps it")


def _written(results: _Tensors, targets: _Tensors | None) -> _Tensors:
    if targets is None:
        return results
    return tuple(target.copy_(result) for target, result in zip(targets, results, strict=True))


def _plain(x: Tensor, table: Table, inverse: bool, factor: float) -> Tensor:
    cos, sin = table.cos_sin(torch.float64 if x.dtype == torch.float64 else torch.float32)
    adjacent = table.pairing is Pairing.ADJACENT
    return turned(x, cos, sin, adjacent=adjacent, first=table.first, inverse=inverse, factor=factor)


def _turn_now(xs: _Tensors, table: Table, inverse: bool, factor: float, targets: _Tensors | None) -> _Tensors:
    """Outside autograd: run the kernel into `targets`, or into new tensors."""
    fresh = targets is None
    if targets is None:
        targets = tuple(torch.empty_like(x) for x in xs)
    elif targets is not xs and _entangled(xs, targets):
        return _written(_turn_now(xs, table, inverse, factor, None), targets)
    else:
        torch.autograd.graph.increment_version(targets)
    if targets[0].numel():
        _run(xs, targets, table, inverse, factor, fresh=fresh)
    return targets


def _entangled(xs: _Tensors, targets: _Tensors) -> bool:
    """Whether a target shares memory with an input, other than by being its own."""
    memory = {x.untyped_storage().data_ptr() for x in xs}
    return any(target.untyped_storage().data_ptr() in memory for target in targets)


def _run(xs: _Tensors, ys: _Tensors, table: Table, inverse: bool, factor: float, *, fresh: bool = False) -> None:
    """One kernel call for all tensors, from positions or from a table; torch operations where there is no kernel."""
    kernel = dispatch.choose(xs[0])
    views = (xs, ys) if xs[0].dim() == 4 else _as_batches(xs, ys, table)
    if kernel is None or views is None:
        _written(tuple(_plain(x, table, inverse, factor) for x in xs), ys)
        return
    adjacent, first, source = table.pairing is Pairing.ADJACENT, table.first, table.source
    in_kernel = xs[0].is_cpu or xs[0].dtype != torch.float64  # a GPU kernel makes phases in float32
    if table.deferred and source is not None and in_kernel:
        words = source.words_for_kernel()
        if not kernel.rotate_at(
            *views, source.positions, words, adjacent=adjacent, first=first, inverse=inverse, factor=factor, fresh=fresh
        ):
            refuse_beyond(source.positions)
        return
    cos, sin = table.cos_sin(torch.float64 if xs[0].dtype == torch.float64 else torch.float32)
    kernel.rotate(*views, cos, sin, adjacent=adjacent, first=first, inverse=inverse, factor=factor, fresh=fresh)


def _as_batches(xs: _Tensors, ys: _Tensors, table: Table) -> tuple[_Tensors, _Tensors] | None:
    """The tensors as (B, H, S, D) views, as kernels want them; None where no view can say so."""
    if xs[0].dim() > 4 and len(table.shape) == 3:
        return None
    try:
        return tuple(_as_batch(x) for x in xs), tuple(_as_batch(y) for y in ys)
    except RuntimeError:  # leading axes that no stride can flatten
        return None


def _as_batch(x: Tensor) -> Tensor:
    if x.dim() < 4:
        return x[(None,) * (4 - x.dim())]
    return x.view(-1, *x.shape[-3:])


def _with_gradient(x: Tensor, table: Table, inverse: bool, factor: float, inplace: bool) -> Tensor:
    y: Tensor = _Turn.apply(x, table, inverse, factor, inplace)  # type: ignore[no-untyped-call]  # torch's own
    return y


class _Turn(torch.autograd.Function):
    """The rotation as autograd sees it. The arguments after the table are the turn's direction and multiplier."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Table, inverse: bool, factor: float, inplace: bool) -> Tensor:
        ctx.turn = table, inverse, factor
        if inplace:
            ctx.mark_dirty(x)
            if x.numel():
                _run((x,), (x,), table, inverse, factor)
            return x
        return _turn_now((x,), table, inverse, factor, None)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        table, inverse, factor = ctx.turn
        return _transposed(gradient, table, not inverse, factor), None, None, None, None


def _transposed(gradient: Tensor, table: Table, inverse: bool, factor: float) -> Tensor:
    batched = torch._C._functorch.is_legacy_batchedtensor(gradient)  # under `is_grads_batched`
    if batched or torch.compiler.is_compiling() or not bare(gradient):
        return _plain(gradient, table, inverse, factor)
    if gradient.requires_grad and torch.is_grad_enabled():
        return _with_gradient(gradient.contiguous(), table, inverse, factor, False)
    if gradient.stride()[-1] != 1:  # such as the expanded gradient of a sum: our own copy can be turned in place
        copy = (gradient.contiguous(),)
        return _turn_now(copy, table, inverse, factor, copy)[0]
    return _turn_now((gradient,), table, inverse, factor, None)[0]
