"""`Rotary`, the module: a table and a turn in one call, what it says of itself, and what it refuses to be."""

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle import assert_turned, random
from ropewalk import ConfigError, Pairing, Part, RopewalkError, Rotary, rotate_both
from ropewalk.encodings import RotaryConfig

CONFIGS: dict[str, dict[str, Any]] = {
    "halves": {"pairing": Pairing.HALVES, "base": 500_000.0},
    "adjacent": {"pairing": Pairing.ADJACENT},
    "leading": {"pairing": Pairing.ADJACENT, "rotary_dim": 10, "part": Part.LEADING},
    "trailing": {"pairing": Pairing.HALVES, "rotary_dim": 16, "part": Part.TRAILING, "base": 100.0},
}
configs = pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)


def fresh(options: dict[str, Any]) -> Rotary:
    return Rotary(head_dim=24, **options)


def inputs(length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return random(2, 3, length, 24, dtype=dtype), random(2, 1, length, 24, dtype=dtype, seed=1)


@configs
def test_a_call_is_a_table_and_a_turn(options: dict[str, Any]) -> None:
    rope, (q, k), at = fresh(options), inputs(9), torch.arange(9) + 40
    for got in (rope(q, k, at), rope(q, k, 40), rope(q, k, at[None]), rope(q, k, at.expand(2, 9))):
        for turned, want in zip(got, rotate_both(q, k, rope.table(at)), strict=True):
            assert torch.equal(turned, want)
    assert_turned(rope(q, k, at)[0], q, at, **options)
    assert_turned(rope(q, k, at)[1], k, at, **options)


def test_frequencies_are_those_others_call_inv_freq() -> None:
    rope = fresh(CONFIGS["trailing"])
    want = torch.tensor([100.0 ** (-2 * j / 16) for j in range(8)], dtype=torch.float64)
    torch.testing.assert_close(rope.inverse_frequencies(), want, rtol=1e-15, atol=0)
    assert rope.attention_factor == 1.0


def test_it_prints_its_configuration() -> None:
    assert repr(Rotary(head_dim=8, pairing=Pairing.HALVES)) == "Rotary(head_dim=8, pairing=HALVES, base=10_000.0)"
    partial = Rotary(head_dim=8, pairing=Pairing.ADJACENT, rotary_dim=4, part=Part.TRAILING, base=500_000.0)
    assert repr(partial) == "Rotary(head_dim=8, pairing=ADJACENT, base=500_000.0, rotary_dim=4, part=TRAILING)"


def test_configurations_are_values() -> None:
    one, same, other = (
        RotaryConfig(head_dim=8, pairing=pairing) for pairing in [Pairing.HALVES] * 2 + [Pairing.ADJACENT]
    )
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert Rotary(head_dim=8, pairing=Pairing.HALVES).config == one
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(FrozenInstanceError):
        one.base = 1.0  # type: ignore[misc]  # that is what is tested


PAIRING = "`pairing` must be Pairing.ADJACENT or Pairing.HALVES, but is {}."
PART = "`part` must be Part.LEADING or Part.TRAILING where `rotary_dim` is below `head_dim`, but is {}."


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pairing": "halves"}, PAIRING.format("'halves'")),
        ({"pairing": None}, PAIRING.format("None")),
        ({"head_dim": 7}, "`head_dim` must be positive and even, but is 7."),
        ({"head_dim": 0}, "`head_dim` must be a positive integer, but is 0."),
        ({"head_dim": -8}, "`head_dim` must be a positive integer, but is -8."),
        ({"head_dim": 8.0}, "`head_dim` must be a positive integer, but is 8.0."),
        ({"rotary_dim": 3}, "`rotary_dim` must be positive and even, but is 3."),
        ({"rotary_dim": 0, "part": Part.LEADING}, "`rotary_dim` must be positive and even, but is 0."),
        ({"rotary_dim": 4.0, "part": Part.LEADING}, "`rotary_dim` must be positive and even, but is 4.0."),
        ({"rotary_dim": 10}, "`rotary_dim` must be at most `head_dim` = 8, but is 10."),
        ({"rotary_dim": 4}, PART.format("None")),
        ({"rotary_dim": 4, "part": "leading"}, PART.format("'leading'")),
        ({"base": 0}, "`base` must be a finite number of at least 1, but is 0."),
        ({"base": -1.0}, "`base` must be a finite number of at least 1, but is -1.0."),
        ({"base": float("nan")}, "`base` must be a finite number of at least 1, but is nan."),
        ({"base": float("inf")}, "`base` must be a finite number of at least 1, but is inf."),
        ({"base": "1e4"}, "`base` must be a finite number of at least 1, but is '1e4'."),
        (
            {"pairing": "neox", "head_dim": -8},
            PAIRING.format("'neox'") + " `head_dim` must be a positive integer, but is -8.",
        ),
        (
            {"pairing": "neox", "rotary_dim": 9},
            PAIRING.format("'neox'") + " `rotary_dim` must be positive and even, but is 9.",
        ),
    ],
    ids=str,
)
def test_a_configuration_that_can_never_work_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Rotary(**{"head_dim": 8, "pairing": Pairing.HALVES, **options})
    assert str(caught.value) == sentence
    assert " ".join(caught.value.problems) == sentence
    assert isinstance(caught.value, RopewalkError)
    assert isinstance(caught.value, ValueError)


def test_the_pairing_has_no_default_and_nothing_goes_by_place() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'pairing'"):
        Rotary(head_dim=8)  # type: ignore[call-arg]  # that is what is tested
    with pytest.raises(TypeError, match="takes 1 positional argument"):
        Rotary(8, Pairing.HALVES)  # type: ignore[call-arg]  # that is what is tested
