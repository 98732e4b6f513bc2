"""Time the rotation beside its peers and beside the limits of memory: `python -m benchmarks`, some ten minutes.

    python -m benchmarks --out                       and keep the results as a dated file in benchmarks/results
    python -m benchmarks --only in-place --only new  some sections only
    python -m benchmarks --quick                     short sequences, three rounds: to see that everything runs

Answers are compared with the definition first. Let nothing else run meanwhile: times taken in company are marked, and
nothing is judged by them.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TextIO

import torch
from benchmarks import decode, imports, rotate, table
from benchmarks.bars import judge
from benchmarks.machine import cores
from benchmarks.report import facts, json_lines, results_path, table_of_bars, table_of_run
from benchmarks.timing import Measurement, Run, measure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ropewalk import kernels

SECTIONS: dict[str, Callable[..., list[Callable[[], Run]]]] = {
    "import": imports.plan,
    "decode": decode.plan,
    "table": table.plan,
    "in-place": rotate.plan_in_place,
    "widths": rotate.plan_widths,
    "new": rotate.plan_new,
    "peers": rotate.plan_peers,
}
AUTOMATIC = "by processor and date"


def _arguments(words: list[str] | None) -> argparse.Namespace:
    opening, _, rest = (__doc__ or "").partition("\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=opening, epilog=rest, formatter_class=formatter
    )
    parser.add_argument(
        "--out", nargs="?", const=AUTOMATIC, metavar="FILE", help="write JSON lines (default name: %(const)s)"
    )
    parser.add_argument("--only", action="append", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of everything, however long they take")
    parser.add_argument("--quick", action="store_true", help="short sequences, three rounds: the figures say nothing")
    arguments = parser.parse_args(words)
    if arguments.quick and arguments.out == AUTOMATIC:
        parser.error("--quick measures nothing that is worth a place among the results: give --out a file name")
    return arguments


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    torch.set_num_threads(cores())
    warnings.filterwarnings("ignore", message="Torchinductor does not support code generation for complex")
    report = kernels.info()
    known = facts(report) | {"quick": arguments.quick}
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(
        f"{report.processor}, {known['threads']} threads, torch {torch.__version__}, C kernel: {report.native_level}"
    )
    for advice in report.advice:
        console.print(advice)
    start = perf_counter()
    names = [name for name in SECTIONS if not arguments.only or name in arguments.only]
    if arguments.out is None:
        measurements = _measure_all(names, arguments, console, None, known)
    else:
        path = results_path(known) if arguments.out == AUTOMATIC else Path(arguments.out)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            measurements = _measure_all(names, arguments, console, file, known)
        console.print(f"Written to {path}")
    title = "What must hold" + " (a quick run: the figures say nothing)" * arguments.quick
    console.print(table_of_bars(judge(measurements), title))
    console.print(f"{perf_counter() - start:.0f} s")
    wrong = [one for one in measurements if one.what.startswith(("rope", "import rope")) and one.ms is None]
    return 1 if wrong else 0


@torch.no_grad()
def _measure_all(
    names: list[str], arguments: argparse.Namespace, console: Console, file: TextIO | None, known: dict[str, object]
) -> list[Measurement]:
    rounds = arguments.rounds or (3 if arguments.quick else None)
    plan = [(name, prepare) for name in names for prepare in SECTIONS[name](quick=arguments.quick)]
    measurements: list[Measurement] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # A bar that moves by itself is a thread that takes time from what is timed.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=len(plan))
        for name, prepare in plan:
            progress.update(task, description=name, refresh=True)
            run = prepare()
            found = measure(run, rounds=rounds)
            measurements += found
            progress.console.print(table_of_run(run, found))
            if file is not None:
                file.write(json_lines(found, known))
                file.flush()
            progress.advance(task)
    return measurements


if __name__ == "__main__":
    sys.exit(main())
