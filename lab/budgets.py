"""The number and length of the runs behind the tables of docs/results.md: for a small machine, and in full."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How many runs there are, and how many epochs each has."""

    penalty: int
    """Epochs of fine-tuning with the penalty. Methods that are compared at one sparsity get twice as many passes."""
    scratch: int
    """Epochs of training a ResNet-20 from random weights."""
    every_size: int
    """Epochs of `nested` and `cram`, with two passes per step."""
    mobilenet: int
    """Like `penalty`, for the MobileNetV2, whose epochs take six times as long."""
    mobilenet_scratch: int
    """Epochs of training the dense MobileNetV2."""
    weights: int
    """Epochs of fine-tuning for the figure of weight distributions."""
    sparsities: tuple[float, ...]
    """Sparsities of the fine-tuned table."""
    seeds: tuple[int, ...]
    headline_seeds: tuple[int, ...]
    """Seeds of the rows that claims rest on."""
    left_out: tuple[str, ...] = ()
    """Rows that the fine-tuned table leaves out."""


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
