"""cos and sin of every path against 50 digits: positions to 2^31 - 1, any base, every type, and under every compiler.

The oracle is mpmath at 50 digits, from base, width and position alone: it knows nothing of words or turns.
"""

import decimal
import functools
import math
import shutil
from collections.abc import Callable, Iterator

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ropewalk import phase
from ropewalk.errors import InputError
from ropewalk.frequencies import Geometric
from ropewalk.kernels import native
from ropewalk.phase import cos_sin, device_words, native_words, words_of

# Inductor and forward-mode autograd load parts of torch that torch itself calls deprecated.
pytestmark = pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:DeprecationWarning")

CPU = torch.device("cpu")
LARGEST = 2**31 - 1
POSITIONS = (0, 1, -1, 3, 4_095, -4_095, 131_071, 10**6, 10**7, -(10**7), 715_827_882, 2**30, LARGEST, -LARGEST)
REALS = (
    0.5,
    -0.25,
    1 / 3,
    1e-9,
    -0.999999999,
    4_095.7,
    131_071.3,
    1e6 + 0.1,
    -1e7 - 0.9,
    LARGEST - 0.25,
    0.75 - LARGEST,
)
BASES = (100.0, 1e4, 5e5, 1e7)
WIDTHS = (2, 4, 6, 8, 64, 80, 128, 256, 512)
SPECTRA = [(base, width) for base in BASES for width in WIDTHS]
FLOAT32_BOUND, FLOAT64_BOUND = 7e-8, 1e-15

Pair = tuple[Tensor, Tensor]
Path = Callable[[Tensor, str, torch.dtype], Pair]
Numbers = NDArray[np.float64]


def words(base: float = 1e4, width: int = 8) -> str:
    return words_of(Geometric(width=width, base=base).frequencies())


def some_pairs(width: int) -> list[int]:
    """At most ten of the pairs, the fastest and the slowest among them."""
    return sorted({round(j) for j in np.linspace(0, width // 2 - 1, 10)})


def exactly(base: float, width: int, pairs: list[int], positions: list[float]) -> tuple[Numbers, Numbers]:
    """cos and sin (positions, pairs) of position * base ** (-2 j / width), from 50 digits."""
    with mpmath.workdps(50):
        theta = [mpmath.mpf(base) ** (mpmath.mpf(-2 * j) / width) for j in pairs]
        angles = [[mpmath.mpf(p) * t for t in theta] for p in positions]
        cos = [[float(mpmath.cos(angle)) for angle in row] for row in angles]
        sin = [[float(mpmath.sin(angle)) for angle in row] for row in angles]
    return np.array(cos), np.array(sin)


@functools.cache
def truth(base: float, width: int, positions: tuple[float, ...]) -> tuple[list[int], Numbers, Numbers]:
    """The oracle for some pairs of a spectrum, worked out once for all paths."""
    pairs = some_pairs(width)
    return pairs, *exactly(base, width, pairs, list(positions))


def error(got: Pair, base: float, width: int, positions: tuple[float, ...]) -> float:
    """The largest error of cos or sin; infinite where one of them is not finite or not there."""
    pairs, *true = truth(base, width, positions)
    worst = 0.0
    for table, values in zip(got, true, strict=True):
        assert table.shape == (len(positions), width // 2)
        differences = np.abs(table.detach().double().numpy()[:, pairs] - values)
        worst = max(worst, float(np.nan_to_num(differences, nan=math.inf).max()))
    return worst


def formula(positions: Tensor, of: str, dtype: torch.dtype) -> Pair:
    return phase.cos_sin_with_float64(positions, device_words(of, CPU), dtype)


def formula_without_float64(positions: Tensor, of: str, dtype: torch.dtype) -> Pair:
    assert dtype == torch.float32
    return phase.cos_sin_without_float64(positions, device_words(of, CPU))


def kernel(level: native.Level) -> Path:
    def fill(positions: Tensor, of: str, dtype: torch.dtype) -> Pair:
        cos, sin = (torch.full((len(positions), len(of) // 24), math.nan, dtype=dtype) for _ in "cs")
        assert native.fill_table(positions, native_words(of), cos, sin, at=level)
        return cos, sin

    return fill


WITH_FLOAT64: dict[str, Path] = {"cos_sin": cos_sin, "formula": formula}
WITH_FLOAT64 |= {f"kernel {level.name.lower()}": kernel(level) for level in native.levels()}
PATHS = WITH_FLOAT64 | {"formula without float64": formula_without_float64}


def same_bits(got: Pair, expected: Pair) -> bool:
    return all(
        one.dtype == two.dtype and one.shape == two.shape and one.numpy().tobytes() == two.numpy().tobytes()
        for one, two in zip(got, expected, strict=True)
    )


# ---- integer positions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", [False, True], ids=["int64", "int32"])
@pytest.mark.parametrize("name", PATHS)
def test_float32_tables_are_within_7e_8_at_every_position(name: str, narrow: bool) -> None:
    positions = torch.tensor(POSITIONS, dtype=torch.int32 if narrow else torch.int64)
    for base, width in SPECTRA:
        table = PATHS[name](positions, words(base, width), torch.float32)
        assert table[0].dtype == table[1].dtype == torch.float32
        assert error(table, base, width, POSITIONS) <= FLOAT32_BOUND


@pytest.mark.parametrize("name", WITH_FLOAT64)
def test_float64_tables_are_within_1e_15_at_every_position(name: str) -> None:
    positions = torch.tensor(POSITIONS)
    for base, width in SPECTRA:
        table = WITH_FLOAT64[name](positions, words(base, width), torch.float64)
        assert table[0].dtype == table[1].dtype == torch.float64
        assert error(table, base, width, POSITIONS) <= FLOAT64_BOUND


@settings(deadline=None, max_examples=60)
@given(
    st.integers(-LARGEST, LARGEST),
    st.floats(100, 1e7),
    st.integers(1, 256).flatmap(lambda pairs: st.tuples(st.just(2 * pairs), st.integers(0, pairs - 1))),
)
def test_any_position_base_and_pair_are_within_the_bounds(position: int, base: float, place: tuple[int, int]) -> None:
    width, j = place
    true = np.concatenate(exactly(base, width, [j], [position]))[:, 0]
    of = words(base, width)
    for dtype, bound, paths in ((torch.float32, FLOAT32_BOUND, PATHS), (torch.float64, FLOAT64_BOUND, WITH_FLOAT64)):
        for name, path in paths.items():
            got = torch.stack(path(torch.tensor([position]), of, dtype))[:, 0, j]
            assert np.abs(got.double().numpy() - true).max() <= bound, name


@pytest.mark.parametrize("name", PATHS)
def test_float32_tables_are_all_but_rounded_once_all_around_the_turn(name: str) -> None:
    """130 000 phases, dense enough to meet the worst rounding in every eighth of a turn; half a unit is 2.98e-8."""
    positions = torch.arange(-5_000, 5_000, 2)
    of = words(500.0, 52)
    true = formula(positions, of, torch.float64)  # within 1e-15, as shown above
    bound = 6e-8 if name == "formula without float64" else 3.08e-8
    for got, expected in zip(PATHS[name](positions, of, torch.float32), true, strict=True):
        assert (got.double() - expected).abs().max() <= bound


def test_float32_angles_would_fail_the_same_comparison() -> None:
    """What others do: the product of a float32 position and a float32 frequency."""
    theta = torch.tensor([1e4 ** (-2 * j / 128) for j in range(64)])
    angles = torch.tensor(POSITIONS).float()[:, None] * theta
    assert error((angles.cos(), angles.sin()), 1e4, 128, POSITIONS) > 0.1
    near = torch.tensor([4_095.0])[:, None] * theta
    assert error((near.cos(), near.sin()), 1e4, 128, (4_095,)) > 100 * FLOAT32_BOUND


def test_float64_angles_would_fail_the_same_comparison() -> None:
    theta = torch.tensor([1e4 ** (-2 * j / 128) for j in range(64)], dtype=torch.float64)
    angles = torch.tensor(POSITIONS).double()[:, None] * theta
    assert error((angles.cos(), angles.sin()), 1e4, 128, POSITIONS) > 1e6 * FLOAT64_BOUND


def test_position_zero_is_no_turn_and_a_negative_position_turns_back() -> None:
    for name, path in PATHS.items():
        cos, sin = path(torch.tensor([0, 5, -5]), words(), torch.float32)
        assert cos[0].eq(1).all(), name
        assert sin[0].eq(0).all(), name
        assert cos[1].equal(cos[2]), name
        assert sin[1].equal(-sin[2]), name
        assert sin[1].ne(sin[2]).all(), name


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.uint8])
@pytest.mark.parametrize("path", [cos_sin, phase._by_formula], ids=["cos_sin", "formula"])
def test_every_integer_type_gives_the_same_bits(path: Path, dtype: torch.dtype) -> None:
    lowest = 0 if dtype == torch.uint8 else -128
    positions = torch.tensor([0, 1, 2, 100, 127, lowest])
    assert same_bits(path(positions.to(dtype), words(), torch.float32), path(positions, words(), torch.float32))


def test_positions_may_be_strided_views() -> None:
    positions = torch.arange(24).view(4, 6)
    of = words()
    for view in (positions.T, positions[:, ::2], positions[1:3, 2], torch.tensor([[7], [9]]).expand(2, 5)):
        for strided in (view, view.double(), view.to(torch.int32)):
            packed = strided.contiguous()
            assert same_bits(cos_sin(strided, of), cos_sin(packed, of))
    assert not same_bits(cos_sin(positions.T, of), cos_sin(positions.reshape(6, 4), of))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.float32, torch.float64])
def test_tables_have_the_shape_of_the_positions_and_one_column_a_pair(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (1,), (5,), (2, 5), (2, 0), (2, 3, 5)):
        for out in (torch.float32, torch.float64):
            cos, sin = cos_sin(torch.zeros(shape, dtype=dtype), words(), out)
            assert cos.shape == sin.shape == (*shape, 4)
            assert cos.dtype == sin.dtype == out
            assert cos.eq(1).all()
            assert sin.eq(0).all()


def test_each_row_of_positions_has_its_own_table() -> None:
    positions = torch.tensor([[0, 1, 2], [70_000, -3, 2]])
    cos, sin = cos_sin(positions, words())
    for row in range(2):
        assert same_bits((cos[row], sin[row]), cos_sin(positions[row], words()))
    assert not cos[0, :2].eq(cos[1, :2]).any(-1).all()


def test_tables_are_made_again_and_never_shared() -> None:
    first, second = cos_sin(torch.arange(5), words()), cos_sin(torch.arange(5), words())
    first[0].zero_()
    assert second[0][0].eq(1).all()


# ---- real positions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float64_positions_are_as_exact_as_integers(dtype: torch.dtype) -> None:
    positions = torch.tensor(REALS, dtype=torch.float64)
    for base, width in SPECTRA:
        table = cos_sin(positions, words(base, width), dtype)
        assert error(table, base, width, REALS) <= (FLOAT64_BOUND if dtype == torch.float64 else FLOAT32_BOUND)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_positions_mean_what_they_hold(dtype: torch.dtype) -> None:
    positions = torch.tensor([0.1, 100.3, -5_000.7, 131_071.3, 8_388_607.5, 16_777_217.0, -2_147_483_520.0])
    for base, width in SPECTRA:
        table = cos_sin(positions, words(base, width), dtype)
        bound = FLOAT64_BOUND if dtype == torch.float64 else FLOAT32_BOUND
        assert error(table, base, width, tuple(positions.tolist())) <= bound


def test_real_positions_are_within_7e_8_without_float64() -> None:
    positions = torch.tensor([*REALS[:-2], 2_147_483_520.0, -2_147_483_520.0])
    for base, width in SPECTRA:
        table = formula_without_float64(positions, words(base, width), torch.float32)
        assert error(table, base, width, tuple(positions.tolist())) <= FLOAT32_BOUND


@settings(deadline=None, max_examples=60)
@given(st.floats(-LARGEST, LARGEST), st.floats(100, 1e7), st.integers(1, 64))
def test_any_real_position_is_within_the_bound(position: float, base: float, pairs: int) -> None:
    got = torch.stack(cos_sin(torch.tensor([position], dtype=torch.float64), words(base, 2 * pairs), torch.float64))
    true = np.stack(exactly(base, 2 * pairs, [pairs - 1], [position]))
    assert np.abs(got.numpy()[:, :, -1:] - true).max() <= FLOAT64_BOUND


def test_a_fraction_of_a_position_is_not_dropped() -> None:
    whole, real = (torch.stack(cos_sin(torch.tensor([p], dtype=torch.float64), words())) for p in (7.0, 7.001))
    assert (whole - real)[..., 0].abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_numbers_given_as_floats_give_the_table_of_the_integers(dtype: torch.dtype) -> None:
    whole = [p for p in POSITIONS if dtype == torch.float64 or abs(p) < 2**24]
    integers, reals = torch.tensor(whole), torch.tensor(whole, dtype=dtype)
    assert reals.tolist() == whole
    for out in (torch.float32, torch.float64):
        assert same_bits(formula(reals, words(), out), formula(integers, words(), out))
        assert same_bits(cos_sin(reals, words(), out), formula(integers, words(), out))
    if dtype == torch.float32:  # a device without float64 has no such positions either
        got, expected = (formula_without_float64(p, words(), torch.float32) for p in (reals, integers))
        assert same_bits(got, expected)


# ---- gradients of real positions -------------------------------------------------------------------------------------


def test_real_positions_have_exact_gradients() -> None:
    positions = torch.tensor([0.3, -2.7, 55.5, 4.0], dtype=torch.float64, requires_grad=True)
    of = words()

    def table(p: Tensor) -> Pair:
        return cos_sin(p, of, torch.float64)

    assert torch.autograd.gradcheck(table, (positions,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(table, (positions,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("position", [0.5, 131_071.25, -8_388_607.5])
def test_gradients_are_the_frequency_times_the_quarter_turned_table(position: float, dtype: torch.dtype) -> None:
    positions = torch.tensor([position], dtype=dtype, requires_grad=True)
    cos, sin = cos_sin(positions, words(1e4, 8), dtype)
    assert cos.requires_grad
    assert sin.requires_grad
    true_cos, true_sin = exactly(1e4, 8, [0, 1, 2, 3], [position])
    theta = np.array([1, 0.1, 0.01, 0.001])
    tolerance = 1e-14 if dtype == torch.float64 else 2e-7
    for table, slope in ((cos, -true_sin * theta), (sin, true_cos * theta)):
        for j in range(4):
            (gradient,) = torch.autograd.grad(table[0, j], positions, retain_graph=True)
            assert abs(gradient.item() - slope[0, j]) <= tolerance
    assert abs(true_sin[0, 1]) > 1e-3


def test_positions_that_require_gradients_give_the_same_bits_as_those_that_do_not() -> None:
    positions = torch.tensor(REALS, dtype=torch.float64)
    attached = cos_sin(positions.clone().requires_grad_(), words())
    assert same_bits((attached[0].detach(), attached[1].detach()), cos_sin(positions, words()))


def test_positions_that_do_not_require_gradients_are_constants() -> None:
    for positions in (torch.arange(3), torch.rand(3)):
        assert not any(table.requires_grad for table in cos_sin(positions, words()))


def test_real_positions_have_gradients_without_float64_too() -> None:
    positions = torch.tensor([0.3, -2.7, 131_071.25], requires_grad=True)
    cos, sin = formula_without_float64(positions, words(), torch.float32)
    (2 * cos + sin).sum().backward()
    expected = torch.tensor([0.3, -2.7, 131_071.25], requires_grad=True)
    cos, sin = formula(expected, words(), torch.float32)
    (2 * cos + sin).sum().backward()
    assert positions.grad is not None
    assert expected.grad is not None
    torch.testing.assert_close(positions.grad, expected.grad, rtol=1e-6, atol=1e-6)
    assert expected.grad.abs().min() > 0.1


# ---- what is refused -------------------------------------------------------------------------------------------------

BEYOND = "`positions` must be within ±2147483647, but is {}."
NO_TYPE = "`positions` must be of an integer type, float32 or float64, but is {}."
HALF = " Half precision cannot even count past 256 or 2048."


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool, torch.complex64])
def test_positions_of_another_type_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError) as caught:
        cos_sin(torch.zeros(3, dtype=dtype), words())
    assert str(caught.value) == NO_TYPE.format(dtype) + (HALF if dtype.is_floating_point else "")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_tables_of_another_type_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError) as caught:
        cos_sin(torch.arange(3), words(), dtype)
    rule = "`dtype` must be torch.float32 or torch.float64"
    assert str(caught.value) == f"{rule}, but is {dtype}. The result of `rotate` has the type of x."


@pytest.mark.parametrize(
    ("positions", "told"),
    [
        (torch.tensor([0, 2**31]), "2147483648"),
        (torch.tensor([0, -(2**31)]), "-2147483648"),
        (torch.tensor([-(2**31)], dtype=torch.int32), "-2147483648"),
        (torch.tensor([[0, 2**62], [1, 1]]), "4611686018427387904"),
        (torch.tensor(-(2**63)), "-9223372036854775808"),
        (torch.tensor([2.0**31], dtype=torch.float64), "2147483648.0"),
        (torch.tensor([LARGEST + 0.5], dtype=torch.float64), "2147483647.5"),
        (torch.tensor([2.0**31]), "2147483648.0"),
        (torch.tensor([-(2.0**31)]), "-2147483648.0"),
        (torch.tensor([0.0, math.nan]), "nan"),
        (torch.tensor([math.inf, 0.0]), "inf"),
        (torch.tensor([-math.inf], dtype=torch.float64), "-inf"),
    ],
)
def test_positions_beyond_31_bits_are_refused_on_every_path(positions: Tensor, told: str) -> None:
    sentence = BEYOND.format(told)
    with pytest.raises(InputError) as caught:
        cos_sin(positions, words())
    assert str(caught.value) == sentence
    with pytest.raises(InputError) as caught:
        phase._by_formula(positions, words(), torch.float64)
    assert str(caught.value) == sentence
    if positions.is_floating_point():
        with pytest.raises(InputError) as caught:
            cos_sin(positions.clone().requires_grad_(), words())
        assert str(caught.value) == sentence


def test_positions_of_just_31_bits_pass() -> None:
    edge = torch.tensor([LARGEST, -LARGEST])
    for positions in (edge, edge.to(torch.int32), edge.double(), torch.tensor([2.0**31 - 128])):
        assert cos_sin(positions, words())[0].isfinite().all()


# ---- compilers, transforms, abstract tensors -------------------------------------------------------------------------


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


COMPILERS = [
    "eager",
    "aot_eager",
    pytest.param(
        "inductor",
        marks=pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="needs a C++ compiler"),
    ),
]


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("backend", COMPILERS)
def test_compiled_tables_are_the_same_bits(backend: str) -> None:
    of = words(5e5, 128)
    compiled = torch.compile(lambda p: cos_sin(p, of), fullgraph=True, dynamic=True, backend=backend)
    for positions in (torch.arange(4_000, 4_007), torch.tensor(POSITIONS), torch.tensor(REALS, dtype=torch.float64)):
        assert same_bits(compiled(positions), cos_sin(positions, of))
    assert not same_bits(compiled(torch.arange(7)), cos_sin(torch.arange(1, 8), of))


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_tables_refuse_positions_beyond_31_bits() -> None:
    of = words()
    compiled = torch.compile(lambda p: cos_sin(p, of)[0], fullgraph=True, backend="aot_eager")
    with pytest.raises(InputError) as caught:
        compiled(torch.tensor([2**31]))
    assert str(caught.value) == BEYOND.format("2147483648")


@pytest.mark.usefixtures("_fresh_compiler")
def test_gradients_of_positions_compile_without_a_warning() -> None:
    of = words(321.0)
    compiled = torch.compile(lambda p: cos_sin(p, of), fullgraph=True, backend="aot_eager")
    gradients = []
    for table in (compiled, lambda p: cos_sin(p, of)):
        positions = torch.tensor([0.3, 7.5], requires_grad=True)
        cos, sin = table(positions)
        (cos + 2 * sin).sum().backward()
        gradients.append(positions.grad)
    assert gradients[0] is not None
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
    assert gradients[0].abs().min() > 0.1


class Tables(nn.Module):
    """What a model that makes its tables looks like to an exporter."""

    def forward(self, positions: Tensor) -> Pair:
        return cos_sin(positions, words(5e5, 128))


def test_exported_tables_are_one_operator_and_the_same_bits_at_any_length() -> None:
    dynamic = {"positions": {0: torch.export.Dim("length", min=2, max=100_000)}}
    program = torch.export.export(Tables(), (torch.arange(5),), dynamic_shapes=dynamic)
    calls = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert torch.ops.ropewalk.table.default in calls
    for positions in (torch.arange(5), torch.arange(-20, 3_000), torch.tensor(POSITIONS)):
        assert same_bits(program.module()(positions), Tables()(positions))


@pytest.mark.parametrize("kind", ["integer", "real"])
def test_mapped_tables_are_the_bits_of_the_formula(kind: str) -> None:
    positions = torch.tensor([[0, 5, 70_000], [LARGEST, -4, 9]])
    positions = positions if kind == "integer" else positions + torch.tensor(0.25, dtype=torch.float64)
    of = words(5e5, 128)
    mapped = torch.vmap(lambda p: cos_sin(p, of))(positions)
    assert same_bits(mapped, formula(positions, of, torch.float32))
    across = torch.vmap(lambda p: cos_sin(p, of), in_dims=1, out_dims=1)(positions)
    assert same_bits(across, mapped)
    assert not same_bits(mapped, formula(positions.flip(0), of, torch.float32))


def test_forward_mode_and_functional_gradients_agree() -> None:
    positions, of = torch.tensor([0.3, 70_000.25], dtype=torch.float64), words()

    def total(p: Tensor) -> Tensor:
        cos, sin = cos_sin(p, of, torch.float64)
        return (cos + 2 * sin).sum()

    gradient = torch.func.grad(total)(positions)
    along = torch.func.jvp(total, (positions,), (torch.tensor([1.0, 0.0], dtype=torch.float64),))[1]
    torch.testing.assert_close(along, gradient[0], rtol=1e-12, atol=1e-12)
    assert abs(along.item()) > 0.1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float64])
def test_abstract_positions_give_abstract_tables(dtype: torch.dtype) -> None:
    positions = torch.zeros(2, 5, dtype=dtype)
    for out in (torch.float32, torch.float64):
        on_meta = cos_sin(positions.to("meta"), words(), out)
        with FakeTensorMode() as mode:
            fake = cos_sin(mode.from_tensor(positions), words(), out)
        for table, device in (*((x, "meta") for x in on_meta), *((x, "cpu") for x in fake)):
            assert (table.shape, table.dtype, table.device.type) == ((2, 5, 4), out, device)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.float32, torch.float64])
def test_the_operator_keeps_what_torch_asks_of_operators(dtype: torch.dtype) -> None:
    for out in (torch.float32, torch.float64):
        results = torch.library.opcheck(torch.ops.ropewalk.table, (torch.arange(6).to(dtype), words(), out))
        assert set(results.values()) == {"SUCCESS"}


def under_fake_tensors(of: str) -> None:
    with FakeTensorMode():
        cos_sin(torch.zeros(3, requires_grad=True), of)


def under_symbolic_tracing(of: str) -> None:
    make_fx(lambda p: cos_sin(p, of), tracing_mode="symbolic")(torch.ones(3, requires_grad=True))


def under_functional_gradient(of: str) -> None:
    torch.func.grad(lambda p: cos_sin(p, of)[0].sum())(torch.ones(3))


def under_vmap(of: str) -> None:
    torch.vmap(lambda p: cos_sin(p, of))(torch.ones(3, 2))


def under_inference_mode(of: str) -> None:
    with torch.inference_mode():
        cos_sin(torch.ones(3), of)
        cos_sin(torch.arange(3), of)


def under_another_default_device(of: str) -> None:
    with torch.device("meta"):
        cos_sin(torch.zeros(3, device="cpu"), of)
        cos_sin(torch.zeros(3, dtype=torch.int64, device="cpu"), of)


SURROUNDINGS = (
    under_fake_tensors,
    under_symbolic_tracing,
    under_functional_gradient,
    under_vmap,
    under_inference_mode,
    under_another_default_device,
)


@pytest.mark.parametrize("place", range(len(SURROUNDINGS)), ids=[f.__name__ for f in SURROUNDINGS])
def test_no_surroundings_of_a_first_call_change_a_later_one(place: int) -> None:
    of = words(1_000.0 + place, 12)  # of their own, so that nothing has been remembered for them
    SURROUNDINGS[place](of)
    assert type(device_words(of, CPU)) is Tensor
    assert torch._C._functorch.maybe_get_level(device_words(of, CPU)) == -1
    integers, reals = torch.arange(3), torch.tensor([0.5, 1.5, -7.0], requires_grad=True)
    assert same_bits(cos_sin(integers, of, torch.float64), kernel_or_formula(integers, of))
    cos, sin = cos_sin(reals, of)
    (cos + sin).sum().backward()
    assert reals.grad is not None
    assert reals.grad.isfinite().all()


@pytest.mark.parametrize("place", range(len(SURROUNDINGS)), ids=[f.__name__ for f in SURROUNDINGS])
def test_no_surroundings_mind_an_earlier_call(place: int) -> None:
    of = words(2_000.0 + place, 12)
    before = cos_sin(torch.arange(3), of), cos_sin(torch.rand(3), of)
    SURROUNDINGS[place](of)
    assert same_bits(cos_sin(torch.arange(3), of), before[0])


def kernel_or_formula(positions: Tensor, of: str) -> Pair:
    """The table from words that were never remembered."""
    fresh = torch.tensor([int(of[at : at + 8], 16) for at in range(0, len(of), 8)]).view(3, -1)
    if not native.available():
        return phase.cos_sin_with_float64(positions, fresh, torch.float64)
    cos, sin = torch.empty(2, len(positions), fresh.shape[1], dtype=torch.float64)
    assert native.fill_table(positions, fresh.to(torch.int32), cos, sin)
    return cos, sin


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "width"), SPECTRA)
def test_words_are_the_frequencies_in_turns_to_96_bits(base: float, width: int) -> None:
    of, pairs = words(base, width), width // 2
    rows = [[of[8 * (word * pairs + j) :][:8] for j in range(pairs)] for word in range(3)]
    with mpmath.workdps(60):
        for j in some_pairs(width):
            held = int("".join(row[j] for row in rows), 16)
            turns = mpmath.mpf(base) ** (mpmath.mpf(-2 * j) / width) / (2 * mpmath.pi)
            assert abs(mpmath.mpf(held) - turns * 2**96) <= mpmath.mpf("0.5")


def test_words_are_text_of_24_digits_a_pair() -> None:
    for pairs in (1, 4, 64):
        of = words(1e4, 2 * pairs)
        assert len(of) == 24 * pairs
        assert set(of) <= set("0123456789abcdef")


def test_one_radian_is_the_well_known_fraction_of_a_turn() -> None:
    assert words(1e4, 2) == "28be60db" + "9391054a" + "7f09d5f4"  # 1 / 2 pi in hexadecimal


def test_words_are_equal_for_equal_spectra_only() -> None:
    assert words(10_000, 64) == words(10_000.0, 64)
    assert len({words(1e4, 64), words(1e4 + 1e-6, 64), words(1e4, 62), words(5e5, 64)}) == 4


def test_whole_turns_and_signs_of_a_frequency_drop_out() -> None:
    with mpmath.workdps(80), decimal.localcontext(decimal.Context(prec=70)):
        turn = decimal.Decimal(mpmath.nstr(2 * mpmath.pi, 75))
        quarter, back, more = turn / 4, -turn / 4, turn * 3 + turn / 4
    assert words_of([quarter]) == words_of([more]) == "40000000" + "0" * 16
    assert words_of([back]) == "c0000000" + "0" * 16


def test_words_reach_the_kernels_bit_by_bit() -> None:
    of = words(5e5, 6)
    values = [int(of[at : at + 8], 16) for at in range(0, len(of), 8)]
    on_device, for_kernel = device_words(of, CPU), native_words(of)
    assert (on_device.shape, on_device.dtype, on_device.flatten().tolist()) == ((3, 3), torch.int64, values)
    assert (for_kernel.shape, for_kernel.dtype) == ((3, 3), torch.int32)
    assert [value % 2**32 for value in for_kernel.flatten().tolist()] == values
    assert max(values) >= 2**31  # a word whose sign bit is set: unsigned is not the same as signed


def test_words_are_turned_into_a_tensor_once() -> None:
    assert device_words(words(), CPU) is device_words(words(), CPU)
    assert native_words(words()) is native_words(words())
    assert device_words(words(), CPU) is not device_words(words(77.0), CPU)
