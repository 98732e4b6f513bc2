"""From one pairing to the other: a permutation of channels, which weights can take on once and for all.

    halves channel i      <-> adjacent channel 2i
    halves channel P + i  <-> adjacent channel 2i + 1

Rotating with one pairing and permuting equals permuting and rotating with the other. Scores q . k do not see a
permutation that both take, so a checkpoint changes its pairing by permuting the output channels of W_q and W_k, and
with them whatever acts on these channels one by one: biases, gains of a norm of queries and keys. W_v and W_o stay
(unless values are turned too). Channels outside the turned part stay where they are.
"""

import torch
from torch import Tensor

from ropewalk.errors import InputError
from ropewalk.pairing import Pairing, Part

__all__ = ["channel_order", "convert_projection"]


def channel_order(
    head_dim: int, source: Pairing, target: Pairing, *, rotary_dim: int | None = None, part: Part | None = None
) -> Tensor:
    """Index (D,) with target_channels = source_channels[index] for one head."""
    for name, pairing in (("source", source), ("target", target)):
        if not isinstance(pairing, Pairing):
            raise InputError(name, "Pairing.ADJACENT or Pairing.HALVES", repr(pairing))
    turned = head_dim if rotary_dim is None else rotary_dim
    if turned <= 0 or turned % 2 or turned > head_dim:
        raise InputError("rotary_dim", f"even, positive and at most `head_dim` = {head_dim}", turned)
    if turned < head_dim and part is None:
        raise InputError("part", "Part.LEADING or Part.TRAILING where `rotary_dim` is below `head_dim`", None)
    order = torch.arange(head_dim)
    if source is target:
        return order
    first = head_dim - turned if part is Part.TRAILING else 0
    pairs = torch.arange(turned)
    if source is Pairing.ADJACENT:
        middle = pairs.view(-1, 2).T.reshape(-1)  # all first channels, then all second ones
    else:
        middle = pairs.view(2, -1).T.reshape(-1)  # first and second channel of each pair in turn
    order[first : first + turned] = first + middle
    return order


def convert_projection(
    weight: Tensor,
    *,
    heads: int,
    head_dim: int,
    source: Pairing,
    target: Pairing,
    rotary_dim: int | None = None,
    part: Part | None = None,
) -> Tensor:
    """W_q or W_k (H·D, width), its bias (H·D,), or a norm's gain (D,) or (H·D,) for the other pairing.

    `heads` is that of the tensor: H for queries, the smaller number for grouped keys, 1 for a gain shared by all heads.
    """
    if weight.dim() not in (1, 2) or weight.shape[0] != heads * head_dim:
        rule = f"of {heads} · {head_dim} = {heads * head_dim} rows"
        raise InputError("weight", rule, f"of shape {tuple(weight.shape)}")
    order = channel_order(head_dim, source, target, rotary_dim=rotary_dim, part=part).to(weight.device)
    by_head: Tensor = weight.unflatten(0, (heads, head_dim))
    return by_head.index_select(1, order).flatten(0, 1)
