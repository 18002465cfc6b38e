"""The events that a run reports to whoever displays it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepDone:
    """A step is done."""

    step: int
    """Steps done since the run began."""
    steps: int
    epoch: int
    """The current epoch, counted from 0."""
    loss: float
    """Mean loss of the last few steps."""
    epoch_loss: float
    """Mean loss of this epoch's steps in this process, up to the last time the loss was read."""
    learning_rate: float
    images: int
    """Images seen since this process began."""
    figures: Mapping[str, float]
    """The method's own figures, such as penalty, mean cosine and tr; updated every few steps."""


@dataclass(frozen=True)
class EpochDone:
    """An epoch is done."""

    epoch: int
    """Epochs done since the run began."""
    epochs: int
    figures: Mapping[str, float]
    """Loss, images per second, the method's own figures, and the accuracy if this epoch was evaluated."""


@dataclass(frozen=True)
class StateTested:
    """One state of the finished network was tested."""

    state: str
    done: int
    states: int


Event = StepDone | EpochDone | StateTested
Show = Callable[[Event], None]
