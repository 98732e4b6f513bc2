"""Time the rotation on a GPU beside `copy_` and its peers: `python benchmarks/gpu_rotate.py > results.jsonl`.

    prefill   q (8, 32, 4096, 128), k (8, 8, 4096, 128)      decode   q (64, 32, 1, 128), k (64, 8, 1, 128)

for bfloat16 and float32, both pairings, (B, H, S, D) and transposed views of (B, S, H, D). One JSON line for each:

    ms         on the device, median, the cache emptied before every call        over_copy   ms / ms of copying q and k
    host_us    what a call costs the host, calls made without waiting            gb_s        bytes read and written / ms

The goals: 1.06 of `copy_` at most in place at prefill, and the least host time at decode. Answers come first: a kernel
that is wrong is not timed, and the script ends with 1. What is not installed does not take part. `--quick` takes short
sequences, to see that everything runs. Without an installation: `PYTHONPATH=src python benchmarks/gpu_rotate.py`.
"""

import argparse
import datetime as dt
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

import ropewalk
from ropewalk import Geometric, Pairing
from ropewalk.kernels import triton_rotate
from ropewalk.phase import device_words, words_of

DEVICE = "cuda"
WIDTH = 128
PAIRS = WIDTH // 2
BASE = 10_000.0
PREFILL, DECODE = (8, 32, 8, 4096), (64, 32, 8, 1)  # B, H of q, H of k, S
QUICK = (1, 4, 2, 256), (4, 4, 2, 1)
HALF_ULP = {torch.float32: 2**-24, torch.bfloat16: 2**-8}
ARITHMETIC = 3e-7  # of |a| + |b|: cos and sin within 7e-8, three roundings in float32
FAR = [0, 1, -1, 4095, 131_071, 1_000_000, 10_000_000, 2**31 - 1, -(2**31 - 1)]

Call = Callable[[], object]
Both = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Work:
    """One input, and where its tokens stand."""

    name: str
    pairing: Pairing
    dtype: torch.dtype
    layout: str
    inputs: Both
    positions: Tensor
    """(S,) at prefill, (B, 1) at decode."""

    @property
    def adjacent(self) -> bool:
        return self.pairing is Pairing.ADJACENT

    def fresh(self) -> Both:
        """Copies in the same layout: what is turned in place must not be the input of the next contender."""
        q, k = (torch.empty_like(x).copy_(x) for x in self.inputs)
        return q, k


def works(quick: bool) -> Iterator[Work]:
    for name, sizes in zip(("prefill", "decode"), QUICK if quick else (PREFILL, DECODE), strict=True):
        for dtype in HALF_ULP:
            for layout in ("BHSD", "BSHD"):
                inputs, positions = _inputs(sizes, dtype, layout)
                for pairing in Pairing:
                    yield Work(
                        name=name, pairing=pairing, dtype=dtype, layout=layout, inputs=inputs, positions=positions
                    )


def _inputs(sizes: tuple[int, int, int, int], dtype: torch.dtype, layout: str) -> tuple[Both, Tensor]:
    batch, *heads, length = sizes
    if layout == "BHSD":
        q, k = (torch.randn(batch, h, length, WIDTH, device=DEVICE, dtype=dtype) for h in heads)
    else:
        q, k = (torch.randn(batch, length, h, WIDTH, device=DEVICE, dtype=dtype).transpose(1, 2) for h in heads)
    at = torch.arange(length, device=DEVICE) if length > 1 else torch.arange(batch, device=DEVICE)[:, None] * 997
    return (q, k), at


# ---- answers -------------------------------------------------------------------------------------------------------


def check_phases(words: str) -> float:
    """The largest error of cos and sin over positions near and far; the oracle counts turns in integers of any size."""
    positions = FAR + list(range(0, 200_000, 997))
    rows = device_words(words, torch.device("cpu")).tolist()
    turns = [(w0 << 64) + (w1 << 32) + w2 for w0, w1, w2 in zip(*rows, strict=True)]
    angles = np.array([[(p * turn % 2**96) / 2**96 for turn in turns] for p in positions]) * 2 * np.pi
    cos, sin = torch.empty(2, 1, len(positions), PAIRS, device=DEVICE)
    triton_rotate.build_table(
        torch.tensor([positions], device=DEVICE), device_words(words, torch.device(DEVICE)), cos, sin
    )
    errors = [abs(got[0].double().cpu().numpy() - want) for got, want in ((cos, np.cos(angles)), (sin, np.sin(angles)))]
    return float(np.max(errors))


def excess(got: Tensor, x: Tensor, work: Work) -> float:
    """How far `got` is from the definition, in units of what one rounding and float32 arithmetic allow: right to 1."""
    theta = BASE ** (-torch.arange(PAIRS, device=DEVICE, dtype=torch.float64) / PAIRS)
    angle = (work.positions.double()[..., None] * theta).expand(x.shape[0], -1, -1)  # (B, S, P)
    index = torch.arange(PAIRS, device=DEVICE)
    a, b = (2 * index, 2 * index + 1) if work.adjacent else (index, index + PAIRS)
    worst = 0.0
    for row, turned, phase in zip(x, got, angle, strict=True):  # one row of the batch at a time: float64 is large
        left, right = row[..., a].double(), row[..., b].double()
        size = ARITHMETIC * (left.abs() + right.abs())
        for channel, want in (
            (a, left * phase.cos() - right * phase.sin()),
            (b, left * phase.sin() + right * phase.cos()),
        ):
            allowed = want.abs() * HALF_ULP[work.dtype] + size
            error = (turned[..., channel].double() - want).abs() / allowed
            worst = max(worst, error.nan_to_num(nan=1e9).max().item())
    return worst


# ---- contenders ----------------------------------------------------------------------------------------------------


def ours(work: Work, words: str) -> Iterator[tuple[str, Callable[[Both], Both]]]:
    """Name, and a function that turns both tensors: the public one, and the bare kernel below it."""
    rope = ropewalk.Rotary(head_dim=WIDTH, pairing=work.pairing, base=BASE)
    rows = device_words(words, torch.device(DEVICE))
    at = work.positions
    cos, sin = torch.empty(2, *(at if at.dim() == 2 else at[None]).shape, PAIRS, device=DEVICE)
    triton_rotate.build_table(at if at.dim() == 2 else at[None], rows, cos, sin)
    turn = {"adjacent": work.adjacent, "first": 0, "inverse": False, "factor": 1.0}

    def kernel_in_place(both: Both) -> Both:
        triton_rotate.rotate_at(both, both, at, rows, **turn)
        return both

    def kernel_of_table(both: Both) -> Both:
        triton_rotate.rotate(both, both, cos, sin, **turn)
        return both

    yield "ropewalk in place", lambda both: rope(*both, at, inplace=True)
    yield "ropewalk", lambda both: rope(*both, at)
    yield "ropewalk, bare kernel in place", kernel_in_place
    yield "ropewalk, bare kernel in place, from a table", kernel_of_table


def peers(work: Work) -> Iterator[tuple[str, Callable[[Both], object]]]:
    """With tables made beforehand, as a model makes them once for all layers."""
    theta = BASE ** (-torch.arange(PAIRS, device=DEVICE, dtype=torch.float64) / PAIRS)
    angle = (work.positions.double()[..., None] * theta).expand(work.inputs[0].shape[0], -1, -1)  # (B, S, P)
    if work.adjacent:
        circle = torch.polar(torch.ones_like(angle), angle).to(torch.complex64)[:, None]
        yield "complex form eager", lambda both: [_by_complex_numbers(x, circle) for x in both]
        return
    try:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    except ImportError as missing:
        print(f"transformers is not timed: {missing}", file=sys.stderr)
        return
    cos, sin = (torch.cat((part, part), -1).to(work.dtype) for part in (angle.cos(), angle.sin()))
    torch.compiler.reset()  # or the ninth shape would silently be run without compilation
    compiled = torch.compile(apply_rotary_pos_emb, fullgraph=True, dynamic=False)
    yield "transformers eager", lambda both: apply_rotary_pos_emb(*both, cos, sin)
    yield "transformers compiled", lambda both: compiled(*both, cos, sin)


def _by_complex_numbers(x: Tensor, circle: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * circle).flatten(-2).type_as(x)


# ---- times ---------------------------------------------------------------------------------------------------------


def milliseconds(call: Call) -> float:
    from triton.testing import do_bench

    return float(do_bench(call, warmup=50, rep=300, return_mode="median"))


def host_microseconds(call: Call, calls: int = 40, rounds: int = 51) -> float:
    """What the host spends on a call: the median round, none so long that it fills the queue of the device."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(calls):
            call()
        times.append((perf_counter() - start) / calls)
    return sorted(times)[rounds // 2] * 1e6


def facts() -> dict[str, object]:
    packages = ("torch", "triton", "transformers", "ropewalk")
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "hardware": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda or torch.version.hip,
        **{name: _version(name) for name in packages},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def measure(work: Work, words: str, known: dict[str, object]) -> bool:
    """Print a line for each contender; False where an answer of ours is wrong."""
    targets = work.fresh()
    copied = milliseconds(lambda: [y.copy_(x) for y, x in zip(targets, work.inputs, strict=True)])
    moved = 2 * sum(x.numel() * x.element_size() for x in work.inputs)
    right = True

    def report(what: str, call: Call, **more: object) -> None:
        ms = milliseconds(call)
        line = {
            "work": work.name,
            "pairing": work.pairing.name,
            "dtype": str(work.dtype).removeprefix("torch."),
            "layout": work.layout,
            "q": tuple(work.inputs[0].shape),
            "k": tuple(work.inputs[1].shape),
            "what": what,
            "ms": round(ms, 5),
            "over_copy": round(ms / copied, 3),
            "gb_s": round(moved / ms / 1e6, 1),
        }
        if work.name == "decode":  # at prefill the queue fills up, and the host waits for the device
            line["host_us"] = round(host_microseconds(call), 2)
        print(json.dumps(line | more | known), flush=True)

    report("copy_", lambda: [y.copy_(x) for y, x in zip(targets, work.inputs, strict=True)])
    for name, turn in ours(work, words):
        turned = turn(work.fresh())
        error = max(excess(y, x, work) for y, x in zip(turned, work.inputs, strict=True))
        if not error <= 1:
            print(f"{name} is wrong ({error:.3g} times what rounding allows): {work}", file=sys.stderr)
            right = False
            continue
        both = work.fresh()
        report(name, lambda turn=turn, both=both: turn(both), excess=round(error, 3))
    for name, turn in peers(work):
        report(name, lambda turn=turn: turn(work.inputs))
    return right


def main() -> int:
    opening, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=opening, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short sequences: the figures say nothing")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or not triton_rotate.available():
        print("This benchmark needs a GPU that torch sees, and Triton.", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    words = words_of(Geometric(width=WIDTH, base=BASE).frequencies())
    error = check_phases(words)
    print(f"cos and sin are within {error:.2g} at positions to 2^31 - 1", file=sys.stderr)
    if not error <= 7e-8:
        return 1
    known = facts()
    with torch.no_grad():
        right = [measure(work, words, known) for work in works(arguments.quick)]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
