"""Times contenders beside each other, after their answers have been compared.

    for every round, for every contender in random order:   call it once untimed, then once timed

so that each starts from the cache state it leaves itself, no one always runs behind the same other (who comes behind
`copy_` waits for what that has yet to write back: 0.1-0.2 of `mul_`), and a machine that changes its pace changes it
for all of them. What is slow takes part in fewer rounds, spread evenly. A time is the lower-third quantile of its
rounds; what a call returns is released after the clock has stopped.
"""

import gc
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from benchmarks.machine import TOLERABLE, Company

__all__ = ["Contender", "Measurement", "Run", "lower_third", "measure"]

FEWEST_ROUNDS = 3


def lower_third(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 3]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One thing to be timed."""

    what: str
    call: Callable[[], object]
    pairing: str = ""
    """Empty where it has none, such as a copy."""

    error: Callable[[], float] | None = None
    """Calls it, and says how far its answer is from the definition; None: it has no answer (limits, imports)."""

    tolerance: float = 0.0
    calls: int = 1
    """Calls that are timed together: a short one is timed in a loop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Contenders that are timed in the same rounds."""

    section: str
    work: str
    contenders: list[Contender]
    q: tuple[int, ...] = ()
    k: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    notes: list[str] = field(default_factory=list)
    """Who does not take part, and why."""

    rounds: int = 30
    seconds: float = 10.0
    """What the run may take; the slowest contenders then get fewer rounds."""

    pick: Callable[[Sequence[float]], float] = lower_third


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One line of the results."""

    section: str
    work: str
    q: tuple[int, ...]
    k: tuple[int, ...]
    dtype: str
    layout: str
    pairing: str
    what: str
    ms: float | None
    """Of one call; None where it was not timed, and `note` says why."""

    rounds: int
    error: float | None
    over_mul: float | None
    over_copy: float | None
    over_clone: float | None
    others: float | None
    """Share of the cores that other processes took meanwhile; None where the system does not say."""

    note: str

    @property
    def disturbed(self) -> bool:
        """Whether others took so much that nothing may be judged by it."""
        return self.others is not None and self.others > TOLERABLE


@dataclass(slots=True)
class _Entry:
    contender: Contender
    error: float | None = None
    note: str = ""
    share: int = 0
    times: list[float] = field(default_factory=list)


def measure(run: Run, *, rounds: int | None = None) -> list[Measurement]:
    """Compare the answers, then time those that are right; `rounds` overrides what the run asks for."""
    entries = [_Entry(contender) for contender in run.contenders]
    for entry in entries:
        _examine(entry)
    fit = [entry for entry in entries if not entry.note]
    for entry in fit:
        entry.share = rounds or _share(run, _seconds(entry.contender), len(fit))
    company = Company.now()
    _interleave(fit, rounds or run.rounds)
    return _measurements(run, entries, company.since())


def _examine(entry: _Entry) -> None:
    contender = entry.contender
    try:
        if contender.error is None:
            contender.call()
            return
        entry.error = contender.error()
    except Exception as reason:  # noqa: BLE001  # a peer may fail in any way; that it does is the result
        entry.note = f"fails: {type(reason).__name__}: {str(reason).strip().splitlines()[0] if str(reason) else ''}"
        return
    if not entry.error <= contender.tolerance:  # also where it is not a number
        entry.note = f"wrong answer, not timed: off by {entry.error:.2g} where {contender.tolerance:.2g} is allowed"


def _share(run: Run, seconds: float, contenders: int) -> int:
    """Rounds for a contender that takes `seconds`, twice a round."""
    affordable = int(run.seconds / contenders / (2 * seconds))
    return min(run.rounds, max(FEWEST_ROUNDS, affordable))


def _interleave(entries: list[_Entry], rounds: int) -> None:
    gc.collect()
    gc.disable()
    try:
        order, dice = list(entries), random.Random(0)
        for turn in range(rounds):
            dice.shuffle(order)
            for entry in order:
                if (turn + 1) * entry.share // rounds > turn * entry.share // rounds:
                    for _ in itertools.repeat(None, max(1, entry.contender.calls // 10)):
                        entry.contender.call()
                    entry.times.append(_seconds(entry.contender))
    finally:
        gc.enable()


def _seconds(contender: Contender) -> float:
    """Of one call, as timed once."""
    call, result = contender.call, None
    start = perf_counter()
    for _ in itertools.repeat(None, contender.calls):
        result = call()
    elapsed = perf_counter() - start
    del result
    return elapsed / contender.calls


def _measurements(run: Run, entries: list[_Entry], others: float | None) -> list[Measurement]:
    times = [run.pick(entry.times) if entry.times else None for entry in entries]
    limits = {entry.contender.what: time for entry, time in zip(entries, times, strict=True)}

    def over(time: float | None, limit: str) -> float | None:
        base = limits.get(limit)
        return None if time is None or base is None else round(time / base, 4)

    return [
        Measurement(
            section=run.section,
            work=run.work,
            q=run.q,
            k=run.k,
            dtype=run.dtype,
            layout=run.layout,
            pairing=entry.contender.pairing,
            what=entry.contender.what,
            ms=None if time is None else round(time * 1e3, 6),
            rounds=len(entry.times),
            error=entry.error,
            over_mul=over(time, "mul_"),
            over_copy=over(time, "copy_"),
            over_clone=over(time, "clone"),
            others=None if others is None else round(others, 3),
            note=entry.note,
        )
        for entry, time in zip(entries, times, strict=True)
    ]
