"""The geometric spectrum against its formula at 80 digits, and what it refuses."""

import dataclasses
import decimal
import itertools
import math
import pickle
from decimal import Decimal

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import ConfigError
from ropewalk.frequencies import Geometric

WIDTHS = (2, 4, 6, 8, 64, 80, 128, 256, 512)
BASES = (100, 1_000.0, 10_000.0, 500_000.0, 1e7, 1.5, 12_345.678)
NO_INTEGER = "`width` must be a positive even integer, but is {!r}."
NO_NUMBER = "`base` must be a finite number of at least 1, but is {!r}."


def relative_error(theta: Decimal, base: float, exponent: "mpmath.mpf") -> float:
    """How far `theta` is from base ** exponent, worked out at 80 digits."""
    true = mpmath.mpf(base) ** exponent
    return float(abs(mpmath.mpf(str(theta)) - true) / true)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_frequency_is_the_power_of_the_base_to_55_digits(width: int, base: float) -> None:
    with mpmath.workdps(80):
        for j, theta in enumerate(Geometric(width=width, base=base).frequencies()):
            assert relative_error(theta, base, mpmath.mpf(-2 * j) / width) <= 1e-55


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 300), st.floats(1.0, 1e12), st.data())
def test_any_base_and_width_give_the_power_to_55_digits(pairs: int, base: float, data: st.DataObject) -> None:
    j = data.draw(st.integers(0, pairs - 1))
    with mpmath.workdps(80):
        theta = Geometric(width=2 * pairs, base=base).frequencies()[j]
        assert relative_error(theta, base, mpmath.mpf(-j) / pairs) <= 1e-55


def test_another_exponent_would_be_seen() -> None:
    theta = Geometric(width=8).frequencies()[1]
    with mpmath.workdps(80):
        assert relative_error(theta, 1e4, mpmath.mpf(-2) / 7) > 0.1
        assert relative_error(theta, 1e4 + 1e-9, mpmath.mpf(-2) / 8) > 1e-15


def test_the_series_of_eight_channels_falls_by_tens() -> None:
    falling = (Decimal(1), Decimal("0.1"), Decimal("0.01"), Decimal("0.001"))
    assert Geometric(width=8, base=10_000).frequencies() == falling


def test_the_second_frequency_of_512_channels_is_0_965() -> None:
    assert round(float(Geometric(width=512).frequencies()[1]), 3) == 0.965


def test_the_longest_wavelength_of_128_channels_is_54_410_tokens() -> None:
    wavelength = 2 * math.pi / float(Geometric(width=128, base=10_000.0).frequencies()[-1])
    assert round(wavelength) == 54_410
    assert math.isclose(wavelength, 2 * math.pi * 10_000 ** (126 / 128), rel_tol=1e-14)
    assert wavelength < 0.9 * 2 * math.pi * 10_000


@pytest.mark.parametrize("width", WIDTHS)
def test_there_is_one_frequency_a_pair_and_the_first_is_the_fastest(width: int) -> None:
    frequencies = Geometric(width=width, base=500_000.0).frequencies()
    assert len(frequencies) == width // 2
    assert frequencies[0] == 1
    assert all(faster > slower > 0 for faster, slower in itertools.pairwise(frequencies))


def test_a_base_of_one_turns_all_pairs_alike() -> None:
    assert set(Geometric(width=6, base=1).frequencies()) == {Decimal(1)}


def test_the_base_defaults_to_10_000() -> None:
    assert Geometric(width=4) == Geometric(width=4, base=10_000)


def test_another_base_or_width_is_another_spectrum() -> None:
    spectra = [Geometric(width=8), Geometric(width=8, base=10_001.0), Geometric(width=6)]
    assert len(set(spectra)) == 3
    assert len({spectrum.frequencies() for spectrum in spectra}) == 3


def test_the_decimal_context_of_the_caller_changes_nothing() -> None:
    plain = Geometric(width=10, base=77.0).frequencies()
    with decimal.localcontext(decimal.Context(prec=4, rounding=decimal.ROUND_UP)):
        assert Geometric(width=10, base=77.0).frequencies() == plain


def test_asking_leaves_the_decimal_context_of_the_caller_alone() -> None:
    with decimal.localcontext(decimal.Context(prec=4, rounding=decimal.ROUND_UP)) as context:
        context.clear_flags()
        Geometric(width=10, base=77.0).frequencies()
        assert (context.prec, context.rounding, any(context.flags.values())) == (4, decimal.ROUND_UP, False)


def test_equal_spectra_are_one_key_and_survive_pickling() -> None:
    spectrum = Geometric(width=128, base=500_000)
    twin = pickle.loads(pickle.dumps(spectrum))
    assert twin == spectrum == Geometric(width=128, base=500_000.0)
    assert hash(twin) == hash(spectrum) == hash(Geometric(width=128, base=500_000.0))
    assert twin.frequencies() == spectrum.frequencies()


@pytest.mark.parametrize("field", ["width", "base"])
def test_a_spectrum_cannot_be_changed(field: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(Geometric(width=8), field, 4)


def test_a_spectrum_is_made_by_keywords_only() -> None:
    with pytest.raises(TypeError):
        Geometric(8)  # type: ignore[call-arg]


@pytest.mark.parametrize("width", [0, -2, 1, 7, 8.0, "8", None, True])
def test_a_width_that_is_no_positive_even_integer_is_refused(width: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Geometric(width=width)  # type: ignore[arg-type]
    assert str(caught.value) == NO_INTEGER.format(width)
    assert caught.value.problems == (NO_INTEGER.format(width),)


@pytest.mark.parametrize("base", [0, 0.0, 0.999, -1.0, math.inf, -math.inf, math.nan, True, "10000", None, 1j])
def test_a_base_that_is_no_finite_number_of_at_least_1_is_refused(base: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Geometric(width=8, base=base)  # type: ignore[arg-type]
    assert str(caught.value) == NO_NUMBER.format(base)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Geometric(width=3, base=-1.0)
    assert caught.value.problems == (NO_INTEGER.format(3), NO_NUMBER.format(-1.0))
    assert str(caught.value) == f"{NO_INTEGER.format(3)} {NO_NUMBER.format(-1.0)}"
    assert isinstance(caught.value, ValueError)
