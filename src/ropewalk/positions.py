"""Where tokens stand: integer tensors made from what a batch is, without asking the device for a value.

    consecutive     S tokens from an offset, or from one offset a row
    from_mask       rows padded anywhere, above all on the left: real tokens count from 0, padding stands at 0
    from_lengths    documents packed one after another in one row: each counts from 0
    from_cu_seqlens the same, from the running sums that attention kernels take

Nothing here reads a tensor on the host, so everything runs under compilers and graph capture. Axes: B batch, S tokens
of a row, T tokens of a packed row, N documents.
"""

import torch
from torch import Tensor

from ropewalk.errors import InputError

__all__ = ["consecutive", "from_cu_seqlens", "from_lengths", "from_mask"]

_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


def consecutive(length: int, *, offset: int | Tensor = 0, device: torch.device | str | None = None) -> Tensor:
    """offset, offset + 1, ...: (S,) for one offset, (B, S) for a tensor (B,) of them (tokens already in a cache)."""
    if length < 0:
        raise InputError("length", "at least 0", length)
    if isinstance(offset, Tensor):
        _check_integers("offset", offset, 1, "(B,)")
        if device is not None and torch.device(device) != offset.device:
            raise InputError("device", f"that of `offset`, {offset.device}, or None", device)
        return offset.to(torch.int64).unsqueeze(-1) + torch.arange(length, device=offset.device)  # (B, S)
    if isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
        raise InputError("offset", "an integer, or a tensor (B,) of them", repr(offset))
    return torch.arange(offset, offset + length, device=device)


def from_mask(mask: Tensor) -> Tensor:
    """Positions (B, S) of a padded batch from its mask (B, S): true, or not 0, where a token is real."""
    if mask.dtype != torch.bool:
        _check_integers("mask", mask, 2, "(B, S)", rule="of bool or an integer type")
    elif mask.dim() != 2:
        raise InputError("mask", "(B, S)", f"of shape {tuple(mask.shape)}")
    real = (mask != 0).to(torch.int64)
    return (real.cumsum(-1) - 1) * real


def from_lengths(lengths: Tensor, *, total: int) -> Tensor:
    """Positions (T,) of N documents of `lengths` (N,), packed into `total` = T tokens.

    Tokens behind the last document count from 0 like one document more.
    """
    _check_integers("lengths", lengths, 1, "(N,)")
    ends = lengths.to(torch.int64).cumsum(0)
    return _since(torch.cat((ends.new_zeros(1), ends)), total)


def from_cu_seqlens(cu_seqlens: Tensor, *, total: int) -> Tensor:
    """Positions (T,) of packed documents from their running sums (N + 1,): 0, end of the first, end of the second, ...

    They must begin with 0: nothing looks at their values.

    `total` is T, the length of the packed tensor: it is known to the host, the last running sum is not.
    """
    _check_integers("cu_seqlens", cu_seqlens, 1, "(N + 1,)")
    if cu_seqlens.shape[0] == 0:
        raise InputError("cu_seqlens", "(N + 1,), and begin with 0", "empty")
    return _since(cu_seqlens.to(torch.int64), total)


def _since(starts: Tensor, total: int) -> Tensor:
    """Distance of each of `total` tokens from the last start at or before it."""
    tokens = torch.arange(total, device=starts.device)
    return tokens - starts[torch.searchsorted(starts, tokens, right=True) - 1]


def _check_integers(name: str, tensor: Tensor, dims: int, shape: str, rule: str = "of an integer type") -> None:
    if tensor.dtype not in _INTEGERS:
        raise InputError(name, rule, tensor.dtype)
    if tensor.dim() != dims:
        raise InputError(name, shape, f"of shape {tuple(tensor.shape)}")
