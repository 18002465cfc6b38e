"""What a run tells whoever shows it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepDone:
    """A step was made."""

    step: int
    """How many there have been, since the run began."""
    steps: int
    epoch: int
    """The present one; 0 is the first."""
    loss: float
    """The mean over the last few steps."""
    epoch_loss: float
    """The mean over the steps of this epoch up to the last look at the loss, since this process began."""
    learning_rate: float
    images: int
    """Images seen since this process began."""
    figures: Mapping[str, float]
    """The method's own, such as penalty, mean cosine and tr; taken every few steps."""


@dataclass(frozen=True)
class EpochDone:
    """An epoch ended."""

    epoch: int
    """How many there have been."""
    epochs: int
    figures: Mapping[str, float]
    """Loss, images per second, the method's own, and the accuracy if the epoch was evaluated."""


@dataclass(frozen=True)
class StateTested:
    """One state of the finished network was tested."""

    state: str
    done: int
    states: int


Event = StepDone | EpochDone | StateTested
Show = Callable[[Event], None]
