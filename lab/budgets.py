"""How long the runs behind the tables of docs/results.md are, and how many: for a small machine, and in full."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How long runs are, in epochs."""

    penalty: int
    """Fine-tuning with the penalty. Methods that are compared at a sparsity get twice as many passes."""
    scratch: int
    """Training a ResNet-20 from random weights."""
    every_size: int
    """Of `nested` and `cram`, two passes a step."""
    mobilenet: int
    """As `penalty`, for the MobileNetV2, an epoch of which takes six times as long."""
    mobilenet_scratch: int
    """Training the dense MobileNetV2."""
    weights: int
    """Fine-tuning for the figure of weight distributions."""
    sparsities: tuple[float, ...]
    """Of the fine-tuned table."""
    seeds: tuple[int, ...]
    headline_seeds: tuple[int, ...]
    """Of the rows that claims rest on."""
    left_out: tuple[str, ...] = ()
    """Rows of the fine-tuned table that it does without."""


BUDGETS = {
    "quick": Budget(
        penalty=2, scratch=5, every_size=2, mobilenet=1, mobilenet_scratch=4, weights=1,
        sparsities=(0.8, 0.9), seeds=(0,), headline_seeds=(0, 1), left_out=("dpf-global",),
    ),
    "full": Budget(
        penalty=10, scratch=36, every_size=10, mobilenet=5, mobilenet_scratch=18, weights=10,
        sparsities=(0.6, 0.7, 0.8, 0.9), seeds=(0, 1), headline_seeds=(0, 1),
    ),
}  # fmt: skip
