"""What positions mean to a rotation: relative scores, decoding, padding, packing, and companions that must change."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oracle import FLOATS, assert_turned, random
from ropewalk import Pairing, Rotary, positions, rotate, rotate_both

pairings = pytest.mark.parametrize("pairing", Pairing, ids=lambda pairing: pairing.value)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=str)

D = 48
"""24 pairs: a vector of 16 and one of 8."""


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 20),
    st.sampled_from(Pairing),
    st.integers(-(10**6), 10**6),
    st.integers(-(10**6), 10**6),
    st.integers(-(10**8), 10**8),
    st.integers(0, 2**31),
)
def test_a_score_depends_on_the_difference_of_positions_alone(
    pairs: int, pairing: Pairing, m: int, n: int, shift: int, seed: int
) -> None:
    """A property that a rotation doing nothing has too: the tests around it are the ones that see it."""
    rope, (q, k) = Rotary(head_dim=2 * pairs, pairing=pairing), random(2, 1, 2 * pairs, dtype=torch.float64, seed=seed)

    def score(m: int, n: int) -> Tensor:
        at_m, at_n = (rope.table(torch.tensor([at]), dtype=torch.float64) for at in (m, n))
        return (rotate(q, at_m) * rotate(k, at_n)).sum()

    torch.testing.assert_close(score(m + shift, n + shift), score(m, n), rtol=1e-12, atol=1e-12)
    if m != n:
        assert (score(m, n) - (q * k).sum()).abs() > 1e-9
        assert (score(m, n) - score(n, m)).abs() > 1e-9  # and on its sign: relative, but not even


@floats
@pairings
@pytest.mark.parametrize("offset", [0, 100_000])
@pytest.mark.usefixtures("body")
def test_decoding_one_token_at_a_time_equals_the_full_pass(dtype: torch.dtype, pairing: Pairing, offset: int) -> None:
    length = 80
    rope = Rotary(head_dim=D, pairing=pairing)
    q, k = random(2, 4, length, D, dtype=dtype), random(2, 2, length, D, dtype=dtype, seed=1)
    full = rope(q, k, offset)
    steps = [slice(0, 70), *(slice(at, at + 1) for at in range(70, length))]  # a prompt, then one by one
    chunks = [rope(q[:, :, step], k[:, :, step], offset + step.start) for step in steps]
    assert torch.equal(torch.cat([turned_q for turned_q, _ in chunks], -2), full[0])
    assert torch.equal(torch.cat([turned_k for _, turned_k in chunks], -2), full[1])
    last = slice(length - 1, length)
    assert not torch.equal(rope(q[:, :, last], k[:, :, last], 0)[0], full[0][:, :, last])  # the offset matters
    at = torch.arange(length) + offset
    assert all(torch.equal(a, b) for a, b in zip(rope(q, k, at), full, strict=True))


@floats
@pytest.mark.parametrize("longest", [9, 70], ids=["few", "many"])
@pytest.mark.usefixtures("body")
def test_rows_padded_on_the_left_equal_rows_on_their_own(dtype: torch.dtype, longest: int) -> None:
    rope = Rotary(head_dim=D, pairing=Pairing.HALVES)
    lengths = (longest, 4, 1)
    x = random(3, 2, longest, D, dtype=dtype)
    mask = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    padded, _ = rope(x, x, positions.from_mask(mask))
    for row, length in enumerate(lengths):
        own = x[row : row + 1, :, longest - length :]
        assert torch.equal(padded[row : row + 1, :, longest - length :], rope(own, own, 0)[0])
    ignored, _ = rope(x, x, 0)  # without the mask every shorter row is turned too far
    assert torch.equal(ignored[0], padded[0])
    assert not torch.equal(ignored[1, :, -4:], padded[1, :, -4:])


@floats
@pytest.mark.usefixtures("body")
def test_packed_documents_equal_documents_on_their_own(dtype: torch.dtype) -> None:
    rope = Rotary(head_dim=D, pairing=Pairing.ADJACENT)
    lengths = (3, 1, 66, 8)
    x = random(1, 2, sum(lengths), D, dtype=dtype)
    packed, _ = rope(x, x, positions.from_lengths(torch.tensor(lengths), total=sum(lengths)))
    own = [rope(document, document, 0)[0] for document in x.split(lengths, -2)]
    assert torch.equal(packed, torch.cat(own, -2))
    running_on, _ = rope(x, x, 0)
    assert torch.equal(running_on[:, :, :3], packed[:, :, :3])
    assert not torch.equal(running_on[:, :, 3:], packed[:, :, 3:])


@pytest.mark.usefixtures("body")
def test_rows_with_their_own_offsets_equal_rows_on_their_own() -> None:
    rope, offsets = Rotary(head_dim=D, pairing=Pairing.HALVES), torch.tensor([7, 0, 123_456])
    x = random(3, 2, 1, D)
    together, _ = rope(x, x, positions.consecutive(1, offset=offsets))
    for row, offset in enumerate(offsets.tolist()):
        assert torch.equal(together[row], rope(x[row], x[row], offset)[0])
    assert not torch.equal(together, rope(x, x, 7)[0])


@floats
@pairings
@pytest.mark.usefixtures("body")
def test_one_call_for_queries_and_fewer_keys_equals_two_calls(dtype: torch.dtype, pairing: Pairing) -> None:
    rope = Rotary(head_dim=D, pairing=pairing)
    for heads, length in ((1, 1), (2, 9), (8, 100)):
        q, k = random(2, 8, length, D, dtype=dtype), heads_last_keys(heads, length, dtype)
        table = rope.table(torch.arange(length) + 5)
        turned_q, turned_k = rotate_both(q, k, table)
        assert torch.equal(turned_q, rotate(q, table))
        assert torch.equal(turned_k, rotate(k, table))
        assert_turned(turned_k, k, torch.arange(length) + 5, pairing=pairing)


def heads_last_keys(heads: int, length: int, dtype: torch.dtype) -> Tensor:
    return random(2, length, heads, D, dtype=dtype, seed=3).transpose(1, 2)


@pytest.mark.usefixtures("body")
def test_position_zero_changes_nothing_and_minus_m_undoes_m() -> None:
    rope, x = Rotary(head_dim=D, pairing=Pairing.HALVES), random(1, 2, 1, D, dtype=torch.float64)
    assert torch.equal(rope(x, x, 0)[0], x)
    back, _ = rope(*rope(x, x, 4321), -4321)
    torch.testing.assert_close(back, x, rtol=1e-14, atol=1e-14)
    assert not torch.allclose(rope(x, x, 4321)[0], x, rtol=0.01)
