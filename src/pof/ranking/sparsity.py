"""Sparsities that a user passes in, and how many weights one of them prunes."""

from numbers import Real

from pof.errors import PofError


def check_sparsity(value: object, name: str = "sparsity") -> float:
    """Return `value` as a float if it is a number in [0, 1); otherwise raise, and say what to pass instead."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PofError(f"{name}={value!r} must be a number in [0, 1): pass 0.7 for 70 %")
    number = float(value)
    if 0.0 <= number < 1.0:
        return number
    if number == 1.0:
        remedy = "1.0 would leave no weights; pass 0.99 for 99 %"
    elif 1.0 < number < 100.0:
        remedy = f"pass {number / 100:g} for {number:g} %"
    else:
        remedy = "pass 0.7 for 70 %, 0.0 for dense"
    raise PofError(f"{name}={value!r} must be in [0, 1): {remedy}")


def prune_count(weights: int, sparsity: float) -> int:
    """How many of `weights` are pruned: Python's `round(sparsity * weights)`, as in `torch.nn.utils.prune`."""
    return round(sparsity * weights)
