"""Compiled and exported: whole graphs, few of them, and the numbers of the eager body."""

import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from oracle import FLOATS, random
from ropewalk import InputError, Pairing, Part, Rotary, Table, positions, rotate, rotate_both

pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)
backends = pytest.mark.parametrize("backend", ["eager", "aot_eager"])

LENGTHS = range(5, 105, 5)
"""20 of them."""


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


# ---- torch.compile -------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[Callable[..., Any], Callable[[Rotary, int], Any]]] = {
    "positions": (lambda rope, q, k, at: rope(q, k, at), lambda _, n: torch.arange(n) + 7),
    "positions per row": (lambda rope, q, k, at: rope(q, k, at), lambda _, n: torch.arange(2 * n).view(2, n)),
    "real positions": (lambda rope, q, k, at: rope(q, k, at), lambda _, n: torch.arange(n) / 4),
    "an int": (lambda rope, q, k, at: rope(q, k, at), lambda _, n: 3 * n),
    "a table made inside": (
        lambda rope, q, k, at: rotate_both(q, k, rope.table(positions.consecutive(q.shape[-2], offset=at))),
        lambda _, n: n,
    ),
    "inverse": (lambda rope, q, k, at: rope(q, k, at, inverse=True), lambda _, n: torch.arange(n) + 7),
    "in place": (lambda rope, q, k, at: rope(q, k, at, inplace=True), lambda _, n: torch.arange(n) + 7),
}


@pytest.mark.parametrize(("backend", "pairing"), [("eager", Pairing.ADJACENT), ("aot_eager", Pairing.HALVES)])
@pytest.mark.parametrize("way", WAYS)
def test_twenty_lengths_take_two_compilations_at_most(way: str, pairing: Pairing, backend: str) -> None:
    rope, (function, argument) = rope_of(pairing), WAYS[way]
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(lambda q, k, at: function(rope, q, k, at), backend=counter, fullgraph=True)
    for length in LENGTHS:
        q, k = queries_and_keys(length)
        at = argument(rope, length)
        assert_same(compiled(q.clone(), k.clone(), at), function(rope, q, k, at))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("lengths", [range(3, 63, 3), range(70, 170, 5), LENGTHS], ids=["few", "many", "both"])
@backends
def test_twenty_tables_as_arguments_take_two_compilations_at_most(lengths: range, backend: str) -> None:
    rope, counter = rope_of(), CompileCounterWithBackend(backend)
    compiled = torch.compile(rotate_both, backend=counter, fullgraph=True)
    for length in lengths:
        (q, k), table = queries_and_keys(length), rope.table(torch.arange(length))
        assert_same(compiled(q, k, table), rotate_both(q, k, table))
    assert counter.frame_count <= 2


@pairings
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_compiled_numbers_are_the_eager_ones(pairing: Pairing, dtype: torch.dtype) -> None:
    rope, (q, k) = rope_of(pairing), queries_and_keys(70, dtype=dtype)
    compiled = torch.compile(rope, backend="aot_eager", fullgraph=True)
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    assert_same(compiled(q, k, 1_000_000), rope(q, k, 1_000_000), tolerance)
    assert compiled(q, k, 1)[0].dtype == dtype


@pytest.mark.parametrize("inplace", [False, True], ids=["out of place", "in place"])
def test_training_compiled_gives_the_eager_gradients_in_two_compilations(inplace: bool) -> None:
    rope, counter = rope_of(), CompileCounterWithBackend("aot_eager")

    def loss(q: Tensor, k: Tensor, at: Tensor) -> Tensor:
        turned_q, turned_k = rope(q * 2, k * 2, at, inplace=inplace)
        result: Tensor = (turned_q * turned_k).pow(2).sum()
        return result

    compiled = torch.compile(loss, backend=counter, fullgraph=True)
    for length in LENGTHS:
        q, k = (x.requires_grad_() for x in queries_and_keys(length))
        at = torch.arange(length) + 7
        got = torch.autograd.grad(compiled(q, k, at), (q, k))
        assert_same(got, torch.autograd.grad(loss(q, k, at), (q, k)), 1e-4)
    assert counter.frame_count <= 2


def test_real_positions_get_their_gradients_compiled() -> None:
    rope, (q, k) = rope_of(), queries_and_keys(5)

    def loss(at: Tensor) -> Tensor:
        turned_q, turned_k = rope(q, k, at)
        result: Tensor = (turned_q * turned_k).pow(2).sum()
        return result

    at = torch.tensor([0.5, 1.0, -7.25, 300.0, 4.0], dtype=torch.float64, requires_grad=True)
    (want,) = torch.autograd.grad(loss(at), at)
    (got,) = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(at), at)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@backends
def test_compiled_in_place_gives_the_result_back(backend: str) -> None:
    rope, (q, k) = rope_of(), queries_and_keys(6)
    want = rope(q, k, 4)

    @torch.compile(backend=backend, fullgraph=True)
    def turn(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rope(q * 1, k * 1, 4, inplace=True)  # type: ignore[no-any-return]  # a module call has no type

    assert_same(turn(q, k), want)


@backends
def test_compiled_out_writes_into_a_slice_of_the_cache_and_nowhere_else(backend: str) -> None:
    rope, (q, _) = rope_of(), queries_and_keys(6)
    cache = random(2, 3, 20, 12, seed=5)
    before = cache.clone()

    @torch.compile(backend=backend, fullgraph=True)
    def write(x: Tensor, at: Tensor, cache: Tensor) -> Tensor:
        return rotate(x, rope.table(at), out=cache[:, :, 3:9])

    want = rotate(q, rope.table(torch.arange(6) + 3))
    assert_same((write(q, torch.arange(6) + 3, cache), cache[:, :, 3:9]), (want, want))
    assert torch.equal(cache[:, :, :3], before[:, :, :3])
    assert torch.equal(cache[:, :, 9:], before[:, :, 9:])


@backends
def test_compiled_positions_beyond_the_limit_are_refused(backend: str) -> None:
    rope, (q, k) = rope_of(), queries_and_keys(6)
    compiled = torch.compile(rope, backend=backend, fullgraph=True)
    compiled(q, k, torch.arange(6) + 2**31 - 6)
    with pytest.raises(InputError) as caught:
        compiled(q, k, torch.arange(6) + 2**31 - 5)
    assert str(caught.value) == "`positions` must be within ±2147483647, but is 2147483648."


def test_a_model_compiled_after_a_cast_turns_like_before() -> None:
    rope, (q, k) = rope_of(), queries_and_keys(6)
    want = rope(q, k, 500)
    assert_same(
        torch.compile(nn.ModuleDict({"rope": rope}).to(torch.bfloat16)["rope"], backend="eager")(q, k, 500), want
    )


def test_a_table_of_ones_own_is_turned_by_compiled() -> None:
    angles, (q, k) = random(6, 4), queries_and_keys(6)
    table = Table(angles.cos(), angles.sin(), pairing=Pairing.ADJACENT, head_dim=12, factor=2.0)
    compiled = torch.compile(lambda q, k: rotate_both(q, k, table), backend="aot_eager", fullgraph=True)
    assert_same(compiled(q, k), rotate_both(q, k, table))


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="Inductor needs a C++ compiler")
@pairings
def test_inductor_makes_code_that_gives_the_same_numbers(pairing: Pairing) -> None:
    rope, counter = rope_of(pairing), CompileCounterWithBackend("inductor")
    compiled = torch.compile(rope, backend=counter, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's own
        for length in (6, 30, 70, 100):
            for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2.0**-7)):
                q, k = queries_and_keys(length, dtype=dtype)
                assert_same(compiled(q, k, torch.arange(length) + 999_000), rope(q, k, 999_000), tolerance)
    assert counter.frame_count <= 4  # two for each type


# ---- torch.export --------------------------------------------------------------------------------------------------


class WithPositions(nn.Module):
    def __init__(self, rope: Rotary) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        turned: tuple[Tensor, Tensor] = self.rope(q, k, at)
        return turned


class WithStart(WithPositions):
    def forward(self, q: Tensor, k: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002  # the same inputs
        turned: tuple[Tensor, Tensor] = self.rope(q, k, 7)
        return turned


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "non-strict"])
@pytest.mark.parametrize("model", [WithPositions, WithStart])
@pairings
def test_an_exported_program_runs_at_other_lengths_and_batches(
    strict: bool, model: type[WithPositions], pairing: Pairing
) -> None:
    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", min=2, max=4096)
    own = model(rope_of(pairing))
    program = torch.export.export(
        own,
        (*queries_and_keys(6), torch.arange(6)),
        dynamic_shapes=({0: rows, 2: length}, {0: rows, 2: length}, {0: length}),
        strict=strict,
    )
    assert program.state_dict == {}
    assert list(program.constants) == []  # frequencies travel in the operator, not as a tensor that could be cast
    for size in (2, 6, 64, 65, 300):
        inputs = *queries_and_keys(size, batch=size % 5 + 1), torch.arange(size) + 100_000
        assert_same(program.module()(*inputs), own(*inputs))
