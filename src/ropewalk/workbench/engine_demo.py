"""The engine on show: laws, exactness and speed, in the terminal and as one page."""

import datetime as dt
import os
import platform
from pathlib import Path

import plotly.graph_objects as go
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as TerminalTable

from ropewalk.kernels import info
from ropewalk.workbench.exactness import ErrorByPosition, measure_exactness
from ropewalk.workbench.laws import Law, check_laws
from ropewalk.workbench.page import Page, figure
from ropewalk.workbench.speed import Timing, measure_speed

__all__ = ["run"]

_SERIES = (  # colour, dash and symbol differ, so that the curves can be told apart without colour
    ("ours", "Ropewalk, float32", "#0072b2", "solid", "circle"),
    ("float32", "angles in float32", "#d55e00", "dash", "square"),
    ("bfloat16", "frequencies cast to bfloat16 with the model", "#7a5195", "dot", "diamond"),
)


def run(output: Path, *, quick: bool = False, console: Console | None = None) -> Path:
    """Measure everything, print tables, write the page to `output`; returns its path."""
    console = console or Console()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("checking the laws", total=4)
        laws = check_laws()
        progress.update(task, advance=1, description="measuring the error by position")
        errors = measure_exactness()
        progress.update(task, advance=1, description="measuring speed")
        timings = []
        for part in measure_speed(quick=quick):
            timings += part
            progress.advance(task)
    for table in (_laws_table(laws), _errors_table(errors), _timings_table(timings)):
        console.print(table)
    page = _page(laws, errors, timings).write(output)
    console.print(f"The page: [link={page.resolve().as_uri()}]{page}[/link]")
    return page


# ---- rows, shared by the terminal and the page ----------------------------------------------------------------------

_LAW_COLUMNS = ("law", "largest deviation", "")
_ERROR_COLUMNS = ("position", *(title for _, title, *_ in _SERIES))
_TIME_COLUMNS = ("type", "way", "ms", "× copy_")


def _law_rows(laws: list[Law]) -> list[tuple[str, ...]]:
    verdict = {(True, True): "✓ holds", (True, False): "✓ differs, as it must"}
    return [(law.statement, f"{law.deviation:.1e}", verdict.get((law.passed, law.must_hold), "✗")) for law in laws]


def _error_rows(errors: ErrorByPosition) -> list[tuple[str, ...]]:
    shown = {1, 1_000, 100_000, 1_000_000, 10_000_000, errors.positions[-1]}
    return [
        (f"{at:,}", *(f"{getattr(errors, name)[i]:.1e}" for name, *_ in _SERIES))
        for i, at in enumerate(errors.positions)
        if at in shown
    ]


def _time_rows(timings: list[Timing]) -> list[tuple[str, ...]]:
    return [(t.dtype, t.way, f"{t.milliseconds:.2f}", f"{t.against_copy:.2f}") for t in timings]


# ---- the terminal ---------------------------------------------------------------------------------------------------


def _terminal_table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], left: int) -> TerminalTable:
    table = TerminalTable(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _laws_table(laws: list[Law]) -> TerminalTable:
    return _terminal_table("The laws of the rotation (float64)", _LAW_COLUMNS, _law_rows(laws), 1)


def _errors_table(errors: ErrorByPosition) -> TerminalTable:
    title = f"Largest error of a cosine (head {errors.head_dim}, base {errors.base:,.0f})"
    return _terminal_table(title, _ERROR_COLUMNS, _error_rows(errors), 0)


def _timings_table(timings: list[Timing]) -> TerminalTable:
    return _terminal_table("Turning q and k, beside copying them", _TIME_COLUMNS, _time_rows(timings), 2)


# ---- the page -------------------------------------------------------------------------------------------------------


def _page(laws: list[Law], errors: ErrorByPosition, timings: list[Timing]) -> Page:
    page = Page(
        "Ropewalk: the rotation, its laws, its exactness, its speed",
        "Every pair of channels is a hand of a clock: position m turns pair j by m·θ_j, and attention then sees only "
        "differences of positions.",
    )
    page.heading(
        "The laws hold",
        "1,000 random vectors of 128 channels, positions up to a million, both pairings. The last line is a "
        "companion that must fail: with the positions exchanged the score is another.",
    )
    page.table(_LAW_COLUMNS, _law_rows(laws), numbers=frozenset({1}))
    page.heading(
        "The error does not grow with the position",
        "Largest error of any cosine around each position. Float32 cannot hold the product of a large position and a "
        "frequency; fractions of a turn in 96 bits can, and their error is the final rounding.",
    )
    page.plot(_error_figure(errors))
    page.table(_ERROR_COLUMNS, _error_rows(errors), numbers=frozenset(range(4)))
    page.heading(
        "Turning costs no more than touching the memory",
        "q (1, 32, S, 128) with k (1, 8, S, 128). x.mul_(1.0) is the limit of anything in place: it reads and writes "
        "every element once.",
    )
    page.plot(_time_figure(timings))
    page.table(_TIME_COLUMNS, _time_rows(timings), numbers=frozenset({2, 3}))
    page.heading("This machine")
    report = info()
    page.table(("what", "is"), [*report.used_for.items(), *report.versions.items()], numbers=frozenset())
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    page.note(
        f"{report.processor}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.system()}; {today}."
    )
    page.note("Repeat it with: ropewalk demo")
    return page


def _error_figure(errors: ErrorByPosition) -> go.Figure:
    drawn = figure("position", "largest error of a cosine", log_x=True, log_y=True)
    for name, title, colour, dash, symbol in _SERIES:
        marker = {"color": colour, "symbol": symbol, "size": 7}
        line = {"color": colour, "dash": dash}
        values = getattr(errors, name)
        drawn.add_trace(
            go.Scatter(x=errors.positions, y=values, name=title, mode="lines+markers", line=line, marker=marker)
        )
    return drawn


def _time_figure(timings: list[Timing]) -> go.Figure:
    drawn = figure("time, in copies of the same tensors", "", height=420)
    for dtype, colour, shape in (("float32", "#0072b2", ""), ("bfloat16", "#e69f00", "/")):
        mine = [t for t in reversed(timings) if t.dtype == dtype]
        marker = {"color": colour, "pattern": {"shape": shape}}
        text = [f"{t.against_copy:.2f}" for t in mine]
        drawn.add_trace(
            go.Bar(
                x=[t.against_copy for t in mine],
                y=[t.way for t in mine],
                name=dtype,
                orientation="h",
                marker=marker,
                text=text,
                textposition="outside",
            )
        )
    drawn.update_layout(barmode="group", margin={"l": 250}, yaxis={"automargin": True, "type": "category"})
    return drawn
