"""Gradients: of every option, by every way torch has of asking for them, and at no cost in memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from oracle import FLOATS, bits, exact_angles, random, same_bits
from ropewalk import Pairing, Part, Rotary, Table, rotate, rotate_both
from ropewalk.rotation import definition

pytestmark = [
    pytest.mark.usefixtures("body"),
    # torch's own forward-mode formulas are scripted at their first use
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]
pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)

AT = torch.tensor([3, 40])
ROWS = torch.tensor([[3, 40], [1000, 2]])
ROPES = {
    "whole": {},
    "leading": {"rotary_dim": 4, "part": Part.LEADING},
    "trailing": {"rotary_dim": 4, "part": Part.TRAILING},
}
parts = pytest.mark.parametrize("part", ROPES)
directions = pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
places = pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])


def rope_of(pairing: Pairing = Pairing.HALVES, part: str = "whole", head_dim: int = 6) -> Rotary:
    options: dict[str, Any] = ROPES[part]
    return Rotary(head_dim=head_dim, pairing=pairing, base=10.0, **options)


def leaf(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return random(*shape, dtype=dtype, seed=seed).requires_grad_()


# ---- against the definition ----------------------------------------------------------------------------------------


@floats
@pairings
@directions
@pytest.mark.parametrize("length", [3, 90], ids=["few", "many"])
def test_the_gradient_is_the_factor_times_the_turn_back(
    dtype: torch.dtype, pairing: Pairing, inverse: bool, length: int
) -> None:
    at, factor = torch.arange(length) + 2000, 2.0
    angles = exact_angles(at, 24, 100.0)
    table = Table(*(torch.from_numpy(f(angles)) for f in (np.cos, np.sin)), pairing=pairing, head_dim=32, factor=factor)
    x, dy = leaf(2, 3, length, 32, dtype=dtype), random(2, 3, length, 32, dtype=dtype, seed=1)
    rotate(x, table, inverse=inverse).backward(dy)
    multiplier = 1 / factor if inverse else factor
    want = definition.rotate(dy.double().numpy(), angles if inverse else -angles, pairing=pairing, factor=multiplier)
    assert x.grad is not None
    assert x.grad.dtype == dtype
    rounding = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[dtype]
    torch.testing.assert_close(x.grad.double(), torch.from_numpy(want), rtol=rounding, atol=2e-6)


@floats
@pairings
@parts
@directions
@pytest.mark.parametrize("length", [3, 90], ids=["few", "many"])
def test_turning_in_place_in_training_gives_the_same_gradients_bit_for_bit(
    dtype: torch.dtype, pairing: Pairing, part: str, inverse: bool, length: int
) -> None:
    rope = rope_of(pairing, part, head_dim=36)
    weights = random(2, 5, length, 36, dtype=dtype, seed=2)

    def gradients(inplace: bool) -> list[Tensor]:
        q, k = leaf(2, 5, length, 36, dtype=dtype), leaf(2, 2, length, 36, dtype=dtype, seed=1)
        table = rope.table(torch.arange(length) + 7)
        turned_q, turned_k = rotate_both(q * 2, k * 2, table, inplace=inplace, inverse=inverse)
        loss = (rotate(turned_q * 1, table, inplace=inplace) * weights).sum() + turned_k.square().sum()
        return list(torch.autograd.grad(loss, (q, k)))

    assert same_bits(bits(*gradients(inplace=True)), bits(*gradients(inplace=False)))


@pytest.mark.parametrize("length", [3, 90], ids=["few", "many"])
def test_slices_of_a_fused_projection_are_turned_in_place_in_training(length: int) -> None:
    rope, weights = rope_of(head_dim=8), random(16, 16 + 8 + 8)

    def gradients(inplace: bool) -> list[Tensor]:
        x, w = leaf(2, length, 16, dtype=torch.float32), weights.clone().requires_grad_()
        qkv = x @ w
        q = qkv[..., :16].view(2, length, 2, 8).transpose(1, 2)
        k = qkv[..., 16:24].view(2, length, 1, 8).transpose(1, 2)
        v = qkv[..., 24:].view(2, length, 1, 8).transpose(1, 2)
        q, k = rope(q, k, 5, inplace=inplace)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, w))]

    for turned, want in zip(gradients(inplace=True), gradients(inplace=False), strict=True):
        torch.testing.assert_close(turned, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pairings
def test_gradients_of_real_positions_follow_the_phase(dtype: torch.dtype, pairing: Pairing) -> None:
    """dL/dm = sum over heads and pairs of theta_j <dy, i y>."""
    rope, at = rope_of(pairing), torch.tensor([0.25, 33.5, 100.75], requires_grad=True)
    x, dy = random(2, 4, 3, 6, dtype=dtype), random(2, 4, 3, 6, dtype=dtype, seed=1)
    y = rotate(x, rope.table(at))
    y.backward(dy)
    a, b = definition.pair_channels(6, 3, pairing, Part.LEADING)
    phase = dy.double()[..., b] * y.detach().double()[..., a] - dy.double()[..., a] * y.detach().double()[..., b]
    want = (phase * rope.inverse_frequencies()).sum((0, 1, 3)).float()
    torch.testing.assert_close(at.grad, want, rtol=0.03 if dtype == torch.bfloat16 else 1e-5, atol=0.03)


@pairings
def test_turning_in_place_gives_the_same_gradients_of_real_positions(pairing: Pairing) -> None:
    def gradient(inplace: bool) -> Tensor:
        at = torch.tensor([0.25, 33.5, 100.75], requires_grad=True)
        y = rotate(random(2, 4, 3, 6), rope_of(pairing).table(at), inplace=inplace)
        return torch.autograd.grad(y.pow(3).sum(), at)[0]

    assert torch.equal(gradient(inplace=True), gradient(inplace=False))


# ---- gradients that come in odd ways -------------------------------------------------------------------------------

UPSTREAM: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded everywhere": lambda y: y.sum(),
    "expanded heads": lambda y: (y.sum(1) * random(2, 2, 6, dtype=torch.float64)).sum(),
    "expanded channels": lambda y: (y.sum(-1) * random(2, 4, 2, dtype=torch.float64)).sum(),
    "transposed": lambda y: (y.transpose(1, 2) * random(2, 2, 4, 6, dtype=torch.float64)).sum(),
    "channels not contiguous": lambda y: (y.transpose(-1, -3) * random(2, 6, 2, 4, dtype=torch.float64)).sum(),
    "of a slice": lambda y: (y[:, 1:3, :, ::2] * random(2, 2, 2, 3, dtype=torch.float64)).sum(),
    "conjugated": lambda y: torch.view_as_complex(y.unflatten(-1, (3, 2))).conj().imag.pow(3).sum(),
    "zero": lambda y: (y * 0).sum(),
}


@pytest.mark.parametrize("upstream", UPSTREAM)
@pairings
@pytest.mark.parametrize("positions", [AT, ROWS], ids=["shared", "per row"])
def test_any_upstream_gradient_is_turned_back(upstream: str, pairing: Pairing, positions: Tensor) -> None:
    table, x = rope_of(pairing).table(positions), leaf(2, 4, 2, 6)
    (got,) = torch.autograd.grad(UPSTREAM[upstream](rotate(x, table)), x)
    y = rotate(x.detach(), table).requires_grad_()
    (dy,) = torch.autograd.grad(UPSTREAM[upstream](y), y)
    torch.testing.assert_close(got, rotate(dy.contiguous(), table, inverse=True), rtol=1e-14, atol=1e-14)


def test_backward_leaves_the_upstream_gradient_as_it_was() -> None:
    table, x = rope_of().table(AT), leaf(2, 4, 2, 6)
    y = rotate(x, table)
    for dy in (random(2, 4, 2, 6, dtype=torch.float64), random(2, 6, 2, 4, dtype=torch.float64).transpose(1, 3)):
        before = dy.clone()
        torch.autograd.grad(y, x, dy, retain_graph=True)
        assert torch.equal(dy, before)


def test_a_retained_graph_gives_the_same_gradients_again_and_adds_them_up() -> None:
    x = leaf(2, 4, 2, 6)
    y = rotate(x * 1, rope_of().table(AT), inplace=True)
    loss = y.pow(3).sum()
    loss.backward(retain_graph=True)
    assert x.grad is not None
    once = x.grad.clone()
    loss.backward()
    torch.testing.assert_close(x.grad, 2 * once, rtol=1e-15, atol=0)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_one_table_serves_many_layers_and_many_backward_passes() -> None:
    """A cached table that carries a graph has failed with "backward through the graph a second time"."""
    table, x = rope_of().table(AT), leaf(2, 4, 2, 6)
    (want,) = torch.autograd.grad(rotate(x, table).pow(3).sum(), x)
    for _ in range(2):
        hidden = rotate(rotate(x, table) * 1, table, inplace=True, inverse=True)
        (got,) = torch.autograd.grad(rotate(hidden, table).pow(3).sum(), x)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_gradients_of_gradients_of_gradients() -> None:
    x, table = leaf(1, 2, 2, 6), rope_of().table(AT)

    def third(turn: Callable[[Tensor], Tensor]) -> Tensor:
        gradient = turn(x).pow(4).sum()
        for _ in range(3):
            (gradient,) = torch.autograd.grad(gradient.sum(), x, create_graph=True)
        return gradient

    def by_matrix(x: Tensor) -> Tensor:
        (columns,) = torch.autograd.functional.jacobian(lambda x: (rotate(x, table),), x.detach())
        return torch.einsum("bhsdBHSD,BHSD->bhsd", columns, x)

    torch.testing.assert_close(third(lambda x: rotate(x, table)), third(by_matrix), rtol=1e-11, atol=1e-11)


def test_a_batch_of_gradients_in_one_backward_equals_one_by_one() -> None:
    for part in ROPES:
        for pairing in Pairing:
            x = leaf(2, 4, 2, 6, dtype=torch.float32)
            y, dys = rotate(x, rope_of(pairing, part).table(ROWS)), random(5, 2, 4, 2, 6, seed=1)
            (together,) = torch.autograd.grad(y, x, dys, is_grads_batched=True, retain_graph=True)
            single = torch.stack([torch.autograd.grad(y, x, dy, retain_graph=True)[0] for dy in dys])
            torch.testing.assert_close(together, single, rtol=1e-6, atol=1e-6)
            by_vmap = torch.func.vmap(lambda dy: torch.autograd.grad(y, x, dy, retain_graph=True)[0])(dys)  # noqa: B023  # called at once
            torch.testing.assert_close(by_vmap, single, rtol=1e-6, atol=1e-6)


def test_the_jacobian_is_the_same_forwards_backwards_and_by_the_transform() -> None:
    table, x = rope_of(part="leading").table(AT), random(1, 1, 2, 6, dtype=torch.float64)

    def turn(x: Tensor) -> Tensor:
        return rotate(x, table)

    want = torch.autograd.functional.jacobian(turn, x)
    columns = torch.stack([turn(unit) for unit in torch.eye(12, dtype=torch.float64).view(12, 1, 1, 2, 6)], -1)
    torch.testing.assert_close(want.reshape(1, 1, 2, 6, 12), columns, rtol=1e-14, atol=1e-14)
    for other in (
        torch.func.jacrev(turn)(x),
        torch.func.jacfwd(turn)(x),
        torch.autograd.functional.jacobian(turn, x, vectorize=True),
        torch.autograd.functional.jacobian(turn, x, vectorize=True, strategy="forward-mode"),
    ):
        torch.testing.assert_close(other, want, rtol=1e-14, atol=1e-14)


def test_transforms_of_functions_give_the_gradients_of_autograd() -> None:
    rope, x, direction = rope_of(), random(2, 2, 3, 6), random(2, 2, 3, 6, seed=1)

    def loss(x: Tensor) -> Tensor:
        turned: tuple[Tensor, Tensor] = rope(x, x[:, :1], 5)
        return turned[0].pow(3).sum() + turned[1].pow(2).sum() / 2

    own = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(own), own)
    torch.testing.assert_close(torch.func.grad(loss)(x), want, rtol=1e-5, atol=1e-5)
    by_row = torch.func.vmap(torch.func.grad(loss))(x[:, None])[:, 0]
    torch.testing.assert_close(by_row, want, rtol=1e-5, atol=1e-5)
    value, slope = torch.func.jvp(loss, (x,), (direction,))  # type: ignore[misc]  # three only with has_aux
    torch.testing.assert_close(value, loss(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(slope, (want * direction).sum(), rtol=1e-4, atol=1e-4)
    curvature = torch.autograd.functional.hessian(loss, x)
    torch.testing.assert_close(torch.func.hessian(loss)(x), curvature, rtol=1e-4, atol=1e-4)


@places
def test_forward_mode_turns_the_tangent(inplace: bool) -> None:
    table, x, direction = rope_of().table(AT), random(2, 2, 2, 6), random(2, 2, 2, 6, seed=1)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.clone(), direction.clone())
        primal, tangent = torch.autograd.forward_ad.unpack_dual(rotate(dual, table, inplace=inplace))
    torch.testing.assert_close(primal, rotate(x, table), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(tangent, rotate(direction, table), rtol=1e-6, atol=1e-6)


@places
@pytest.mark.parametrize("length", [3, 90], ids=["few", "many"])
def test_checkpointing_recomputes_the_same_gradients(inplace: bool, length: int) -> None:
    rope, weights = rope_of(head_dim=8), random(8, 16)

    def block(x: Tensor, w: Tensor) -> Tensor:
        qk = x @ w
        turned: tuple[Tensor, Tensor] = rope(qk[:, None, :, :8], qk[:, None, :, 8:], 5, inplace=inplace)
        return turned[0] @ turned[1].mT

    def gradients(recompute: bool) -> list[Tensor]:
        x, w = leaf(2, length, 8, dtype=torch.float32), weights.clone().requires_grad_()
        y: Tensor = checkpoint(block, x, w, use_reentrant=False) if recompute else block(x, w)
        return list(torch.autograd.grad(y.square().sum(), (x, w)))

    assert same_bits(bits(*gradients(recompute=True)), bits(*gradients(recompute=False)))


def test_hooks_see_the_gradient_on_both_sides_of_the_turn() -> None:
    x, table, seen = leaf(1, 2, 2, 6), rope_of().table(AT), dict[str, Tensor]()
    y = rotate(x, table)
    x.register_hook(lambda gradient: seen.__setitem__("before", gradient))
    y.register_hook(lambda gradient: seen.__setitem__("after", gradient))
    y.pow(2).sum().backward()
    torch.testing.assert_close(rotate(seen["before"], table), seen["after"], rtol=1e-14, atol=1e-14)


def test_positions_may_be_counted_on_between_forward_and_backward() -> None:
    for length in (3, 90):
        for dtype in (torch.float32, torch.float64):
            at, x = torch.arange(length), leaf(1, 2, length, 6, dtype=dtype)
            y, _ = rope_of()(x, x.detach(), at)
            (want,) = torch.autograd.grad(y.pow(3).sum(), x, retain_graph=True)
            at += 1
            (got,) = torch.autograd.grad(y.pow(3).sum(), x)
            assert torch.equal(got, want)


def test_only_what_requires_gradients_gets_them() -> None:
    q, k = leaf(1, 2, 2, 6), random(1, 1, 2, 6, dtype=torch.float64)
    turned_q, turned_k = rope_of()(q, k, 0)
    assert turned_q.requires_grad
    assert not turned_k.requires_grad
    with torch.no_grad():
        assert not rope_of()(q, k, 0)[0].requires_grad


def test_anomaly_detection_finds_nothing() -> None:
    x = leaf(1, 2, 2, 6)
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        rotate(x * 1, rope_of().table(AT), inplace=True).sum().backward()
    assert x.grad is not None
