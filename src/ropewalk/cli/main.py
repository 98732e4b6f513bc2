"""`ropewalk`: choose the sub-command, and turn the library's errors into one sentence and exit code 2."""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence

from ropewalk.cli import demo, doctor
from ropewalk.errors import RopewalkError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk", description="Rotary position embedding: exact, and fast.")
    parser.add_argument("--version", action="version", version=f"ropewalk {importlib.metadata.version('ropewalk')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (demo, doctor):
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except (RopewalkError, OSError) as error:
        print(f"ropewalk: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ropewalk: interrupted", file=sys.stderr)
        return 130
    return code
