"""Transforms, tracers, watchers of operations and tensors without memory: plain torch operations, the same numbers."""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from oracle import random
from ropewalk import Pairing, Part, Rotary, phase, rotate

pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rope_of(pairing: Pairing = Pairing.HALVES, base: float = 100.0) -> Rotary:
    return Rotary(head_dim=12, pairing=pairing, base=base, rotary_dim=8, part=Part.TRAILING)


def queries_and_keys(length: int, *, batch: int = 2, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return random(batch, 3, length, 12, dtype=dtype), random(batch, 1, length, 12, dtype=dtype, seed=1)


def assert_same(got: tuple[Tensor, ...], want: tuple[Tensor, ...], tolerance: float = 1e-6) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
@pairings
def test_vmap_over_anything_equals_a_loop(pairing: Pairing, inplace: bool) -> None:
    rope, x = rope_of(pairing), random(5, 2, 3, 6, 12)

    def turn(x: Tensor) -> Tensor:
        return rotate(x.clone(), rope.table(torch.arange(6) + 9), inplace=inplace)

    want = torch.stack([turn(row) for row in x])
    for axis in (0, 1, 2):
        moved = x.movedim(0, axis)
        torch.testing.assert_close(torch.func.vmap(turn, in_dims=axis)(moved), want, rtol=1e-6, atol=1e-6)
    nested = torch.func.vmap(torch.func.vmap(turn))(x)
    torch.testing.assert_close(nested, want, rtol=1e-6, atol=1e-6)


def test_vmap_over_positions_gives_each_row_its_own() -> None:
    rope, x, at = rope_of(), random(5, 3, 6, 12), torch.randint(0, 10**6, (5, 6))
    got = torch.func.vmap(lambda x, at: rotate(x, rope.table(at)))(x, at)
    torch.testing.assert_close(got, rotate(x, rope.table(at)), rtol=1e-6, atol=1e-6)
    shared = torch.func.vmap(lambda at: rotate(x[0], rope.table(at)))(at)
    torch.testing.assert_close(shared, rotate(x[:1].expand(5, 3, 6, 12), rope.table(at)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_traced_graph_runs_at_other_positions(mode: Literal["real", "fake", "symbolic"]) -> None:
    rope, (q, k) = rope_of(), queries_and_keys(6)
    graph = make_fx(rope, tracing_mode=mode)(q, k, torch.arange(6))
    assert_same(graph(q, k, torch.arange(6) + 1000), rope(q, k, 1000))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_script_traced_by_torch_jit_runs_at_other_positions() -> None:
    rope, (q, k) = rope_of(), queries_and_keys(6)
    script = torch.jit.trace(rope, (q, k, torch.arange(6)))
    assert_same(script(q, k, torch.arange(6) + 1000), rope(q, k, 1000))


def test_fake_tensors_get_shapes_and_leave_nothing_behind() -> None:
    rope = rope_of(base=4321.0)  # seen for the first time here: what is remembered would be fake
    with FakeTensorMode():
        q, k = torch.empty(2, 3, 6, 12, dtype=torch.bfloat16), torch.empty(2, 1, 6, 12, dtype=torch.bfloat16)
        for at in (5, torch.arange(6), torch.arange(6.0), torch.arange(6.0, requires_grad=True)):
            for options in ({}, {"inplace": True}, {"out": (torch.empty_like(q), torch.empty_like(k))}):
                if options and isinstance(at, Tensor) and at.requires_grad:
                    continue
                turned = rope(q, k, at, **options)
                assert all(isinstance(x, FakeTensor) for x in turned)
                assert [x.shape for x in turned] == [q.shape, k.shape]
                assert [x.dtype for x in turned] == [torch.bfloat16, torch.bfloat16]
        torch.func.vmap(lambda x: rope(x, x, 0)[0])(q)
    assert_real(rope)


def test_transforms_and_tracers_leave_nothing_behind() -> None:
    x = random(2, 3, 6, 12)
    first: list[Callable[[Rotary], object]] = [
        lambda rope: torch.func.grad(lambda x: rope(x, x, 3)[0].sum())(x),
        lambda rope: torch.func.grad(lambda at: rope(x, x, at)[0].sum())(torch.arange(6.0)),
        lambda rope: torch.func.vmap(lambda at: rope(x, x, at)[0])(torch.arange(12).view(2, 6)),
        lambda rope: make_fx(rope, tracing_mode="fake")(x, x, torch.arange(6.0, requires_grad=True)),
        lambda rope: make_fx(torch.func.vmap(rope), tracing_mode="symbolic")(x, x, torch.arange(12).view(2, 6)),
        lambda rope: torch.compile(rope, backend="eager")(x, x, torch.arange(6.0, requires_grad=True)),
    ]
    for at, transform in enumerate(first):
        rope = rope_of(base=5000.0 + at)
        transform(rope)
        assert_real(rope)


def assert_real(rope: Rotary) -> None:
    """`rope` turns few and many tokens, at integers and at reals, as one does that nothing has touched before."""
    for length in (6, 80):
        q, k = queries_and_keys(length)
        for at in (torch.arange(length), torch.arange(length) / 2, (torch.arange(length) / 2).requires_grad_()):
            got = rope(q, k, at)
            phase.device_words.cache_clear()
            phase.native_words.cache_clear()
            assert all(torch.equal(a, b) for a, b in zip(got, rope(q, k, at), strict=True))
            assert all(type(x) is Tensor for x in got)


def test_tensors_on_the_meta_device_get_shapes() -> None:
    for length in (6, 80):
        q, k = (x.to("meta") for x in queries_and_keys(length))
        for at in (5, torch.arange(length, device="meta"), torch.arange(2 * length, device="meta").view(2, length)):
            turned = rope_of()(q, k, at)
            assert [(x.shape, x.device.type) for x in turned] == [(q.shape, "meta"), (k.shape, "meta")]
            turned = rope_of()(q, k, at, inplace=True)
            assert turned[0] is q
            assert turned[1] is k


def test_a_counter_of_operations_changes_no_numbers_and_sees_the_work() -> None:
    rope, (q, k) = rope_of(), queries_and_keys(6)
    with FlopCounterMode(display=False) as counter:
        turned_q, turned_k = rope(q, k, 9)
        scores = turned_q @ turned_k.mT
    assert_same((turned_q, turned_k), rope(q, k, 9))
    assert counter.get_total_flops() == 2 * scores.numel() * 12


def test_a_watcher_of_operations_sees_the_rotation() -> None:
    """Or selective checkpointing, which decides operation by operation, would not know of it."""
    rope, (q, k), seen = rope_of(), queries_and_keys(6), list[str]()

    class Watcher(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401  # torch's own
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watcher():  # type: ignore[no-untyped-call]  # torch's own
        turned = rope(q, k, 9)
    assert_same(turned, rope(q, k, 9))
    assert "ropewalk.table.default" in seen
    assert "aten.mul.Tensor" in seen


class Marked(Tensor):
    """A subclass that only says that it is one."""


def test_a_subclass_of_tensor_stays_one() -> None:
    rope, (q, k) = rope_of(), queries_and_keys(6)
    turned = rope(q.as_subclass(Marked), k.as_subclass(Marked), 9)
    assert all(type(x) is Marked for x in turned)
    assert_same(tuple(x.as_subclass(Tensor) for x in turned), rope(q, k, 9))


def test_the_operator_keeps_its_contract_with_torch() -> None:
    rope = rope_of()
    for at in (torch.arange(6), torch.arange(12, dtype=torch.int32).view(2, 6), torch.arange(70), torch.arange(6.0)):
        for dtype in (torch.float32, torch.float64):
            torch.library.opcheck(torch.ops.ropewalk.table.default, (at, rope._words, dtype))
