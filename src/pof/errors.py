"""The errors of pof: one root, so that `except pof.PofError` catches whatever a user's input can cause.

Warnings, and errors about plans, are short: whatever a list or a name adds is cut out of the middle. Errors about files
and downloads keep their paths and reasons whole.
"""

import sys
import warnings

LONGEST = 200
"""The most characters of an error or a warning."""
LONGEST_END = 90
"""How many of them are kept of the end, where the remedy is, if the middle is cut out."""
LONGEST_REASON = 90
"""The most characters that a message quotes of another library's error; the rest is in the error's cause."""
NOT_THE_USERS = ("pof.", "torch.", "contextlib.")
"""How the names of modules begin that a warning does not point to."""


def shortened(message: str) -> str:
    """The message, without its middle if it is too long."""
    if len(message) <= LONGEST:
        return message
    begin, end = message[: LONGEST - LONGEST_END - 5], message[-LONGEST_END:]
    # Whole words, unless one of them is all there is.
    begin, end = begin.rpartition(" ")[0] or begin, end.partition(" ")[2] or end
    return f"{begin} ... {end}"


def warn(message: str) -> None:
    """Warn the user, at the line of theirs that called us."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__')}.".startswith(NOT_THE_USERS):
        frame, level = frame.f_back, level + 1
    warnings.warn(shortened(message), UserWarning, stacklevel=level)


def first_line(error: object, most: int = LONGEST_REASON) -> str:
    """The first line of another library's error, cut to a length that leaves room for what we say."""
    lines = str(error).strip().splitlines()
    line = lines[0].strip() if lines else type(error).__name__
    return line if len(line) <= most else f"{line[: most - 3]}..."


class PofError(ValueError):
    """Something that the user asked for cannot be done; the message names the value, the bound and the remedy."""


class PlanError(PofError):
    """The model has nothing to prune, a name matches nothing, or a weight is of a kind that cannot be pruned."""

    def __init__(self, message: str = "", *more: object) -> None:
        super().__init__(shortened(str(message)), *more)


class WeightsChangedError(PofError):
    """The weights under a live `Elastic` are no longer those that it wrote."""


class MissingPackageError(PofError, ImportError):
    """Something needs a package that is not installed; the message names it and how to install it."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class PofFileError(PofError):
    """A `.pof` file is broken, cut off, or not a `.pof` file at all; nothing was loaded."""
