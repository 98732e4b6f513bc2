"""`inplace`, `out`, `inverse`, and the factor of a table: the same numbers by other ways."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oracle import FLOATS, assert_turned, bits, random, same_bits
from ropewalk import Pairing, Part, Rotary, Table, rotate, rotate_both

pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)
lengths = pytest.mark.parametrize("length", [1, 7, 90], ids=["one token", "few", "many"])

D = 40


def rope_of(pairing: Pairing = Pairing.HALVES, part: Part | None = None) -> Rotary:
    return Rotary(head_dim=D, pairing=pairing, rotary_dim=D if part is None else 24, part=part)


def table_with_factor(factor: float, length: int, pairing: Pairing, part: Part = Part.LEADING) -> Table:
    """For 12 pairs, in float64 so that it serves every type."""
    angles = torch.outer(torch.arange(length).double() + 3, 100.0 ** (-torch.arange(12).double() / 12))
    return Table(angles.cos(), angles.sin(), pairing=pairing, head_dim=D, part=part, factor=factor)


# ---- in place ------------------------------------------------------------------------------------------------------


@floats
@pairings
@lengths
@pytest.mark.parametrize("part", [None, *Part], ids=["whole", "leading", "trailing"])
@pytest.mark.usefixtures("body")
def test_in_place_is_out_of_place_in_the_same_memory(
    dtype: torch.dtype, pairing: Pairing, length: int, part: Part | None
) -> None:
    table = rope_of(pairing, part).table(torch.arange(length) + 1000)
    q, k = random(2, 3, length, D, dtype=dtype), random(2, 2, length, D, dtype=dtype, seed=1)
    want = rotate_both(q, k, table)
    one = q.clone()
    assert rotate(one, table, inplace=True) is one
    assert torch.equal(one, want[0])
    turned_q, turned_k = rotate_both(q, k, table, inplace=True)
    assert turned_q is q
    assert turned_k is k
    assert torch.equal(q, want[0])
    assert torch.equal(k, want[1])


@lengths
@pytest.mark.usefixtures("body")
def test_in_place_in_a_fused_projection_leaves_everything_else_alone(length: int) -> None:
    qkv = random(2, length, 4 + 2 + 2, D, dtype=torch.bfloat16)
    before = qkv.clone()
    q, k = qkv[:, :, :4].transpose(1, 2), qkv[:, :, 4:6].transpose(1, 2)
    table = rope_of(Pairing.ADJACENT, Part.TRAILING).table(torch.arange(length) + 9)
    want = rotate_both(q, k, table)
    rotate_both(q, k, table, inplace=True)
    assert torch.equal(qkv[:, :, :4], want[0].transpose(1, 2))
    assert torch.equal(qkv[:, :, 4:6], want[1].transpose(1, 2))
    assert torch.equal(qkv[:, :, 6:], before[:, :, 6:])
    assert not torch.equal(qkv[:, :, :6], before[:, :, :6])


@pytest.mark.usefixtures("body")
def test_in_place_at_leading_axes_that_no_view_can_flatten() -> None:
    x = random(2, 3, 2, 5, D).transpose(0, 1)
    table = rope_of().table(torch.arange(5) + 4)
    want = rotate(x, table)
    assert rotate(x, table, inplace=True) is x
    assert torch.equal(x, want)


@pytest.mark.usefixtures("body")
def test_a_parameter_may_be_turned_in_place_where_no_gradients_are_recorded() -> None:
    weight = torch.nn.Parameter(random(1, 2, 5, D))
    table = rope_of().table(torch.arange(5))
    want = rotate(weight.detach(), table)
    with torch.no_grad():
        assert rotate(weight, table, inplace=True) is weight
    assert torch.equal(weight, want)


@pytest.mark.usefixtures("body")
def test_inference_mode_turns_alike_and_its_tensors_turn_alike_outside_it() -> None:
    rope, x = rope_of(), random(1, 2, 5, D)
    want, back = (rotate(x, rope.table(torch.arange(5)), inverse=inverse) for inverse in (False, True))
    with torch.inference_mode():
        own = x.clone()
        assert torch.equal(rotate(own, rope.table(torch.arange(5))), want)
        assert torch.equal(rotate(own, rope.table(torch.arange(5)), out=torch.empty_like(own)), want)
        assert torch.equal(rotate(own.clone(), rope.table(torch.arange(5)), inplace=True), want)
        table = rope.table(torch.arange(5))
    assert own.is_inference()
    assert torch.equal(rotate(own, rope.table(torch.arange(5)), inverse=True), back)
    trained = x.clone().requires_grad_()
    rotate(trained, table).sum().backward()  # a table made there serves training here


# ---- out -----------------------------------------------------------------------------------------------------------


@floats
@pairings
@lengths
@pytest.mark.parametrize("part", [None, *Part], ids=["whole", "leading", "trailing"])
@pytest.mark.usefixtures("body")
def test_out_receives_the_result_in_any_layout(
    dtype: torch.dtype, pairing: Pairing, length: int, part: Part | None
) -> None:
    table = rope_of(pairing, part).table(torch.arange(length) + 1000)
    q, k = random(2, 3, length, D, dtype=dtype), random(2, 2, length, D, dtype=dtype, seed=1)
    before, want = bits(q, k), rotate_both(q, k, table)
    for out in (
        (torch.full_like(q, torch.nan), torch.full_like(k, torch.nan)),
        (
            q.new_full((2, length, 3, D), torch.nan).transpose(1, 2),
            k.new_full((length, 2, 2, D), 7).permute(1, 2, 0, 3),
        ),
    ):
        got = rotate_both(q, k, table, out=out)
        assert got[0] is out[0]
        assert got[1] is out[1]
        assert torch.equal(out[0], want[0])
        assert torch.equal(out[1], want[1])
        assert rotate(q, table, out=out[0].fill_(torch.nan)) is out[0]
        assert torch.equal(out[0], want[0])
    assert same_bits(bits(q, k), before)


@lengths
@pytest.mark.parametrize("heads_last", [False, True], ids=["(B, H, S, D)", "(B, S, H, D)"])
@pytest.mark.usefixtures("body")
def test_out_in_a_key_cache_writes_its_slots_and_no_others(length: int, heads_last: bool) -> None:
    shape = (2, length + 5, 3, D) if heads_last else (2, 3, length + 5, D)
    memory = random(*shape, seed=9)
    cache = memory.transpose(1, 2) if heads_last else memory
    before, k = cache.clone(), random(2, 3, length, D)
    table = rope_of(Pairing.ADJACENT, Part.LEADING).table(torch.arange(length) + 2)
    slots = cache[:, :, 2 : 2 + length]
    assert rotate(k, table, out=slots) is slots
    assert torch.equal(slots, rotate(k, table))
    assert torch.equal(cache[:, :, :2], before[:, :, :2])
    assert torch.equal(cache[:, :, 2 + length :], before[:, :, 2 + length :])


OVERLAPS: list[Callable[[Tensor], tuple[Tensor, Tensor]]] = [
    lambda memory: (memory[:, :, :-2], memory[:, :, :-2]),
    lambda memory: (memory[:, :, :-2], memory[:, :, 1:-1]),
    lambda memory: (memory[:, :, 2:], memory[:, :, :-2]),
    lambda memory: (memory[:, :-1, 2:], memory[:, 1:, :-2]),
    lambda memory: (memory[:, :2, 2:], memory[:, 2:4, 2:]),
]


@pytest.mark.parametrize("overlap", OVERLAPS, ids=["x itself", "ahead", "behind", "next head", "side by side"])
@pytest.mark.parametrize("length", [7, 90], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_out_may_share_memory_with_the_input(overlap: Callable[[Tensor], tuple[Tensor, Tensor]], length: int) -> None:
    x, out = overlap(random(2, 4, length + 2, D))
    table = rope_of().table(torch.arange(length) + 5)
    want = rotate(x.clone(), table)
    assert rotate(x, table, out=out) is out
    assert torch.equal(out, want)


@pytest.mark.usefixtures("body")
def test_out_may_exchange_queries_and_keys() -> None:
    q, k = random(1, 2, 5, D), random(1, 2, 5, D, seed=1)
    table = rope_of().table(torch.arange(5) + 5)
    want = rotate_both(q, k, table)
    assert rotate_both(q, k, table, out=(k, q))[0] is k
    assert torch.equal(k, want[0])
    assert torch.equal(q, want[1])


@pytest.mark.usefixtures("body")
def test_the_module_takes_the_same_options() -> None:
    rope, q, k = rope_of(Pairing.ADJACENT), random(2, 3, 5, D), random(2, 1, 5, D, seed=1)
    table = rope.table(torch.arange(5) + 8)
    want, back = rotate_both(q, k, table), rotate_both(q, k, table, inverse=True)
    out = torch.empty_like(q), torch.empty_like(k)
    for got in (rope(q, k, 8), rope(q, k, 8, out=out), out, rope(q.clone(), k.clone(), 8, inplace=True)):
        assert same_bits(bits(*got), bits(*want))
    assert same_bits(bits(*rope(q, k, 8, inverse=True)), bits(*back))
    assert not torch.equal(want[0], back[0])


# ---- memory as torch sees it ---------------------------------------------------------------------------------------


@lengths
@pytest.mark.usefixtures("body")
def test_writing_counts_up_the_version_of_what_is_written_and_of_nothing_else(length: int) -> None:
    table = rope_of().table(torch.arange(length))
    x, y = random(1, 2, length, D), random(1, 2, length, D)
    rotate(x, table)
    assert x._version == 0
    rotate(x, table, inplace=True)
    assert x._version > 0
    before = x._version
    rotate(x, table, out=y)
    assert x._version == before
    assert y._version > 0


@lengths
@pytest.mark.parametrize("way", ["inplace", "out"])
@pytest.mark.usefixtures("body")
def test_overwriting_what_backward_needs_makes_backward_say_so(length: int, way: str) -> None:
    leaf, table = random(1, 2, length, D).requires_grad_(), rope_of().table(torch.arange(length))
    hidden = leaf * 1
    loss = hidden.square().sum()
    with torch.no_grad():
        if way == "inplace":
            rotate(hidden, table, inplace=True)
        else:
            rotate(random(1, 2, length, D), table, out=hidden)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        loss.backward()


# ---- inverse and factor --------------------------------------------------------------------------------------------


@pairings
@lengths
@pytest.mark.parametrize("factor", [1.0, 2.0, 0.75])
@pytest.mark.parametrize("part", Part, ids=lambda part: part.value)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 2e-6), (torch.bfloat16, 0.04)], ids=str
)
@pytest.mark.usefixtures("body")
def test_inverse_undoes_the_turn_factor_and_all(
    pairing: Pairing, length: int, factor: float, part: Part, dtype: torch.dtype, tolerance: float
) -> None:
    table, x = table_with_factor(factor, length, pairing, part), random(2, 3, length, D, dtype=dtype)
    y = rotate(x, table)
    torch.testing.assert_close(rotate(y, table, inverse=True), x, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(rotate(rotate(x, table, inverse=True), table), x, rtol=tolerance, atol=tolerance)
    assert not torch.allclose(rotate(y, table), x, rtol=0.1, atol=0.1)


@floats
@pairings
@pytest.mark.parametrize("part", [None, *Part], ids=["whole", "leading", "trailing"])
@pytest.mark.parametrize("length", [5, 90], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_inverse_is_the_turn_to_minus_the_position(
    dtype: torch.dtype, pairing: Pairing, part: Part | None, length: int
) -> None:
    rope, at = rope_of(pairing, part), torch.arange(length) + 500
    x = random(2, 3, length, D, dtype=dtype)
    got = rotate(x, rope.table(at), inverse=True)
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    torch.testing.assert_close(got, rotate(x, rope.table(-at)), rtol=tolerance, atol=tolerance)
    whole_or_part = {"rotary_dim": D if part is None else 24, "part": part or Part.LEADING}
    assert_turned(got, x, at, pairing=pairing, inverse=True, **whole_or_part)  # type: ignore[arg-type]  # a mixed dict


@floats
@pairings
@pytest.mark.parametrize("part", Part, ids=lambda part: part.value)
@pytest.mark.usefixtures("body")
def test_the_factor_of_a_table_multiplies_what_turns_and_not_what_passes(
    dtype: torch.dtype, pairing: Pairing, part: Part
) -> None:
    x = random(2, 3, 9, D, dtype=dtype)
    doubled, once = (rotate(x, table_with_factor(factor, 9, pairing, part)) for factor in (2.0, 1.0))
    passing = slice(24, D) if part is Part.LEADING else slice(0, D - 24)
    turning = slice(0, 24) if part is Part.LEADING else slice(D - 24, D)
    assert torch.equal(doubled[..., passing], x[..., passing])
    assert torch.equal(doubled[..., turning], 2 * once[..., turning])  # twice a number rounds like the number


@pytest.mark.usefixtures("body")
def test_turning_changes_no_length_but_by_the_factor() -> None:
    x = random(2, 3, 9, D, dtype=torch.float64)[..., :24].contiguous()
    for factor in (1.0, 2.0, 0.5):
        table = Table(*halfway(9), pairing=Pairing.HALVES, head_dim=24, factor=factor)
        torch.testing.assert_close(rotate(x, table).norm(dim=-1), factor * x.norm(dim=-1), rtol=1e-14, atol=0)


def halfway(length: int) -> tuple[Tensor, Tensor]:
    angles = random(length, 12, dtype=torch.float64, seed=5)
    return angles.cos(), angles.sin()
