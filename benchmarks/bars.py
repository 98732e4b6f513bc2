"""What the measurements must show, and whether they do.

A bar compares a measurement of ours with others of the same run and the same pairing, and holds if the worst comparison
does. All bars are in `BARS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import decode, imports, peers, rotate, table
from benchmarks.timing import Measurement

__all__ = ["BARS", "Bar", "Verdict", "judge"]


def _times_as_long(ours: float, other: float) -> float:
    return ours / other


def _times_as_fast(ours: float, other: float) -> float:
    return other / ours


def _seconds_more(ours: float, other: float) -> float:
    return (ours - other) / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One demand."""

    says: str
    ours: str
    beside: tuple[str, ...]
    """The fastest of these is compared with."""

    limit: float
    section: str
    works: tuple[str, ...] = ()
    """Empty: all of them."""

    dtypes: tuple[str, ...] = ()
    by: Callable[[float, float], float] = _times_as_long
    unit: str = "×"

    @property
    def at_least(self) -> bool:
        return self.by is _times_as_fast

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found for one bar; all None where nothing of it was measured."""

    bar: Bar
    worst: float | None = None
    best: float | None = None
    where: str = ""
    disturbed: int = 0
    """Measurements of ours that were left out, because other processes were at work."""

    @property
    def holds(self) -> bool | None:
        """None where nothing could be judged, or not all of it and the rest is good."""
        good = None if self.worst is None else self.bar.holds(self.worst)
        return None if good and self.disturbed else good


_LONG = ("batch 1", "batch 4")
_WIDE = ("width 64", "width 80", "width 256")


def _decode(batch: int, limit: float) -> Iterator[Bar]:
    pairs = (
        (decode.IN_PLACE, peers.TRANSFORMERS, "in place"),
        (decode.NEW, peers.TRANSFORMERS, "out of place"),
        (decode.FROM_POSITIONS_IN_PLACE, decode.TRANSFORMERS_FROM_POSITIONS, "table and in place"),
        (decode.FROM_POSITIONS, decode.TRANSFORMERS_FROM_POSITIONS, "table and out of place"),
    )
    for ours, other, how in pairs:
        says = f"decode, B = {batch}, {how}, of transformers"
        yield Bar(says=says, ours=ours, beside=(other,), limit=limit, section="decode", works=(f"decode {batch}",))


# fmt: off
BARS: tuple[Bar, ...] = (
    Bar(says="in place, float32, of mul_",
        ours=rotate.IN_PLACE, beside=("mul_",), limit=1.12, section="in-place", works=_LONG, dtypes=("float32",)),
    Bar(says="in place, float32, of copy_",
        ours=rotate.IN_PLACE, beside=("copy_",), limit=0.8, section="in-place", works=_LONG, dtypes=("float32",)),
    Bar(says="in place, bfloat16, batch 1, of mul_",
        ours=rotate.IN_PLACE, beside=("mul_",), limit=0.85, section="in-place", works=_LONG[:1], dtypes=("bfloat16",)),
    Bar(says="in place, bfloat16, batch 4, of mul_",
        ours=rotate.IN_PLACE, beside=("mul_",), limit=1.05, section="in-place", works=_LONG[1:], dtypes=("bfloat16",)),
    Bar(says="in place, (8, 12, 512, 64), of mul_",
        ours=rotate.IN_PLACE, beside=("mul_",), limit=1.3, section="in-place", works=("small",)),
    Bar(says="in place, head widths 64, 80, 256, of mul_",
        ours=rotate.IN_PLACE, beside=("mul_",), limit=1.3, section="widths", works=_WIDE),
    Bar(says="in place, partial widths, of mul_ of the whole",
        ours=rotate.IN_PLACE, beside=("mul_",), limit=1.3, section="widths",
        works=("64 of 128 leading", "32 of 128 trailing", "64 of 192 trailing")),
    Bar(says="in place, AVX2, of mul_",
        ours=rotate.AVX2, beside=("mul_",), limit=1.3, section="in-place"),
    Bar(says="in place, faster than the fastest eager form",
        ours=rotate.IN_PLACE, beside=peers.EAGER, limit=5.0, section="peers", by=_times_as_fast),
    Bar(says="in place, faster than the fastest compiled form",
        ours=rotate.IN_PLACE, beside=peers.COMPILED, limit=4.0, section="peers", by=_times_as_fast),
    Bar(says="in place, faster than ONNX Runtime",
        ours=rotate.IN_PLACE, beside=(peers.ONNX_RUNTIME,), limit=4.0, section="peers", by=_times_as_fast),
    Bar(says="in place, faster than transformers eager",
        ours=rotate.IN_PLACE, beside=(peers.TRANSFORMERS,), limit=15.0, section="peers", by=_times_as_fast),
    Bar(says="out=, of copy_",
        ours=rotate.INTO, beside=("copy_",), limit=1.2, section="in-place"),
    Bar(says="out of place, of clone",
        ours=rotate.NEW, beside=("clone",), limit=1.15, section="new"),
    Bar(says="backward, of forward",
        ours=rotate.BACKWARD, beside=(rotate.FORWARD,), limit=1.1, section="new"),
    *_decode(1, 0.5),
    *_decode(16, 0.35),
    Bar(says="table, of float32 cos and sin",
        ours=table.OURS, beside=(table.FLOAT32, table.LLAMA), limit=1.0, section="table"),
    Bar(says="import, beyond torch",
        ours=imports.OURS, beside=(imports.TORCH,), limit=0.1, section="import", by=_seconds_more, unit=" s"),
)
# fmt: on


def judge(measurements: Sequence[Measurement]) -> list[Verdict]:
    """A verdict for every bar."""
    return [_verdict(bar, [one for one in measurements if one.section == bar.section]) for bar in BARS]


def _verdict(bar: Bar, measurements: Sequence[Measurement]) -> Verdict:
    ours = [one for one in measurements if _meant(bar, one)]
    disturbed = sum(one.disturbed for one in ours)
    calm = [one for one in ours if not one.disturbed]
    found = sorted(_comparisons(bar, calm, measurements), reverse=not bar.at_least)  # the worst first
    if not found:
        return Verdict(bar, disturbed=disturbed)
    (worst, where), (best, _) = found[0], found[-1]
    return Verdict(bar, worst, best, where, disturbed)


def _meant(bar: Bar, one: Measurement) -> bool:
    of_work = not bar.works or one.work in bar.works
    return one.what == bar.ours and of_work and (not bar.dtypes or one.dtype in bar.dtypes)


def _comparisons(
    bar: Bar, those_of_ours: Sequence[Measurement], measurements: Sequence[Measurement]
) -> Iterator[tuple[float, str]]:
    for ours in those_of_ours:
        if ours.ms is None:
            continue
        others = [other.ms for other in measurements if _beside(bar, ours, other) and other.ms is not None]
        if others:
            place = (ours.work, ours.dtype, ours.layout, ours.pairing)
            yield bar.by(ours.ms, min(others)), ", ".join(part for part in place if part)


def _beside(bar: Bar, ours: Measurement, other: Measurement) -> bool:
    same_run = (ours.work, ours.dtype, ours.layout) == (other.work, other.dtype, other.layout)
    return same_run and other.what in bar.beside and other.pairing in {"", ours.pairing}
