"""Checks of the values that users pass in, shared by all packages."""

from numbers import Integral, Real

from pof.errors import PofError


def check_choice(value: object, name: str, choices: tuple[str, ...]) -> None:
    """Raise if `value` is not one of `choices`."""
    if value not in choices:
        raise PofError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")


def check_whole(value: object, name: str, meaning: str) -> int:
    """Return `value` if it is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise PofError(f"{name}={value!r} must be {meaning}: a whole number, 1 or more")
    return int(value)


def check_not_negative(value: object, name: str, remedy: str) -> float:
    """Return `value` as a float if it is a finite number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
        raise PofError(f"{name}={value!r} must be a number, 0 or more: {remedy}")
    return float(value)


def check_above_zero(value: object, name: str, remedy: str) -> float:
    """Return `value` as a float if it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise PofError(f"{name}={value!r} must be a number above 0: {remedy}")
    return float(value)


def check_share(value: object, name: str, meaning: str) -> float:
    """Return `value` if it is a number from 0 to 1, else raise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise PofError(f"{name}={value!r} must be from 0 to 1: {meaning}")
    return float(value)
