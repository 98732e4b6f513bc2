"""`Rotary` holds nothing that a cast, a copy, a checkpoint or a thread could change: it turns like a new one."""

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import FLOATS, assert_turned, random
from ropewalk import Pairing, Part, Rotary, phase
from ropewalk.kernels import native

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


def assert_turns_like_a_fresh_one(rope: Callable[..., Any], options: dict[str, Any]) -> None:
    """Bit for bit: in every type, for few tokens and many, near and far, at whole and real positions."""
    for dtype in FLOATS:
        for length, start in ((1, 999_999), (7, 0), (90, 131_071)):
            (q, k), at = inputs(length, dtype), torch.arange(length)
            for positions in (start, at + start, torch.stack((at, at + start)), at / 3):
                got, want = rope(q, k, positions), fresh(options)(q, k, positions)
                assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


class Attention(nn.Module):
    """A model around a rotation, as others write them: cast, moved, saved and loaded as a whole."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.project = nn.Linear(24, 48)
        self.norm = nn.BatchNorm1d(24)  # it has buffers, of float and of int
        self.rope = fresh(options)


# ---- what is done to models ----------------------------------------------------------------------------------------


def through_meta(model: Attention) -> Attention:
    return model.to("meta").to_empty(device="cpu")


def through_float_and_back(model: Attention) -> Attention:
    """After the way through bfloat16 nothing can restore a rounded buffer."""
    return model.to(torch.bfloat16).float()


def through_every_tensor(model: Attention) -> Attention:
    """What engines do that cast parameters and buffers themselves, without calling `.to()`."""
    cast: Attention = model._apply(lambda x: x.bfloat16() if x.is_floating_point() else x)  # type: ignore[no-untyped-call]  # torch's own
    return cast


def through_every_module(model: Attention) -> Attention:
    for module in model.modules():
        module.to(torch.float16)
    return model


def through_attributes(model: Attention) -> Attention:
    """The same by hand: every tensor found as an attribute of any module is overwritten."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                setattr(module, name, torch.zeros_like(value))
    return model


def through_a_file(model: Attention) -> Attention:
    restored: Attention = pickle.loads(pickle.dumps(model))
    return restored


TREATMENTS: list[Callable[[Attention], Attention]] = [
    lambda model: model,
    lambda model: model.to(torch.bfloat16),
    lambda model: model.half(),
    lambda model: model.double(),
    through_float_and_back,
    through_meta,
    through_every_tensor,
    through_attributes,
    copy.deepcopy,
    copy.copy,
    through_a_file,
    lambda model: model.eval().requires_grad_(requires_grad=False),
    through_every_module,
    lambda model: model.share_memory(),
]
TREATMENT_NAMES = [
    "nothing",
    "bfloat16",
    "half",
    "double",
    "bfloat16 and back",
    "meta and to_empty",
    "_apply",
    "attributes",
    "deepcopy",
    "copy",
    "pickle",
    "eval",
    "module by module",
    "share_memory",
]


@configs
@pytest.mark.parametrize("treatment", TREATMENTS, ids=TREATMENT_NAMES)
def test_nothing_done_to_the_model_around_it_changes_the_rotation(
    treatment: Callable[[Attention], Attention], options: dict[str, Any]
) -> None:
    model = Attention(options)
    if treatment is not TREATMENTS[0]:
        model.rope(*inputs(7), 5)  # it has been used before
    assert_turns_like_a_fresh_one(treatment(model).rope, options)


@configs
def test_nothing_done_to_the_rotation_itself_changes_it(options: dict[str, Any]) -> None:
    treatments: list[Callable[[Rotary], nn.Module]] = [
        lambda rope: rope.to(torch.bfloat16),
        lambda rope: rope.half(),
        lambda rope: rope.to("meta").to_empty(device="cpu"),
        copy.deepcopy,
        lambda rope: rope.train(mode=False),
    ]
    for treatment in treatments:
        rope = treatment(fresh(options))
        assert isinstance(rope, Rotary)
        assert_turns_like_a_fresh_one(rope, options)


@configs
def test_made_on_the_meta_device_it_turns_on_the_cpu(options: dict[str, Any]) -> None:
    phase.device_words.cache_clear()
    phase.native_words.cache_clear()
    with torch.device("meta"):
        rope = fresh(options)
        q, k = inputs_on_cpu(7)
        assert rope(q, k, 5)[0].device.type == "cpu"
        assert rope(q, k, torch.arange(7.0, device="cpu"))[0].device.type == "cpu"
    assert_turns_like_a_fresh_one(rope, options)


def inputs_on_cpu(length: int) -> tuple[Tensor, Tensor]:
    return torch.ones(2, 3, length, 24, device="cpu"), torch.ones(2, 1, length, 24, device="cpu")


@pytest.fixture(params=[torch.float64, torch.float16, torch.bfloat16], ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def test_the_default_type_of_torch_does_not_matter(default_dtype: torch.dtype) -> None:
    at = torch.arange(9) + 300
    assert torch.tensor(0.5).dtype == default_dtype
    for options in CONFIGS.values():
        phase.device_words.cache_clear()
        phase.native_words.cache_clear()
        rope, (q, k) = fresh(options), inputs(9)
        assert_turned(rope(q, k, at)[0], q, at, **options)
        assert rope.table(at).dtype == torch.float32


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_autocast_changes_neither_the_type_nor_the_numbers(kind: torch.dtype, dtype: torch.dtype) -> None:
    rope = fresh(CONFIGS["halves"])
    for length in (7, 90):
        q, k = inputs(length, dtype)
        at = torch.arange(length, dtype=torch.float64, requires_grad=True)  # this way runs plain torch operations
        want = *rope(q, k, 5000), *rope(q, k, at)
        with torch.autocast("cpu", dtype=kind):
            got = *rope(q, k, 5000), *rope(q, k, at)
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == kind  # it is really on
        assert all(x.dtype == dtype for x in got)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


# ---- state dicts ---------------------------------------------------------------------------------------------------

FOREIGN = {
    "inv_freq": torch.full((12,), 7.0),
    "freqs": torch.full((12,), 7.0),
    "cos_cached": torch.zeros(2048, 24),
    "rotary_emb.inv_freq": torch.zeros(12),
    "_words": torch.zeros(3, 12),
    "config": torch.zeros(1),
}


def test_it_has_no_state() -> None:
    rope = fresh(CONFIGS["halves"])
    before = dict(vars(rope))
    rope(*inputs(7), 5)
    rope(*inputs(90), 5)
    assert vars(rope) == before  # and a call adds none
    assert rope.state_dict() == {}
    assert list(rope.parameters()) == []
    assert list(rope.buffers()) == []
    assert not any(isinstance(value, Tensor) for value in before.values())
    assert "rope" not in "".join(Attention(CONFIGS["halves"]).state_dict())


@configs
def test_a_foreign_state_dict_changes_nothing(options: dict[str, Any]) -> None:
    rope = fresh(options)
    result = rope.load_state_dict(FOREIGN, strict=False)
    assert sorted(result.unexpected_keys) == sorted(FOREIGN)
    assert result.missing_keys == []
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Rotary:\s+Unexpected key"):
        rope.load_state_dict(FOREIGN)
    rope.load_state_dict({})
    assert_turns_like_a_fresh_one(rope, options)


def test_a_foreign_state_dict_of_the_model_around_it_changes_nothing() -> None:
    options = CONFIGS["adjacent"]
    model = Attention(options)
    foreign = {**model.state_dict(), **{f"rope.{name}": value for name, value in FOREIGN.items()}}
    assert sorted(model.load_state_dict(foreign, strict=False).unexpected_keys) == sorted(f"rope.{n}" for n in FOREIGN)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: \"rope\.inv_freq\""):
        model.load_state_dict(foreign)
    model.load_state_dict(Attention(options).state_dict(), assign=True)
    assert_turns_like_a_fresh_one(model.rope, options)


# ---- threads, and calls one after another --------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["C kernel", "plain"])
def test_sixteen_threads_calling_one_module_get_what_a_fresh_one_gives(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if body == "plain":
        monkeypatch.setattr(native, "available", lambda: False)
    options = CONFIGS["trailing"]
    shared, start = fresh(options), threading.Barrier(16)
    jobs = list(islice(zip(cycle((1, 7, 63, 64, 65, 300)), cycle(FLOATS), range(0, 10**6, 61_111), strict=False), 16))
    wants = [fresh(options)(*inputs(length, dtype), at) for length, dtype, at in jobs]
    failures: list[str] = []
    phase.device_words.cache_clear()
    phase.native_words.cache_clear()

    def work(job: int) -> None:
        length, dtype, at = jobs[job]
        (q, k), modes = inputs(length, dtype), (nullcontext, torch.no_grad, torch.inference_mode)
        start.wait()
        for turn in range(60):
            with modes[(job + turn) % 3]():
                got = shared(q.clone(), k.clone(), at, inplace=bool(turn % 2))
            if not all(torch.equal(a, b) for a, b in zip(got, wants[job], strict=True)):
                failures.append(f"thread {job}, call {turn}")

    threads = [threading.Thread(target=work, args=(job,)) for job in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_no_call_changes_what_a_later_one_returns() -> None:
    """Caches have done it: one filled in bfloat16 and read in float32, one grown by a long text and kept."""
    for options in CONFIGS.values():
        rope = fresh(options)
        for length, dtype in ((2048, torch.bfloat16), (1, torch.float16), (70, torch.float64)):
            rope(*inputs(length, dtype), 1000)
        assert_turns_like_a_fresh_one(rope, options)


def test_two_modules_that_differ_in_one_number_turn_apart() -> None:
    """A cache whose key forgets the base gave the second module the answers of the first."""
    q, k = inputs(9)
    ropes = [fresh({"pairing": Pairing.HALVES, "base": base}) for base in (10_000.0, 500_000.0)]
    near, far = (rope(q, k, 100)[0] for rope in ropes)
    assert not torch.equal(near, far)
    for rope, base in zip(ropes, (10_000.0, 500_000.0), strict=True):
        assert_turned(rope(q, k, 100)[0], q, torch.arange(9) + 100, pairing=Pairing.HALVES, base=base)
    halves, adjacent = (fresh({"pairing": pairing})(q, k, 100)[0] for pairing in Pairing)
    assert not torch.equal(halves, adjacent)
