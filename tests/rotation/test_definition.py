"""The laws of the rotation, on the definition itself, and worked examples: what every kernel is compared with."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ropewalk.pairing import Pairing, Part
from ropewalk.rotation.definition import pair_channels, rotate

Numbers = NDArray[np.float64]

laws = settings(deadline=None, max_examples=80)
pairings = st.sampled_from(Pairing)
pair_counts = st.integers(1, 32)
positions = st.integers(-5_000, 5_000)
seeds = st.integers(0, 2**32 - 1)
TOLERANCE = 1e-10


def theta(pairs: int, base: float = 1e4) -> Numbers:
    return base ** (-np.arange(pairs) / pairs)


def vectors(count: int, width: int, seed: int) -> Numbers:
    return np.random.default_rng(seed).standard_normal((count, width))


def at(x: Numbers, position: float, pairing: Pairing) -> Numbers:
    """`x` (..., D), all channels turned to `position`."""
    return rotate(x[..., None, :], np.array([position * theta(x.shape[-1] // 2)]), pairing=pairing)[..., 0, :]


def matrix(width: int, position: float, pairing: Pairing) -> Numbers:
    """R_m, built block by block from the four numbers of a plane rotation."""
    a, b = pair_channels(width, width // 2, pairing, Part.LEADING)
    R = np.zeros((width, width))
    for i, angle in enumerate(position * theta(width // 2)):
        R[a[i], a[i]], R[a[i], b[i]] = np.cos(angle), -np.sin(angle)
        R[b[i], a[i]], R[b[i], b[i]] = np.sin(angle), np.cos(angle)
    return R


def complex_pairs(x: Numbers, pairing: Pairing) -> NDArray[np.complex128]:
    """x (..., D) as P complex numbers, by reshaping alone."""
    parts = x.reshape(*x.shape[:-1], -1, 2) if pairing is Pairing.ADJACENT else x.reshape(*x.shape[:-1], 2, -1)
    axis = -1 if pairing is Pairing.ADJACENT else -2
    return np.asarray(parts.take(0, axis) + 1j * parts.take(1, axis), dtype=np.complex128)


# ---- laws ------------------------------------------------------------------------------------------------------------


@laws
@given(pair_counts, pairings, positions, seeds)
def test_a_turn_keeps_the_norm(pairs: int, pairing: Pairing, m: int, seed: int) -> None:
    (x,) = vectors(1, 2 * pairs, seed)
    assert np.isclose(np.linalg.norm(at(x, m, pairing)), np.linalg.norm(x), rtol=1e-13)


@laws
@given(pair_counts, pairings, positions, seeds)
def test_a_turn_changes_the_vector_unless_the_position_is_zero(pairs: int, pairing: Pairing, m: int, seed: int) -> None:
    assume(m != 0)
    (x,) = vectors(1, 2 * pairs, seed)
    assert np.abs(at(x, m, pairing) - x).max() > 1e-6
    assert np.array_equal(at(x, 0, pairing), x)


@laws
@given(pair_counts, pairings, positions, seeds)
def test_the_elementwise_form_equals_the_matrix(pairs: int, pairing: Pairing, m: int, seed: int) -> None:
    (x,) = vectors(1, 2 * pairs, seed)
    R = matrix(2 * pairs, m, pairing)
    assert np.abs(at(x, m, pairing) - R @ x).max() <= TOLERANCE
    assert np.abs(at(np.eye(2 * pairs), m, pairing).T - R).max() <= TOLERANCE


@laws
@given(pair_counts, pairings, positions)
def test_the_transpose_turns_back_and_is_the_inverse(pairs: int, pairing: Pairing, m: int) -> None:
    assume(m != 0)
    columns = np.eye(2 * pairs)
    R, back = at(columns, m, pairing).T, at(columns, -m, pairing).T
    assert np.abs(R.T - back).max() <= TOLERANCE
    assert np.abs(R.T @ R - columns).max() <= TOLERANCE
    assert np.abs(R - back).max() > 1e-6  # not symmetric
    assert np.isclose(np.linalg.det(R), 1.0)


@laws
@given(pair_counts, pairings, positions, positions, seeds)
def test_turns_add_up_and_commute(pairs: int, pairing: Pairing, m: int, n: int, seed: int) -> None:
    (x,) = vectors(1, 2 * pairs, seed)
    both = at(at(x, n, pairing), m, pairing)
    assert np.abs(both - at(x, m + n, pairing)).max() <= TOLERANCE
    assert np.abs(both - at(at(x, m, pairing), n, pairing)).max() <= TOLERANCE
    assert np.abs(both - at(x, m + n + 1, pairing)).max() > 1e-3


@laws
@given(pair_counts, pairings, positions, positions, seeds)
def test_a_score_is_a_function_of_the_difference_in_all_five_forms(
    pairs: int, pairing: Pairing, m: int, n: int, seed: int
) -> None:
    """<R_m q, R_n k> = q^T R_(n-m) k = Re sum h_j e^(i D theta_j) = the two real forms, with D = m - n."""
    q, k = vectors(2, 2 * pairs, seed)
    score = at(q, m, pairing) @ at(k, n, pairing)
    h = complex_pairs(q, pairing) * complex_pairs(k, pairing).conj()
    angle = (m - n) * theta(pairs)
    a, b = pair_channels(2 * pairs, pairs, pairing, Part.LEADING)
    along = q[a] * k[a] + q[b] * k[b]
    across = -q[b] * k[a] + q[a] * k[b]  # <q_perp, k> with q_perp = (-q_b, q_a)
    forms = {
        "q^T R_(n-m) k": q @ at(k, n - m, pairing),
        "as a matrix": q @ matrix(2 * pairs, n - m, pairing) @ k,
        "R_(m-n) q, k": at(q, m - n, pairing) @ k,
        "complex": (h * np.exp(1j * angle)).sum().real,
        "real": (along * np.cos(angle) + across * np.sin(angle)).sum(),
    }
    for name, value in forms.items():
        assert abs(value - score) <= TOLERANCE * 10, name


@laws
@given(pair_counts, pairings, positions, positions, seeds)
def test_the_other_sign_of_the_difference_is_another_score(
    pairs: int, pairing: Pairing, m: int, n: int, seed: int
) -> None:
    """q^T R_(m-n) k, as some texts have it, is <R_n q, R_m k>: wrong as soon as the direction matters."""
    q, k = vectors(2, 2 * pairs, seed)
    score, mirrored = at(q, m, pairing) @ at(k, n, pairing), at(q, n, pairing) @ at(k, m, pairing)
    assert abs(q @ at(k, m - n, pairing) - mirrored) <= TOLERANCE * 10
    h = complex_pairs(q, pairing) * complex_pairs(k, pairing).conj()
    expected = -2 * (h.imag * np.sin((m - n) * theta(pairs))).sum()
    assert abs(score - mirrored - expected) <= TOLERANCE * 10


def test_the_direction_of_a_difference_is_visible() -> None:
    q, k = vectors(2, 16, seed=0)
    for pairing in Pairing:
        score = at(q, 17, pairing) @ at(k, 5, pairing)
        assert abs(q @ at(k, 5 - 17, pairing) - score) < TOLERANCE
        assert abs(q @ at(k, 17 - 5, pairing) - score) > 0.1
        assert abs(at(q, 18, pairing) @ at(k, 5, pairing) - score) > 0.01
        assert abs(at(q, 17 + 999, pairing) @ at(k, 5 + 999, pairing) - score) < TOLERANCE


@laws
@given(pair_counts, pairings, positions, seeds)
def test_the_turn_is_a_multiplication_by_a_complex_number(pairs: int, pairing: Pairing, m: int, seed: int) -> None:
    (x,) = vectors(1, 2 * pairs, seed)
    expected = complex_pairs(x, pairing) * np.exp(1j * m * theta(pairs))
    assert np.abs(complex_pairs(at(x, m, pairing), pairing) - expected).max() <= TOLERANCE


# ---- conventions and options -----------------------------------------------------------------------------------------


def test_a_quarter_turn_takes_the_first_channel_to_the_second() -> None:
    quarter = np.full((1, 2), np.pi / 2)
    x = np.array([[1.0, 2.0, 3.0, 4.0]])
    assert np.allclose(rotate(x, quarter, pairing=Pairing.ADJACENT), [[-2, 1, -4, 3]])
    assert np.allclose(rotate(x, quarter, pairing=Pairing.HALVES), [[-3, -4, 1, 2]])


@pytest.mark.parametrize(
    ("pairing", "part", "a", "b"),
    [
        (Pairing.ADJACENT, Part.LEADING, [0, 2, 4], [1, 3, 5]),
        (Pairing.ADJACENT, Part.TRAILING, [4, 6, 8], [5, 7, 9]),
        (Pairing.HALVES, Part.LEADING, [0, 1, 2], [3, 4, 5]),
        (Pairing.HALVES, Part.TRAILING, [4, 5, 6], [7, 8, 9]),
    ],
)
def test_the_channels_of_three_pairs_of_ten_channels(pairing: Pairing, part: Part, a: list[int], b: list[int]) -> None:
    first, second = pair_channels(10, 3, pairing, part)
    assert (first.tolist(), second.tolist()) == (a, b)


@pytest.mark.parametrize("part", Part)
@pytest.mark.parametrize("pairing", Pairing)
def test_a_partial_turn_is_the_full_turn_of_that_part_and_leaves_the_rest(pairing: Pairing, part: Part) -> None:
    x, angles = vectors(7, 10, seed=1), vectors(7, 3, seed=2)
    turned = rotate(x, angles, pairing=pairing, part=part)
    inside = slice(0, 6) if part is Part.LEADING else slice(4, 10)
    outside = slice(6, 10) if part is Part.LEADING else slice(0, 4)
    assert np.array_equal(turned[:, inside], rotate(x[:, inside], angles, pairing=pairing))
    assert np.array_equal(turned[:, outside], x[:, outside])
    assert not np.isclose(turned[:, inside], x[:, inside]).any()


@pytest.mark.parametrize("part", Part)
@pytest.mark.parametrize("pairing", Pairing)
@pytest.mark.parametrize("factor", [1.0, 0.5, 1.2079441541679836])
def test_inverse_undoes_the_turn_and_its_factor(pairing: Pairing, part: Part, factor: float) -> None:
    x, angles = vectors(7, 10, seed=3), vectors(7, 4, seed=4)
    turned = rotate(x, angles, pairing=pairing, part=part, factor=factor)
    assert np.allclose(rotate(turned, angles, pairing=pairing, part=part, factor=factor, inverse=True), x, atol=1e-14)
    assert not np.allclose(rotate(turned, angles, pairing=pairing, part=part, factor=factor), x, atol=1e-3)
    a, b = pair_channels(10, 4, pairing, part)
    ratio = np.hypot(turned[:, a], turned[:, b]) / np.hypot(x[:, a], x[:, b])
    assert np.allclose(ratio, factor)


def test_angles_are_shared_by_leading_axes_or_given_for_each() -> None:
    x, angles = np.random.default_rng(5).standard_normal((2, 3, 4, 6)), vectors(4, 3, seed=6)
    shared = rotate(x, angles, pairing=Pairing.HALVES)
    for b in range(2):
        for h in range(3):
            assert np.array_equal(shared[b, h], rotate(x[b, h], angles, pairing=Pairing.HALVES))
    own = rotate(x, np.stack([angles, 2 * angles])[:, None], pairing=Pairing.HALVES)
    assert np.array_equal(own[0], shared[0])
    assert not np.isclose(own[1], shared[1]).any()


def test_the_input_is_left_alone() -> None:
    x = vectors(3, 4, seed=7)
    before = x.copy()
    rotate(x, vectors(3, 2, seed=8), pairing=Pairing.HALVES)
    assert np.array_equal(x, before)


# ---- a worked example ------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn() -> tuple[Numbers, Numbers]:
    """The two vectors of the example: NumPy's old generator, seed 42, eight numbers each."""
    generator = np.random.RandomState(42)
    return generator.randn(8), generator.randn(8)


def test_the_worked_example_at_position_three(drawn: tuple[Numbers, Numbers]) -> None:
    x, _ = drawn
    assert theta(4).tolist() == pytest.approx([1, 0.1, 0.01, 0.001], rel=1e-15)
    turned = at(x, 3, Pairing.ADJACENT)
    assert np.round(x[:2], 3).tolist() == [0.497, -0.138]
    assert np.round(turned[:2], 3).tolist() == [-0.472, 0.207]
    assert round(float(np.linalg.norm(x)), 8) == round(float(np.linalg.norm(turned)), 8) == 2.48947373


@pytest.mark.parametrize(("difference", "score"), [(0, -4.081900), (10, -2.769302), (-10, -3.336345)])
def test_the_scores_of_the_worked_example(drawn: tuple[Numbers, Numbers], difference: int, score: float) -> None:
    q, k = drawn
    for n in (0, 3, -40, 100_000):
        assert round(float(at(q, n + difference, Pairing.ADJACENT) @ at(k, n, Pairing.ADJACENT)), 6) == score
    if difference:
        halves = float(at(q, difference, Pairing.HALVES) @ at(k, 0, Pairing.HALVES))
        assert abs(halves - score) > 0.1
