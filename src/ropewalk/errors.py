"""Every error the library raises on purpose.

RopewalkError            catch this to catch them all
├── ConfigError          a configuration that can never work               (also a ValueError)
├── InputError           an argument of the wrong shape, dtype or value    (also a ValueError)
└── MissingPartError     an optional part of the installation is not there (also an ImportError)

Wording: "`name` must be <rule>, but is <value>." and, where we know it, the cure.
"""

from collections.abc import Sequence

__all__ = ["ConfigError", "InputError", "MissingPartError", "RopewalkError"]


class RopewalkError(Exception):
    """The root of every error that Ropewalk raises on purpose."""


class ConfigError(RopewalkError, ValueError):
    """A configuration that can never work; `problems` holds all of its mistakes, not only the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(" ".join(self.problems))


class InputError(RopewalkError, ValueError):
    """An argument of the wrong shape, dtype, layout or value; nothing has been computed."""

    def __init__(self, name: str, rule: str, actual: object, cure: str = "") -> None:
        super().__init__(f"`{name}` must be {rule}, but is {actual}. {cure}".rstrip())


class MissingPartError(RopewalkError, ImportError):
    """A part of the installation that this call needs is absent; the message says how to get it."""
