"""What a rotation refuses of queries with keys, of `inplace` and of `out`, word for word; nothing is written then."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oracle import random, refused
from ropewalk import Pairing, Rotary, Table, rotate, rotate_both

ROPE = Rotary(head_dim=8, pairing=Pairing.HALVES)


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, H, S, D) = (2, 3, 5, 8) unless told."""
    return random(*(shape or (2, 3, 5, 8)), dtype=dtype)


def table() -> Table:
    return ROPE.table(torch.arange(5))


# ---- queries and keys together -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
def test_keys_of_another_type(inplace: bool) -> None:
    k = tensor(2, 1, 5, 8, dtype=torch.bfloat16)
    assert refused(rotate_both, tensor(), k, table(), inplace=inplace) == (
        "`k` must be of torch.float32, the type of `q`, but is torch.bfloat16."
    )


@pytest.mark.parametrize("shape", [(1, 3, 5, 8), (3, 3, 5, 8), (3, 5, 8), (1, 2, 3, 5, 8)], ids=str)
def test_keys_of_another_batch(shape: tuple[int, ...]) -> None:
    assert refused(rotate_both, tensor(), tensor(*shape), table(), inplace=True) == (
        f"`k` must be of the batch of `q` (2, 3, 5, 8), but is of shape {shape}. Only the number of heads may differ."
    )


def test_keys_that_are_wrong_are_named_k() -> None:
    q = tensor()
    assert refused(rotate_both, q, tensor(2, 1, 5, 6), table(), inplace=True) == (
        "`k` must be of 8 channels in its last dimension, but is of shape (2, 1, 5, 6)."
    )
    assert refused(rotate_both, q, tensor(2, 1, 4, 8), table(), inplace=True) == (
        "`table` must be for 4 positions, the S of `k` (2, 1, 4, 8), but is for 5."
    )
    assert refused(rotate_both, q, tensor(2, 1, 8, 5).mT, table(), inplace=True) == (
        "`k` must be contiguous in its last dimension, but is of strides (40, 40, 1, 5). Call `.contiguous()` first."
    )
    assert refused(rotate_both, q, tensor(2, 1, 5, 8).long(), table()) == (
        "`k` must be of float32, bfloat16, float16 or float64, but is torch.int64."
    )
    assert refused(rotate_both, q, tensor(2, 1, 5, 8).to("meta"), table()) == (
        "`table` must be on meta, the device of `k`, but is on cpu."
    )


# ---- in place ------------------------------------------------------------------------------------------------------


def test_one_tensor_as_queries_and_keys_in_place() -> None:
    q = tensor()
    for k in (q, q.view_as(q), q[:, :1]):
        assert refused(rotate_both, q, k, table(), inplace=True) == (
            "`k` must be another tensor than `q` to be turned in place, but is the same."
        )
    assert torch.equal(*rotate_both(q, q, table()))  # out of place it may be


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_expanded_in_place(training: bool) -> None:
    expanded = tensor(1, 3, 5, 8).requires_grad_(training).mul(1).expand(2, 3, 5, 8)
    assert refused(rotate, expanded, table(), inplace=True) == (
        "`x` must be a tensor whose elements do not share memory, but is expanded. "
        "Use `inplace=False`, or clone it first."
    )
    one = tensor(1, 3, 5, 8).expand(1, 3, 5, 8)  # no element is there twice
    assert rotate(one, table(), inplace=True) is one


def test_a_leaf_that_requires_gradients_in_place() -> None:
    leaf = tensor().requires_grad_()
    sentence = (
        "`x` must be computed from something to be turned in place, but is a leaf that requires gradients. "
        "Use `inplace=False`."
    )
    for x in (leaf, leaf[:, 1:], leaf.view(6, 1, 5, 8), torch.nn.Parameter(tensor())):
        assert refused(rotate, x, table(), inplace=True) == sentence
    q, k = tensor(), tensor(2, 1, 5, 8).requires_grad_()
    assert refused(rotate_both, q, k, table(), inplace=True) == sentence.replace("`x`", "`k`")


SEVERAL: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda fused: fused.chunk(3, -1)[0],
    "split": lambda fused: fused.split(8, -1)[1],
    "unbind": lambda fused: fused.view(2, 3, 5, 3, 8).unbind(-2)[0],
    "a view of a chunk": lambda fused: fused.transpose(1, 2).chunk(3, -1)[0].transpose(1, 2),
}


@pytest.mark.parametrize("way", SEVERAL)
def test_one_of_several_views_in_place_in_training(way: str) -> None:
    x = SEVERAL[way](tensor(2, 3, 5, 24).requires_grad_() * 1)
    assert refused(rotate, x, table(), inplace=True) == (
        "`x` must be a view of its own to be turned in place, but is one of several views that one function returned "
        "(chunk, split, unbind). Slice it out instead, or use `inplace=False`."
    )
    with torch.no_grad():  # without gradients to lose it may be
        free = SEVERAL[way](tensor(2, 3, 5, 24))
        assert rotate(free, table(), inplace=True) is free


# ---- out -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (1, 3, 5, 8), (2, 3, 6, 8), (2, 5, 3, 8), (5, 8)], ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_out_of_another_shape_or_type_or_device(dtype: torch.dtype, shape: tuple[int, ...], device: str) -> None:
    out = torch.zeros(shape, dtype=dtype, device=device)
    if (dtype, shape, device) == (torch.float32, (2, 3, 5, 8), "cpu"):
        assert rotate(tensor(), table(), out=out) is out
        return
    assert refused(rotate, tensor(), table(), out=out) == (
        "`out` must be of the shape, dtype and device of `x`: (2, 3, 5, 8), torch.float32, cpu, "
        f"but is {shape}, {dtype}, {device}."
    )


def test_out_for_keys_of_the_shape_of_queries() -> None:
    q, k = tensor(), tensor(2, 1, 5, 8)
    assert refused(rotate_both, q, k, table(), out=(torch.zeros_like(q), torch.zeros_like(q))) == (
        "`out` must be of the shape, dtype and device of `k`: (2, 1, 5, 8), torch.float32, cpu, "
        "but is (2, 3, 5, 8), torch.float32, cpu."
    )


def test_out_whose_channels_do_not_lie_side_by_side() -> None:
    assert refused(rotate, tensor(), table(), out=torch.zeros(2, 3, 8, 5).mT) == (
        "`out` must be contiguous in its last dimension, but is of strides (120, 40, 1, 5)."
    )


def test_out_expanded() -> None:
    assert refused(rotate, tensor(), table(), out=torch.zeros(1, 3, 5, 8).expand(2, 3, 5, 8)) == (
        "`out` must be a tensor whose elements do not share memory, but is expanded."
    )


def test_out_and_inplace_together() -> None:
    sentence = "`out` must be None where `inplace` is true, but is given."
    assert refused(rotate, tensor(), table(), out=torch.zeros(2, 3, 5, 8), inplace=True) == sentence
    q, k = tensor(), tensor(2, 1, 5, 8)
    assert refused(ROPE, q, k, 0, out=(torch.zeros_like(q), torch.zeros_like(k)), inplace=True) == sentence


def test_out_with_gradients() -> None:
    cure = "Use `inplace=True`, or call it under `torch.no_grad()`."
    rest = f"must be free of gradients where `out` is given, but is a tensor that requires them. {cure}"
    free, trained = torch.zeros(2, 3, 5, 8), tensor().requires_grad_()
    assert refused(rotate, trained, table(), out=free) == f"`x` {rest}"
    assert refused(rotate, tensor(), table(), out=trained * 1) == f"`out` {rest}"
    assert refused(rotate_both, tensor(), trained, table(), out=(free, free.clone())) == f"`k` {rest}"
    with torch.no_grad():
        assert rotate(trained, table(), out=free) is free


# ---- memory shared by two tensors ----------------------------------------------------------------------------------


def test_views_that_overlap_cannot_both_be_turned_in_place() -> None:
    x = tensor(2, 4, 5, 8)
    assert refused(rotate_both, x[:, :2], x[:, 1:], table(), inplace=True) == (
        "`k` must be apart from `q` in memory to be turned in place, but is a view that overlaps it."
    )


def test_views_that_interleave_can_both_be_turned_in_place() -> None:
    fused = tensor(2, 5, 6, 8)  # (B, S, H + H_kv, D)
    q, k = fused[:, :, :4].transpose(1, 2), fused[:, :, 4:].transpose(1, 2)
    expected = rotate_both(q, k, table())
    for got, want in zip(rotate_both(q, k, table(), inplace=True), expected, strict=True):
        assert torch.equal(got, want)


def test_two_results_cannot_share_memory() -> None:
    out = tensor()
    overlapping = "`out` must be two tensors apart in memory, but is two that overlap."
    assert refused(rotate_both, tensor(), tensor(), table(), out=(out, out)) == overlapping


def test_queries_and_keys_need_two_results() -> None:
    assert refused(rotate_both, tensor(), tensor(), table(), out=(tensor(),)) == (
        "`out` must be 2 tensors, for `q` and `k`, but is 1."
    )
