"""What a table may be made of, and that it serves every tensor and stays what it was."""

import copy
from dataclasses import is_dataclass

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from oracle import FLOATS, bits, random, same_bits
from ropewalk import Pairing, Part, Rotary, Table, rotate

D = 40


def rope_of(pairing: Pairing = Pairing.HALVES, part: Part | None = None) -> Rotary:
    return Rotary(head_dim=D, pairing=pairing, rotary_dim=D if part is None else 24, part=part)


def halfway(length: int) -> tuple[Tensor, Tensor]:
    angles = random(length, 12, dtype=torch.float64, seed=5)
    return angles.cos(), angles.sin()


@pytest.mark.usefixtures("body")
def test_one_table_serves_every_type_and_shape_and_stays_as_it_was() -> None:
    at = torch.arange(90)
    for length in (5, 90):
        rope = rope_of()
        table = rope.table(at[:length])
        before = bits(table.cos, table.sin)
        for dtype in FLOATS:
            for shape in ((length, D), (3, length, D), (2, 3, length, D)):
                x = random(*shape, dtype=dtype)
                assert torch.equal(rotate(x, table), rotate(x, rope.table(at[:length])))
        assert same_bits(bits(table.cos, table.sin), before)


@pytest.mark.usefixtures("body")
def test_float64_is_turned_by_float64_phases_even_where_the_table_was_made_in_float32() -> None:
    rope, x = rope_of(), random(1, 2, 90, D, dtype=torch.float64)
    table = rope.table(torch.arange(90) + 5000)
    assert table.dtype == torch.float32
    assert torch.equal(rotate(x, table), rotate(x, rope.table(torch.arange(90) + 5000, dtype=torch.float64)))


@pytest.mark.usefixtures("body")
def test_a_table_of_float64_turns_float32_by_its_numbers_rounded_once() -> None:
    x, (cos, sin) = random(2, 3, 9, 24), halfway(9)
    wide = Table(cos, sin, pairing=Pairing.ADJACENT, head_dim=24)
    narrow = Table(cos.float(), sin.float(), pairing=Pairing.ADJACENT, head_dim=24)
    assert torch.equal(rotate(x, wide), rotate(x, narrow))


@pytest.mark.parametrize("length", [5, 90], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_cos_and_sin_of_a_table_turn_like_the_table(length: int) -> None:
    rope, x = rope_of(), random(2, 3, length, D)
    table = rope.table(torch.arange(length) + 7)
    assert table.cos.shape == table.sin.shape == table.shape == (length, D // 2)
    own = Table(table.cos, table.sin, pairing=Pairing.HALVES, head_dim=D)
    assert torch.equal(rotate(x, own), rotate(x, table))


@pytest.mark.usefixtures("body")
def test_cos_and_sin_may_lie_in_memory_as_they_like() -> None:
    x, (cos, sin) = random(2, 3, 9, 24), halfway(9)
    tidy = Table(cos.float(), sin.float(), pairing=Pairing.HALVES, head_dim=24)
    scattered = torch.stack((cos, sin), -1).float().transpose(0, 1).contiguous().transpose(0, 1)
    untidy = Table(scattered[..., 0], scattered[..., 1], pairing=Pairing.HALVES, head_dim=24)
    assert torch.equal(rotate(x, untidy), rotate(x, tidy))


@pytest.mark.parametrize("length", [5, 90], ids=["few", "many"])
@pytest.mark.parametrize("gradients", [True, False], ids=["recording", "not recording"])
@pytest.mark.usefixtures("body")
def test_a_table_keeps_the_positions_it_was_made_from(length: int, gradients: bool) -> None:
    rope, at = rope_of(), torch.arange(length)
    for dtype in (torch.float32, torch.float64):
        x = random(2, 3, length, D, dtype=dtype)
        with torch.set_grad_enabled(gradients):
            table = rope.table(at)
            before = rotate(x, table)
            at += 1  # as in a decoding loop
            assert torch.equal(rotate(x, table), before)
            assert not torch.equal(rotate(x, rope.table(at)), before)


@pytest.mark.parametrize("length", [5, 90], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_a_copied_table_turns_like_the_table(length: int) -> None:
    x, table = random(2, 3, length, D), rope_of().table(torch.arange(length) + 7)
    assert torch.equal(rotate(x, copy.deepcopy(table)), rotate(x, table))


def test_what_looks_for_tensors_in_the_inputs_of_a_model_finds_none_in_a_table() -> None:
    """Such as FSDP, which casts those it finds to half precision."""
    table = rope_of().table(torch.arange(90))
    assert tree_leaves({"inputs": (table, [table])}) == [table, table]
    assert not is_dataclass(table)
    assert not isinstance(table, tuple | list | dict)


def test_a_table_says_what_it_is_for() -> None:
    table = rope_of(Pairing.ADJACENT, Part.TRAILING).table(torch.zeros(2, 7, dtype=torch.int64))
    assert repr(table) == "Table((2, 7, 12), float32, ADJACENT, head_dim=40)"
    assert (table.pairs, table.first, table.factor) == (12, 16, 1.0)
