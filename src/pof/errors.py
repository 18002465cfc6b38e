"""The errors of pof: one root, so that `except pof.PofError` catches whatever a user's input can cause."""

LONGEST_REASON = 90
"""The most characters that a message quotes of another library's error; the rest is in the error's cause."""


def first_line(error: object, most: int = LONGEST_REASON) -> str:
    """The first line of another library's error, cut to a length that leaves room for what we say."""
    lines = str(error).strip().splitlines()
    line = lines[0].strip() if lines else type(error).__name__
    return line if len(line) <= most else f"{line[: most - 3]}..."


class PofError(ValueError):
    """Something that the user asked for cannot be done; the message names the value, the bound and the remedy."""


class PlanError(PofError):
    """The model has nothing to prune, a name matches nothing, or a weight is of a kind that cannot be pruned."""


class WeightsChangedError(PofError):
    """The weights under a live `Elastic` are no longer those that it wrote."""


class MissingPackageError(PofError, ImportError):
    """Something needs a package that is not installed; the message names it and how to install it."""

    def __init__(self, message: str, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class PofFileError(PofError):
    """A `.pof` file is broken, cut off, or not a `.pof` file at all; nothing was loaded."""
