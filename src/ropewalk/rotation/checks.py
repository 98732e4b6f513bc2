"""What a rotation refuses before it computes anything; one sentence each."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.errors import InputError
from ropewalk.kernels.surroundings import bare
from ropewalk.rotation.table import Table

__all__ = ["inplace_target", "inputs", "no_gradient", "outputs", "share_memory"]

_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16, torch.float64})


def inputs(tensors: Sequence[Tensor], names: Sequence[str], table: Table) -> None:
    """Tensors that `table` can turn, all of one dtype, batch and length."""
    rows, head_dim, device = table.shape, table.head_dim, table.device
    length, by_row = rows[-2], len(rows) == 3
    for x in tensors:  # the whole of `_input` at once: a decoding step counts microseconds
        shape = x.shape
        dims = len(shape)
        if (
            dims < 2
            or shape[-1] != head_dim
            or shape[-2] != length
            or x.stride()[-1] != 1
            or x.dtype not in _FLOATS
            or x.device != device
            or (by_row and (dims < 4 or rows[0] not in (1, shape[-4])))
        ):
            _input(x, names[[x is other for other in tensors].index(True)], table)
    if len(tensors) == 2:
        _two_of_a_kind(tensors[0], tensors[1])


def _input(x: Tensor, name: str, table: Table) -> None:
    if x.dtype not in _FLOATS:
        raise InputError(name, "of float32, bfloat16, float16 or float64", x.dtype)
    shape = x.shape
    if len(shape) < 2:
        raise InputError(name, "(..., H, S, D)", f"of shape {tuple(shape)}")
    if shape[-1] != table.head_dim:
        raise InputError(name, f"of {table.head_dim} channels in its last dimension", f"of shape {tuple(shape)}")
    if x.stride()[-1] != 1:
        strides = f"of strides {tuple(x.stride())}"
        raise InputError(name, "contiguous in its last dimension", strides, "Call `.contiguous()` first.")
    _fits(x, name, table)


def _fits(x: Tensor, name: str, table: Table) -> None:
    shape, rows = x.shape, table.shape
    if rows[-2] != shape[-2]:
        rule = f"for {shape[-2]} positions, the S of `{name}` {tuple(shape)}"
        raise InputError("table", rule, f"for {rows[-2]}")
    if len(rows) == 3:
        if len(shape) < 4:
            cure = "A table with rows of its own for each B needs the axis of heads."
            raise InputError(name, "(B, H, S, D)", f"of shape {tuple(shape)}", cure)
        if rows[0] not in (1, shape[-4]):
            rule = f"for 1 or {shape[-4]} rows, the B of `{name}` {tuple(shape)}"
            raise InputError("table", rule, f"for {rows[0]}")
    if x.device != table.device:
        raise InputError("table", f"on {x.device}, the device of `{name}`", f"on {table.device}")


def _two_of_a_kind(q: Tensor, k: Tensor) -> None:
    if q.dtype != k.dtype:
        raise InputError("k", f"of {q.dtype}, the type of `q`", k.dtype)
    if len(q.shape) != len(k.shape) or q.shape[:-3] != k.shape[:-3]:
        rule = f"of the batch of `q` {tuple(q.shape)}"
        raise InputError("k", rule, f"of shape {tuple(k.shape)}", "Only the number of heads may differ.")


def inplace_target(x: Tensor, name: str) -> None:
    """A tensor that may be overwritten: each element once, and with no gradient lost."""
    if _is_expanded(x):
        cure = "Use `inplace=False`, or clone it first."
        raise InputError(name, "a tensor whose elements do not share memory", "expanded", cure)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return
    base = x._base
    if (x if base is None else base).is_leaf:
        cure = "Use `inplace=False`."
        raise InputError(name, "computed from something to be turned in place", "a leaf that requires gradients", cure)
    if base is not None and torch._C._autograd._get_creation_meta(x) != torch._C._autograd.CreationMeta.DEFAULT:
        cure = "Slice it out instead, or use `inplace=False`."
        actual = "one of several views that one function returned (chunk, split, unbind)"
        raise InputError(name, "a view of its own to be turned in place", actual, cure)


def _is_expanded(x: Tensor) -> bool:
    strides = x.stride()
    return 0 in strides and any(s == 0 and size > 1 for s, size in zip(strides, x.shape, strict=True))


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two views of one storage, with equal strides, have an element in common. Exact where strides nest."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr() or a.stride() != b.stride():
        return False
    low, high = (a, b) if a.storage_offset() <= b.storage_offset() else (b, a)
    rest = high.storage_offset() - low.storage_offset()
    for stride, size in sorted(zip(low.stride(), low.shape, strict=True), reverse=True):
        if size == 0 or (stride and rest // stride >= size):
            return False  # along this axis the higher one begins behind the end of the lower one
        rest -= rest // stride * stride if stride else 0
    return True


def outputs(tensors: Sequence[Tensor], names: Sequence[str], outs: Sequence[Tensor]) -> None:
    """Tensors of the same shape and type to be written to."""
    if len(outs) != len(tensors):
        raise InputError("out", f"{len(tensors)} tensors, for " + " and ".join(f"`{n}`" for n in names), len(outs))
    for x, name, out in zip(tensors, names, outs, strict=True):
        if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
            rule = f"of the shape, dtype and device of `{name}`: {tuple(x.shape)}, {x.dtype}, {x.device}"
            raise InputError("out", rule, f"{tuple(out.shape)}, {out.dtype}, {out.device}")
        if out.stride()[-1] != 1:
            raise InputError("out", "contiguous in its last dimension", f"of strides {tuple(out.stride())}")
        if _is_expanded(out):
            raise InputError("out", "a tensor whose elements do not share memory", "expanded")
    if len(outs) == 2 and (outs[0] is outs[1] or (bare(*outs) and share_memory(outs[0], outs[1]))):
        raise InputError("out", "two tensors apart in memory", "two that overlap")


def no_gradient(tensors: Sequence[Tensor], names: Sequence[str], outs: Sequence[Tensor]) -> None:
    """`out=` carries no gradients."""
    if torch.is_grad_enabled():
        for x, name in zip((*tensors, *outs), (*names, *("out" for _ in outs)), strict=True):
            if x.requires_grad:
                cure = "Use `inplace=True`, or call it under `torch.no_grad()`."
                raise InputError(name, "free of gradients where `out` is given", "a tensor that requires them", cure)
