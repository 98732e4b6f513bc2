"""Weights that change their pairing: scores stay to the last bit, and checkpoints agree with the published way."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.errors import InputError
from ropewalk.pairing import Pairing, Part
from ropewalk.rotation import channel_order, convert_projection
from ropewalk.rotation.definition import rotate

ADJACENT, HALVES = Pairing.ADJACENT, Pairing.HALVES
SHAPES = [(8, None, None), (8, 6, Part.LEADING), (8, 4, Part.TRAILING), (6, 2, Part.TRAILING), (2, None, None)]
both_ways = pytest.mark.parametrize(("source", "target"), [(ADJACENT, HALVES), (HALVES, ADJACENT)], ids=["to", "from"])
shapes = pytest.mark.parametrize(("head_dim", "rotary_dim", "part"), SHAPES)


# ---- the order of channels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "part", "source", "order"),
    [
        (8, None, None, ADJACENT, [0, 2, 4, 6, 1, 3, 5, 7]),
        (8, None, None, HALVES, [0, 4, 1, 5, 2, 6, 3, 7]),
        (8, 8, Part.TRAILING, ADJACENT, [0, 2, 4, 6, 1, 3, 5, 7]),
        (9, 6, Part.LEADING, ADJACENT, [0, 2, 4, 1, 3, 5, 6, 7, 8]),
        (9, 6, Part.TRAILING, ADJACENT, [0, 1, 2, 3, 5, 7, 4, 6, 8]),
        (9, 6, Part.TRAILING, HALVES, [0, 1, 2, 3, 6, 4, 7, 5, 8]),
        (2, None, None, ADJACENT, [0, 1]),
    ],
)
def test_orders_worked_by_hand(
    head_dim: int, rotary_dim: int | None, part: Part | None, source: Pairing, order: list[int]
) -> None:
    target = HALVES if source is ADJACENT else ADJACENT
    assert channel_order(head_dim, source, target, rotary_dim=rotary_dim, part=part).tolist() == order


@pytest.mark.parametrize("pairing", Pairing)
def test_to_the_same_pairing_nothing_moves(pairing: Pairing) -> None:
    assert channel_order(6, pairing, pairing).tolist() == [0, 1, 2, 3, 4, 5]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(0, 5), st.sampled_from(Part), st.integers(0, 2**32 - 1))
def test_turning_then_permuting_is_permuting_then_turning(pairs: int, rest: int, part: Part, seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, angles = generator.standard_normal((4, 2 * pairs + rest)), generator.standard_normal((4, pairs))
    order = channel_order(2 * pairs + rest, ADJACENT, HALVES, rotary_dim=2 * pairs, part=part).numpy()
    after = rotate(x, angles, pairing=ADJACENT, part=part)[:, order]
    assert np.array_equal(rotate(x[:, order], angles, pairing=HALVES, part=part), after)
    if pairs > 1:
        assert not np.allclose(rotate(x[:, order], angles, pairing=ADJACENT, part=part), after)


# ---- a whole attention layer -----------------------------------------------------------------------------------------

WIDTH, TOKENS, HEADS, KEY_HEADS = 12, 5, 6, 2
Converter = Callable[[Tensor, int, int], Tensor]  # tensor, its heads, head_dim
Layer = dict[str, Tensor]


def whole_numbers(*shape: int, seed: int) -> Tensor:
    """Integers in float64: products with them are exact in whatever order they are summed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, shape, generator=generator).double()


def a_layer(head_dim: int) -> Layer:
    return {
        "q.weight": whole_numbers(HEADS * head_dim, WIDTH, seed=1),
        "k.weight": whole_numbers(KEY_HEADS * head_dim, WIDTH, seed=2),
        "q.bias": whole_numbers(HEADS * head_dim, seed=3),
        "k.bias": whole_numbers(KEY_HEADS * head_dim, seed=4),
        "q.gain": whole_numbers(head_dim, seed=5) + 20,  # of a norm over each head, shared by the heads
        "k.gain": whole_numbers(KEY_HEADS * head_dim, seed=6) + 20,  # of a norm with gains of its own for each
    }


def exact_scores(layer: Layer, head_dim: int, pairs: int, pairing: Pairing, part: Part | None) -> NDArray[np.float64]:
    """Scores (H, S, T); each dot product is rounded once (fsum), so that its terms may come in any order."""
    x = whole_numbers(TOKENS, WIDTH, seed=7)
    angles = 1e3 * np.random.default_rng(8).standard_normal((TOKENS, pairs))
    turned = []
    for name, heads in (("q", HEADS), ("k", KEY_HEADS)):
        y = (x @ layer[f"{name}.weight"].T + layer[f"{name}.bias"]).unflatten(-1, (heads, head_dim))
        y = y * layer[f"{name}.gain"].view(-1, head_dim)
        y = y.transpose(0, 1).numpy()  # (H, S, D)
        turned.append(rotate(y, angles, pairing=pairing, part=part or Part.LEADING))
    q, k = turned
    group = HEADS // KEY_HEADS
    return np.array([[[math.fsum(a * b) for b in k[h // group]] for a in q[h]] for h in range(HEADS)])


def converted(layer: Layer, names: list[str], convert: Converter, head_dim: int) -> Layer:
    heads = {name: max(1, tensor.shape[0] // head_dim) for name, tensor in layer.items()}
    return {name: convert(x, heads[name], head_dim) if name in names else x for name, x in layer.items()}


@both_ways
@shapes
def test_scores_of_converted_weights_are_the_same_bits(
    head_dim: int, rotary_dim: int | None, part: Part | None, source: Pairing, target: Pairing
) -> None:
    pairs = (rotary_dim or head_dim) // 2

    def convert(x: Tensor, heads: int, head_dim: int) -> Tensor:
        return convert_projection(
            x, heads=heads, head_dim=head_dim, source=source, target=target, rotary_dim=rotary_dim, part=part
        )

    layer = a_layer(head_dim)
    before = exact_scores(layer, head_dim, pairs, source, part)
    after = exact_scores(converted(layer, list(layer), convert, head_dim), head_dim, pairs, target, part)
    assert np.array_equal(before, after)
    if pairs == 1:
        return  # one pair is the same pair either way
    for left_out in layer:
        names = [name for name in layer if name != left_out]
        wrong = exact_scores(converted(layer, names, convert, head_dim), head_dim, pairs, target, part)
        assert not np.allclose(before, wrong), left_out
    assert not np.allclose(before, exact_scores(layer, head_dim, pairs, target, part))


@shapes
def test_there_and_back_is_the_same_tensor(head_dim: int, rotary_dim: int | None, part: Part | None) -> None:
    for name, x in a_layer(head_dim).items():
        heads = max(1, x.shape[0] // head_dim)
        there = convert_projection(
            x, heads=heads, head_dim=head_dim, source=ADJACENT, target=HALVES, rotary_dim=rotary_dim, part=part
        )
        back = convert_projection(
            there, heads=heads, head_dim=head_dim, source=HALVES, target=ADJACENT, rotary_dim=rotary_dim, part=part
        )
        assert back.equal(x), name
        assert there.equal(x) == ((rotary_dim or head_dim) == 2), name


@pytest.mark.parametrize(("heads", "head_dim", "width"), [(4, 8, 32), (2, 8, 32), (1, 128, 64), (5, 6, 7)])
def test_the_conversion_of_llama_checkpoints_is_this_one(heads: int, head_dim: int, width: int) -> None:
    """`transformers` turns Meta's weights (adjacent) into its own (halves) with this view and transpose."""
    weight = torch.randn(heads * head_dim, width, generator=torch.Generator().manual_seed(0))
    published = weight.view(heads, head_dim // 2, 2, width).transpose(1, 2).reshape(heads * head_dim, width)
    ours = convert_projection(weight, heads=heads, head_dim=head_dim, source=ADJACENT, target=HALVES)
    assert ours.equal(published)
    assert not ours.equal(convert_projection(weight, heads=heads, head_dim=head_dim, source=HALVES, target=ADJACENT))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_a_converted_tensor_keeps_its_type_and_is_a_new_one(dtype: torch.dtype) -> None:
    weight = whole_numbers(16, 3, seed=0).to(dtype)
    before = weight.clone()
    for target in Pairing:
        result = convert_projection(weight, heads=2, head_dim=8, source=ADJACENT, target=target)
        assert (result.dtype, result.shape) == (dtype, weight.shape)
        result.zero_()
        assert weight.equal(before)


# ---- bad input -------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "odd head": (
        lambda: channel_order(7, ADJACENT, HALVES),
        "`rotary_dim` must be even, positive and at most `head_dim` = 7, but is 7.",
    ),
    "odd width": (
        lambda: channel_order(8, ADJACENT, HALVES, rotary_dim=5, part=Part.LEADING),
        "`rotary_dim` must be even, positive and at most `head_dim` = 8, but is 5.",
    ),
    "no width": (
        lambda: channel_order(8, HALVES, HALVES, rotary_dim=0, part=Part.LEADING),
        "`rotary_dim` must be even, positive and at most `head_dim` = 8, but is 0.",
    ),
    "width above the head": (
        lambda: channel_order(8, ADJACENT, HALVES, rotary_dim=10),
        "`rotary_dim` must be even, positive and at most `head_dim` = 8, but is 10.",
    ),
    "no part": (
        lambda: channel_order(8, ADJACENT, HALVES, rotary_dim=4),
        "`part` must be Part.LEADING or Part.TRAILING where `rotary_dim` is below `head_dim`, but is None.",
    ),
    "rows of another number of heads": (
        lambda: convert_projection(torch.zeros(16, 3), heads=3, head_dim=8, source=ADJACENT, target=HALVES),
        "`weight` must be of 3 · 8 = 24 rows, but is of shape (16, 3).",
    ),
    "a shared gain said to be of all heads": (
        lambda: convert_projection(torch.zeros(8), heads=2, head_dim=8, source=ADJACENT, target=HALVES),
        "`weight` must be of 2 · 8 = 16 rows, but is of shape (8,).",
    ),
    "three dimensions": (
        lambda: convert_projection(torch.zeros(16, 3, 1), heads=2, head_dim=8, source=ADJACENT, target=HALVES),
        "`weight` must be of 2 · 8 = 16 rows, but is of shape (16, 3, 1).",
    ),
    "no dimension": (
        lambda: convert_projection(torch.zeros(()), heads=1, head_dim=8, source=ADJACENT, target=HALVES),
        "`weight` must be of 1 · 8 = 8 rows, but is of shape ().",
    ),
    "a pairing by its name": (
        lambda: channel_order(8, "adjacent", HALVES),  # type: ignore[arg-type]  # on purpose
        "`source` must be Pairing.ADJACENT or Pairing.HALVES, but is 'adjacent'.",
    ),
    "no pairing": (
        lambda: channel_order(8, HALVES, None),  # type: ignore[arg-type]  # on purpose
        "`target` must be Pairing.ADJACENT or Pairing.HALVES, but is None.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str) -> None:
    call, sentence = BAD[name]
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == sentence
