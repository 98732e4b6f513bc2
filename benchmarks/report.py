"""What is shown in the terminal and what is kept: tables, and JSON lines."""

import dataclasses
import datetime as dt
import importlib.metadata
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from benchmarks.bars import Verdict
from benchmarks.timing import Measurement, Run
from rich.markup import escape
from rich.table import Table

from ropewalk.kernels import KernelReport

__all__ = ["facts", "json_lines", "results_path", "table_of_bars", "table_of_run"]

PACKAGES = ("onnx", "onnxruntime", "rotary-embedding-torch", "transformers", "x-transformers")


def facts(report: KernelReport) -> dict[str, object]:
    """What every line of the results carries."""
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "processor": report.processor,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "kernel": report.native_level,
        "versions": {**report.versions, **{name: _version(name) for name in PACKAGES}},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def results_path(known: dict[str, object]) -> Path:
    """Where the results of this machine and day are kept; never a file that is there."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(known["processor"]).lower()).strip("-")
    folder, stem = Path(__file__).parent / "results", f"rotate_{slug}_{known['date']}"
    names = itertools.chain([f"{stem}.jsonl"], (f"{stem}_{count}.jsonl" for count in itertools.count(2)))
    return next(folder / name for name in names if not (folder / name).exists())


def json_lines(measurements: Sequence[Measurement], known: dict[str, object]) -> str:
    """One measurement a line."""
    return "".join(json.dumps(dataclasses.asdict(one) | known) + "\n" for one in measurements)


def table_of_run(run: Run, measurements: Sequence[Measurement]) -> Table:
    """One run; below it who was not timed, and why."""
    sizes = f" q {run.q} k {run.k}" if run.q else ""
    title = " · ".join(part for part in (run.section, run.work + sizes, run.dtype, run.layout) if part)
    caption = "\n".join([*_company(measurements), *_refusals(measurements), *(escape(note) for note in run.notes)])
    table = Table(title=escape(title), caption=caption, title_justify="left", caption_justify="left")
    limits = [name for name in _LIMITS if any(one.what == name for one in measurements)]
    table.add_column("what", min_width=33, no_wrap=True)
    table.add_column("pairing", no_wrap=True)
    for name in ("time", *(f"× {limit}" for limit in limits), "error", "rounds"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in measurements:
        if one.ms is not None:
            ratios = [_ratio(_LIMITS[limit](one)) for limit in limits]
            error = "" if one.error is None else f"{one.error:.1e}"
            table.add_row(one.what, one.pairing, _time(one.ms), *ratios, error, str(one.rounds))
    return table


_LIMITS: dict[str, Callable[[Measurement], float | None]] = {
    "mul_": lambda one: one.over_mul,
    "copy_": lambda one: one.over_copy,
    "clone": lambda one: one.over_clone,
}


def _company(measurements: Sequence[Measurement]) -> list[str]:
    others = measurements[0].others
    if others is None or not measurements[0].disturbed:
        return []
    return [f"[red]Other processes took {others:.0%} of the cores meanwhile: nothing is judged by these times.[/red]"]


def _refusals(measurements: Sequence[Measurement]) -> list[str]:
    return [f"[red]{escape(f'{one.what} {one.pairing}: {one.note}')}[/red]" for one in measurements if one.note]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _time(ms: float) -> str:
    return f"{ms:.2f} ms" if ms >= 1 else f"{ms * 1e3:.1f} µs"


def table_of_bars(verdicts: Sequence[Verdict], title: str) -> Table:
    """What must hold, what was measured at worst and where, and whether it holds."""
    table = Table(title=title, title_justify="left")
    table.add_column("bar")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    table.add_column("worst at")
    for verdict in verdicts:
        bar = verdict.bar
        says = f"{bar.says} {'≥' if bar.at_least else '≤'} {bar.limit:g}{bar.unit}"
        table.add_row(escape(says), _span(verdict), _holds(verdict), escape(verdict.where))
    return table


def _span(verdict: Verdict) -> str:
    if verdict.worst is None or verdict.best is None:
        return ""
    low, high = sorted((f"{verdict.worst:.2f}", f"{verdict.best:.2f}"), key=float)
    return (low if low == high else f"{low} to {high}") + verdict.bar.unit


def _holds(verdict: Verdict) -> str:
    if verdict.holds is not None:
        return "[green]yes[/green]" if verdict.holds else "[red]no[/red]"
    return f"[yellow]disturbed ({verdict.disturbed})[/yellow]" if verdict.disturbed else "not measured"
