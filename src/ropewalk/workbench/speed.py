"""How long turning queries and keys takes, beside copying them: one interleaved run, ratios, answers compared first."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.encodings import Rotary
from ropewalk.pairing import Pairing
from ropewalk.rotation import rotate_both

__all__ = ["Timing", "measure_speed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One way to turn q and k, or one yardstick."""

    dtype: str
    way: str
    milliseconds: float
    against_copy: float
    """Its time in copies of the same tensors."""


def measure_speed(*, quick: bool = False, rounds: int = 15) -> Iterator[list[Timing]]:
    """Timings of one type after another: float32, then bfloat16."""
    length = 1024 if quick else 4096
    for dtype in (torch.float32, torch.bfloat16):
        yield _measure(dtype, length, 5 if quick else rounds)


def _measure(dtype: torch.dtype, length: int, rounds: int) -> list[Timing]:
    q, k = torch.randn(1, 32, length, 128).to(dtype), torch.randn(1, 8, length, 128).to(dtype)
    with torch.no_grad():
        ways = _ways(q, k)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, run in ways.items():
                run()  # each starts from the caches it leaves itself
                start = time.perf_counter()
                run()
                times[way].append(time.perf_counter() - start)
    typical = {way: sorted(found)[len(found) // 3] for way, found in times.items()}
    name = str(dtype).removeprefix("torch.")
    return [
        Timing(dtype=name, way=way, milliseconds=1e3 * seconds, against_copy=seconds / typical["copy_"])
        for way, seconds in typical.items()
    ]


def _ways(q: Tensor, k: Tensor) -> dict[str, Callable[[], object]]:
    positions = torch.arange(q.shape[-2])
    halves = Rotary(head_dim=128, pairing=Pairing.HALVES).table(positions)
    adjacent = Rotary(head_dim=128, pairing=Pairing.ADJACENT).table(positions)
    cos, sin = (torch.cat((half, half), -1).to(q.dtype) for half in (halves.cos, halves.sin))
    ours, theirs = rotate_both(q, k, halves), (_as_usual(q, cos, sin), _as_usual(k, cos, sin))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=5e-2 if q.dtype == torch.bfloat16 else 1e-5)
    q_copy, k_copy = torch.empty_like(q), torch.empty_like(k)
    return {
        "copy_": lambda: (q_copy.copy_(q), k_copy.copy_(k)),
        "x.mul_(1.0)": lambda: (q.mul_(1.0), k.mul_(1.0)),
        "in place, halves": lambda: rotate_both(q, k, halves, inplace=True),
        "in place, adjacent pairs": lambda: rotate_both(q, k, adjacent, inplace=True),
        "into other tensors": lambda: rotate_both(q, k, halves, out=(q_copy, k_copy)),
        "as usual: x cos + rotate_half(x) sin": lambda: (_as_usual(q, cos, sin), _as_usual(k, cos, sin)),
    }


def _as_usual(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What most model files do, in the type of x."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin
