"""Whether a tensor is just memory: then a kernel may read and write it behind torch's back.

It is not under function transforms (vmap, jvp), dispatch modes (fake tensors, flop counters, checkpointing with
selection), legacy tracing and forward-mode autograd, nor where it is of a subclass (DTensor, nested, fake) or abstract.
All of these see torch operations only.
"""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["bare", "transformed"]

_PLAIN_TYPES = frozenset({Tensor, nn.Parameter, nn.Buffer})


def transformed() -> bool:
    """True under vmap, jvp, grad of torch.func, and forward-mode autograd."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def bare(*tensors: Tensor) -> bool:
    """True where all `tensors` are ordinary and nothing watches the operations."""
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None or transformed():
        return False
    return all(type(x) in _PLAIN_TYPES and not x.is_meta for x in tensors)
