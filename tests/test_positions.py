"""Positions against plain Python loops over rows, documents and tokens, and on devices that hold no values."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from ropewalk.errors import InputError
from ropewalk.positions import consecutive, from_cu_seqlens, from_lengths, from_mask

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
quickly = settings(deadline=None, max_examples=60)
integer_types = st.sampled_from(INTEGERS)
documents = st.lists(st.integers(0, 9), max_size=8)
masks = st.integers(1, 12).flatmap(
    lambda length: st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=4)
)


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ---- consecutive -----------------------------------------------------------------------------------------------------


@quickly
@given(st.integers(0, 40), st.integers(-(2**31) + 1, 2**31 - 1))
def test_tokens_count_on_from_an_offset(length: int, offset: int) -> None:
    positions = consecutive(length, offset=offset)
    assert positions.tolist() == [offset + i for i in range(length)]
    assert positions.dtype == torch.int64


def test_tokens_count_from_zero_unless_told_otherwise() -> None:
    assert consecutive(4).tolist() == [0, 1, 2, 3]
    assert consecutive(4, offset=1).tolist() == [1, 2, 3, 4]


@quickly
@given(st.integers(0, 10), st.lists(st.integers(0, 127), max_size=5), integer_types)
def test_each_row_counts_on_from_its_own_offset(length: int, offsets: list[int], dtype: torch.dtype) -> None:
    positions = consecutive(length, offset=torch.tensor(offsets, dtype=dtype))
    assert positions.shape == (len(offsets), length)
    assert positions.tolist() == [[offset + i for i in range(length)] for offset in offsets]
    assert positions.dtype == torch.int64


@pytest.mark.parametrize(("dtype", "last"), [(torch.uint8, 255), (torch.int8, 127), (torch.int16, 32_767)])
def test_a_narrow_offset_does_not_wrap_around(dtype: torch.dtype, last: int) -> None:
    assert consecutive(3, offset=torch.tensor([last], dtype=dtype)).tolist() == [[last, last + 1, last + 2]]


def test_positions_are_made_on_the_device_that_is_asked_for_or_that_of_the_offsets() -> None:
    assert consecutive(3, device="meta").device.type == "meta"
    assert consecutive(3, offset=torch.zeros(2, dtype=torch.int64, device="meta")).device.type == "meta"
    assert consecutive(3).device.type == "cpu"


# ---- padded batches --------------------------------------------------------------------------------------------------


def counted(row: list[bool]) -> list[int]:
    """Real tokens count from 0, padding stands at 0."""
    positions, seen = [], 0
    for real in row:
        positions.append(seen if real else 0)
        seen += real
    return positions


@quickly
@given(masks, st.sampled_from((torch.bool, *INTEGERS)))
def test_real_tokens_of_any_mask_count_from_zero_and_padding_stands_at_zero(
    rows: list[list[bool]], dtype: torch.dtype
) -> None:
    positions = from_mask(torch.tensor(rows).to(dtype))
    assert positions.tolist() == [counted(row) for row in rows]
    assert positions.dtype == torch.int64


@pytest.mark.parametrize(
    ("mask", "positions"),
    [
        ([0, 0, 1, 1, 1], [0, 0, 0, 1, 2]),
        ([1, 1, 1, 0, 0], [0, 1, 2, 0, 0]),
        ([1, 0, 1, 0, 1], [0, 0, 1, 0, 2]),
        ([1, 1, 1, 1, 1], [0, 1, 2, 3, 4]),
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    ],
    ids=["left", "right", "middle", "none", "all"],
)
def test_padding_at_either_end_and_between_worked_by_hand(mask: list[int], positions: list[int]) -> None:
    assert from_mask(torch.tensor([mask])).tolist() == [positions]
    assert from_mask(torch.tensor([mask], dtype=torch.bool)).tolist() == [positions]


def test_more_than_127_tokens_of_a_narrow_mask_do_not_wrap_around() -> None:
    assert from_mask(torch.ones(1, 300, dtype=torch.int8)).tolist() == [list(range(300))]


def test_each_row_of_a_mask_is_counted_alone() -> None:
    first = from_mask(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    second = from_mask(torch.tensor([[1, 1, 1], [1, 1, 1]]))
    assert first[1].tolist() == second[1].tolist() == [0, 1, 2]
    assert first[0].tolist() != second[0].tolist()


# ---- packed documents ------------------------------------------------------------------------------------------------


def packed(lengths: list[int], total: int) -> list[int]:
    """Each document counts from 0, and so do the tokens behind the last one."""
    counts = [token for length in lengths for token in range(length)]
    return (counts + list(range(total)))[:total]


@quickly
@given(documents, st.integers(0, 5), integer_types)
def test_packed_documents_count_from_zero_each(lengths: list[int], tail: int, dtype: torch.dtype) -> None:
    total = sum(lengths) + tail
    positions = from_lengths(torch.tensor(lengths, dtype=dtype), total=total)
    assert positions.tolist() == packed(lengths, total)
    assert positions.dtype == torch.int64


@quickly
@given(documents, st.integers(0, 5), integer_types)
def test_running_sums_say_the_same_as_lengths(lengths: list[int], tail: int, dtype: torch.dtype) -> None:
    total = sum(lengths) + tail
    sums = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    positions = from_cu_seqlens(torch.tensor(sums, dtype=dtype), total=total)
    assert positions.tolist() == packed(lengths, total)
    assert positions.dtype == torch.int64


@pytest.mark.parametrize(
    ("lengths", "total", "positions"),
    [
        ([3, 2], 5, [0, 1, 2, 0, 1]),
        ([3, 2], 8, [0, 1, 2, 0, 1, 0, 1, 2]),
        ([0, 3, 0, 0, 2, 0], 6, [0, 1, 2, 0, 1, 0]),
        ([0, 0], 2, [0, 1]),
        ([], 3, [0, 1, 2]),
        ([4], 0, []),
        ([4, 4], 6, [0, 1, 2, 3, 0, 1]),
    ],
    ids=["full", "tail", "empty documents", "only empty", "none", "no tokens", "cut short"],
)
def test_packing_worked_by_hand(lengths: list[int], total: int, positions: list[int]) -> None:
    sums = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert from_lengths(torch.tensor(lengths, dtype=torch.int32), total=total).tolist() == positions
    assert from_cu_seqlens(torch.tensor(sums, dtype=torch.int32), total=total).tolist() == positions


def test_narrow_lengths_that_sum_beyond_their_type_do_not_wrap_around() -> None:
    assert from_lengths(torch.tensor([100, 100], dtype=torch.int8), total=201).tolist() == packed([100, 100], 201)


def test_moving_a_boundary_moves_the_positions() -> None:
    first, second = (from_lengths(torch.tensor(lengths), total=5).tolist() for lengths in ([2, 3], [3, 2]))
    assert first == [0, 1, 0, 1, 2]
    assert second == [0, 1, 2, 0, 1]


# ---- without values on the host --------------------------------------------------------------------------------------

Maker = Callable[[Tensor], Tensor]
MAKERS: dict[str, tuple[Maker, Tensor]] = {
    "consecutive": (lambda offset: consecutive(7, offset=offset), torch.tensor([3, 0])),
    "from_mask": (from_mask, torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 0]])),
    "from_lengths": (lambda lengths: from_lengths(lengths, total=7), torch.tensor([2, 0, 4])),
    "from_cu_seqlens": (lambda sums: from_cu_seqlens(sums, total=7), torch.tensor([0, 2, 2, 6])),
}


@pytest.mark.parametrize("name", MAKERS)
def test_positions_are_made_where_there_are_no_values_to_read(name: str) -> None:
    make, values = MAKERS[name]
    real = make(values)
    abstract = make(values.to("meta"))
    assert (abstract.shape, abstract.dtype, abstract.device.type) == (real.shape, torch.int64, "meta")
    with FakeTensorMode() as mode:
        fake = make(mode.from_tensor(values))
    assert (fake.shape, fake.dtype, fake.device.type) == (real.shape, torch.int64, "cpu")


def test_reading_a_value_on_the_host_would_be_seen() -> None:
    with FakeTensorMode() as mode, pytest.raises(torch._subclasses.fake_tensor.DataDependentOutputException):
        mode.from_tensor(torch.tensor([2, 3])).sum().item()
    with pytest.raises(RuntimeError, match="meta tensors"):
        torch.tensor([2, 3], device="meta").sum().item()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("name", MAKERS)
def test_positions_compile_into_one_graph_with_the_same_values(name: str) -> None:
    make, values = MAKERS[name]
    compiled = torch.compile(make, fullgraph=True, backend="eager")
    assert compiled(values).tolist() == make(values).tolist()
    assert compiled(values.flip(0)).tolist() == make(values.flip(0)).tolist()


@pytest.mark.usefixtures("_fresh_compiler")
def test_lengths_that_vary_compile_once() -> None:
    counter = CompileCounter()
    packing = torch.compile(
        lambda x, total: from_lengths(x, total=total), fullgraph=True, dynamic=True, backend=counter
    )
    for total in range(8, 28):
        lengths = torch.tensor([3] * (total // 4))
        assert packing(lengths, total).tolist() == packed(lengths.tolist(), total)
    assert counter.frame_count == 1


@pytest.mark.usefixtures("_fresh_compiler")
def test_offsets_that_vary_compile_at_most_twice() -> None:
    counter = CompileCounter()
    counting = torch.compile(
        lambda length, offset: consecutive(length, offset=offset), fullgraph=True, dynamic=True, backend=counter
    )
    for offset in range(2, 22):
        assert counting(5 + offset, offset).tolist() == list(range(offset, 5 + 2 * offset))
    assert counter.frame_count <= 2


# ---- bad input -------------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "float offset": (
        lambda: consecutive(3, offset=torch.tensor([1.0])),
        "`offset` must be of an integer type, but is torch.float32.",
    ),
    "bool offset": (
        lambda: consecutive(3, offset=torch.tensor([True])),
        "`offset` must be of an integer type, but is torch.bool.",
    ),
    "offset without rows": (
        lambda: consecutive(3, offset=torch.tensor(1)),
        "`offset` must be (B,), but is of shape ().",
    ),
    "offset of two dimensions": (
        lambda: consecutive(3, offset=torch.tensor([[1], [2]])),
        "`offset` must be (B,), but is of shape (2, 1).",
    ),
    "float mask": (
        lambda: from_mask(torch.ones(1, 3)),
        "`mask` must be of bool or an integer type, but is torch.float32.",
    ),
    "bool mask of one dimension": (
        lambda: from_mask(torch.ones(3, dtype=torch.bool)),
        "`mask` must be (B, S), but is of shape (3,).",
    ),
    "integer mask of four dimensions": (
        lambda: from_mask(torch.ones(1, 1, 3, 3, dtype=torch.int64)),
        "`mask` must be (B, S), but is of shape (1, 1, 3, 3).",
    ),
    "float lengths": (
        lambda: from_lengths(torch.tensor([1.0, 2.0]), total=3),
        "`lengths` must be of an integer type, but is torch.float32.",
    ),
    "lengths of two dimensions": (
        lambda: from_lengths(torch.tensor([[1, 2]]), total=3),
        "`lengths` must be (N,), but is of shape (1, 2).",
    ),
    "half sums": (
        lambda: from_cu_seqlens(torch.tensor([0.0, 3.0]).half(), total=3),
        "`cu_seqlens` must be of an integer type, but is torch.float16.",
    ),
    "sums of no dimension": (
        lambda: from_cu_seqlens(torch.tensor(3), total=3),
        "`cu_seqlens` must be (N + 1,), but is of shape ().",
    ),
    "no sums": (
        lambda: from_cu_seqlens(torch.tensor([], dtype=torch.int64), total=3),
        "`cu_seqlens` must be (N + 1,), and begin with 0, but is empty.",
    ),
    "a negative length": (lambda: consecutive(-1), "`length` must be at least 0, but is -1."),
    "a real offset": (
        lambda: consecutive(3, offset=0.5),  # type: ignore[arg-type]  # on purpose
        "`offset` must be an integer, or a tensor (B,) of them, but is 0.5.",
    ),
    "a truth for an offset": (
        lambda: consecutive(3, offset=True),
        "`offset` must be an integer, or a tensor (B,) of them, but is True.",
    ),
    "two devices": (
        lambda: consecutive(3, offset=torch.tensor([1]), device="meta"),
        "`device` must be that of `offset`, cpu, or None, but is meta.",
    ),
}


def test_every_number_of_a_mask_but_zero_is_a_token() -> None:
    assert from_mask(torch.tensor([[0, 2, 2, 0], [1, 1, 1, 1]])).tolist() == [[0, 0, 1, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str) -> None:
    call, sentence = BAD[name]
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == sentence
