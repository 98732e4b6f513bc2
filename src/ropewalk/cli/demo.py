"""`ropewalk demo`: the rotation's laws, its exactness and its speed on this machine, as tables and one HTML page."""

import argparse
import webbrowser
from pathlib import Path

from ropewalk.errors import MissingPartError

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the sub-command."""
    parser = commands.add_parser(
        "demo",
        help="show the rotation's laws, its exactness and its speed on this machine",
        description="Check the laws of the rotation, measure its error and its speed here, and write one HTML page.",
        epilog="example: ropewalk demo --output reports/demo.html --open",
    )
    parser.add_argument("--output", type=Path, default=Path("reports/demo.html"), help="default: %(default)s")
    parser.add_argument("--open", action="store_true", help="open the page in a browser when it is written")
    parser.add_argument("--quick", action="store_true", help="smaller tensors and fewer repetitions")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        from ropewalk.workbench import engine_demo
    except ModuleNotFoundError as error:
        raise MissingPartError(f"`ropewalk demo` needs {error.name}: pip install 'ropewalk[report]'.") from error
    page = engine_demo.run(arguments.output, quick=arguments.quick)
    if arguments.open:
        webbrowser.open(page.resolve().as_uri())
    return 0
