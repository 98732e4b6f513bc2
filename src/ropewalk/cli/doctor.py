"""`ropewalk doctor`: what is installed, which kernel does what here, and what would make it faster."""

import argparse
import dataclasses
import json

from ropewalk.kernels import KernelReport, info

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "doctor",
        help="say which kernels are there and what they are used for",
        description="Say which kernels this installation has on this machine, and which is used for what.",
        epilog="example: ropewalk doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    report = info()
    print(json.dumps(dataclasses.asdict(report), indent=2) if arguments.json else _as_text(report))
    return 0


def _as_text(report: KernelReport) -> str:
    rows = [
        *report.versions.items(),
        ("processor", report.processor),
        ("features", " ".join(report.processor_features) or "none that matter"),
        ("GPUs", ", ".join(report.accelerators) or "none"),
        ("C kernel", f"{report.native_level} (built for: {', '.join(report.native_levels) or 'nothing'})"),
        ("threads", f"{report.threads}, from {report.thread_source or 'none: the C kernel runs on one'}"),
    ]
    lines = [f"{name:<10}  {value}" for name, value in rows]
    lines += ["", "what does what"]
    width = max(len(work) for work in report.used_for)
    lines += [f"  {work:<{width}}  {body}" for work, body in report.used_for.items()]
    lines += ["", *(f"advice: {sentence}" for sentence in report.advice or ("nothing to improve.",))]
    return "\n".join(lines)
