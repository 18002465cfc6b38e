"""When a method prunes, and how far: the cubic schedule (pure functions of the step).

    s_t = s_f + (s_i - s_f) * (1 - (t - t0) / span)^3        for t0 <= t <= t0 + span

It prunes fast while many weights are superfluous, and slowly towards the end. A run counts its steps from 0. Pruning
that is due at a step is done before its pass.

Reference: M. Zhu and S. Gupta, To Prune, or Not to Prune: Exploring the Efficacy of Pruning for Model Compression,
2017.
"""

from numbers import Real

from pof.errors import PofError
from pof.ranking.sparsity import check_sparsity


def cubic(step: int, first: int, last: int, initial: float, final: float) -> float:
    """The sparsity at `step`: `initial` up to step `first`, exactly `final` from step `last` on.

    Example:
        >>> [cubic(step, 0, 4, 0.0, 0.64) for step in (0, 1, 2, 4, 9)]
        [0.0, 0.37, 0.56, 0.64, 0.64]
    """
    if step >= last:
        return final
    if step <= first:
        return initial
    return final + (initial - final) * (1 - (step - first) / (last - first)) ** 3


def is_due(step: int, first: int, last: int, every: int) -> bool:
    """Whether to prune at `step`: every `every` steps from `first` on, and always at `last`.

    Example:
        >>> [step for step in range(12) if is_due(step, 1, 9, 3)]
        [1, 4, 7, 9]
    """
    return first <= step <= last and ((step - first) % every == 0 or step == last)


def step_at(share: float, steps: int) -> int:
    """The step at which `share` of a run of `steps` is over, but at most the last step, so that its pass still follows.

    Example:
        >>> step_at(0.25, 100), step_at(1.0, 100)
        (25, 99)
    """
    return min(round(share * steps), steps - 1)


def check_rise(initial: object, sparsity: object) -> None:
    """Raise unless both are sparsities, and `initial` is not above `sparsity`."""
    if check_sparsity(initial, "initial") > check_sparsity(sparsity):
        raise PofError(f"initial={initial!r} must not exceed sparsity={sparsity!r}, where the schedule ends: swap them")


def check_shares(**shares: object) -> None:
    """Raise unless all are shares of a run, in [0, 1], and in ascending order."""
    former, least = "", 0.0
    for name, value in shares.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
            raise PofError(f"{name}={value!r} must be a share of the run, from 0 to 1: pass 0.5 for its middle")
        if float(value) < least:
            raise PofError(f"{name}={value!r} must not come before {former}={least:g}: both are shares of the run")
        former, least = name, float(value)
