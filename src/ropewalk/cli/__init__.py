"""The `ropewalk` command: one file for each sub-command, which parses, calls the library and prints."""

from ropewalk.cli.main import main

__all__ = ["main"]
