"""What a rotation costs in memory: in place nothing, out of place its output, backward the gradient."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oracle import FLOATS, random
from ropewalk import Pairing, Rotary, Table, rotate
from ropewalk.kernels import native

floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)
places = pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
with_kernel = pytest.mark.skipif(not native.available(), reason="plain torch operations need room between their steps")


def rope_of(head_dim: int) -> Rotary:
    return Rotary(head_dim=head_dim, pairing=Pairing.HALVES)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return random(*shape, dtype=dtype).requires_grad_()


def allocations(function: Callable[[], object]) -> list[int]:
    """Bytes of every allocation while `function` runs."""
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        kept = function()
    del kept
    events = profile.profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0]


@places
@pytest.mark.parametrize("length", [3, 90], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_nothing_of_the_input_is_saved_for_backward(inplace: bool, length: int) -> None:
    q, k = leaf(2, 4, length, 6) * 1, leaf(2, 2, length, 6) * 1
    saved: list[torch.Size] = []

    def note(x: Tensor) -> Tensor:
        saved.append(x.shape)
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        turned, _ = rope_of(6)(q, k, 0, inplace=inplace)
        assert saved == []
        turned.square()
    assert saved == [(2, 4, length, 6)]  # what is saved would have been seen


@floats
@with_kernel
def test_backward_allocates_the_gradient_and_nothing_else(dtype: torch.dtype) -> None:
    rope = rope_of(64)
    for shape in ((2, 4, 128, 64), (16, 4, 1, 64)):
        size = torch.Size(shape).numel() * dtype.itemsize
        for inplace in (False, True):
            x = leaf(*shape, dtype=dtype)
            y = rotate(x.clone(), rope.table(torch.arange(shape[-2])), inplace=inplace)
            for dy in (random(*shape, dtype=dtype, seed=1), torch.ones((), dtype=dtype).expand(shape)):
                got = allocations(lambda: torch.autograd.grad(y, x, dy, retain_graph=True))  # noqa: B023  # called at once
                assert got == [size], (shape, inplace)


@floats
@with_kernel
def test_in_place_allocates_nothing_and_out_of_place_the_output(dtype: torch.dtype) -> None:
    for shape in ((2, 4, 128, 64), (16, 4, 1, 64)):
        for gradients in (False, True):
            x, out = leaf(*shape, dtype=dtype) * 1, torch.empty(shape, dtype=dtype)
            table = rope_of(64).table(torch.arange(shape[-2]), dtype=torch.float64)
            if dtype != torch.float64:
                table = Table(table.cos.float(), table.sin.float(), pairing=Pairing.HALVES, head_dim=64)
            with torch.set_grad_enabled(gradients):
                assert allocations(lambda: rotate(x, table)) == [out.nbytes]  # noqa: B023  # called at once
                assert allocations(lambda: rotate(x, table, inplace=True)) == []  # noqa: B023  # called at once
            assert allocations(lambda: rotate(x.detach(), table, out=out)) == []  # noqa: B023  # called at once
