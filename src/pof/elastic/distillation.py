"""Learning from another network: passes that distil, the loss they use, and a copy of the dense network as teacher."""

from copy import deepcopy
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from pof.checks import check_above_zero, check_share
from pof.errors import PofError
from pof.planning.wrappers import unwrap


class RunPass(Protocol):
    """Runs the current batch with the model's current weights."""

    def __call__(self, distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
        """Run one forward and backward pass; return the loss, detached.

        It covers the whole batch of the step: all ranks, and all parts over which gradients are accumulated. Like
        `backward()`, it adds to `.grad`, which is empty when `Method.gradients` is called.

        Args:
            distill: the share of the loss that comes from the teacher instead of the labels: the Kullback-Leibler
                divergence of the outputs from those of `teacher`.
            teacher: the network to learn from, in a forward pass of its own; None learns from the first pass of this
                step.
            temperature: both outputs are divided by it before they are compared. The divergence is multiplied by its
                square, so that the size of the gradients hardly changes.
        """


def divergence(outputs: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The Kullback-Leibler divergence of the class probabilities from the teacher's, averaged over the images."""
    if outputs.dim() < 2 or outputs.shape != teacher.shape:
        shapes = f"{tuple(outputs.shape)} and {tuple(teacher.shape)}"
        raise PofError(f"logits of the shapes {shapes} cannot be compared: they must be (..., classes), and alike")
    rows = (values.float().reshape(-1, values.shape[-1]) / temperature for values in (outputs, teacher))
    found, wanted = (F.log_softmax(values, 1) for values in rows)
    # The gradient falls with the square of T (Hinton et al., Distilling the Knowledge in a Neural Network, 2015).
    return F.kl_div(found, wanted, reduction="batchmean", log_target=True) * temperature**2


def check_teaching(distill: float, temperature: float) -> None:
    """Raise unless `distill` is a share and `temperature` is above zero."""
    check_share(distill, "distill", "the share of the loss that is learnt from the dense network")
    check_above_zero(temperature, "temperature", "1 compares probabilities as they are, 3 gives small ones more weight")
    if temperature != 1.0 and not distill:
        raise PofError(f"temperature={temperature:g} has no effect without distill: set distill=0.5, say")


class DenseTeacher:
    """A copy of the network before it was pruned, for methods that learn a share `distill` of their loss from it.

    `temperature` is that of `RunPass`. With a share of 0 there is no teacher, and nothing is copied.
    """

    def __init__(self, model: nn.Module, distill: float, temperature: float) -> None:
        self._distill, self._temperature = distill, temperature
        self.network = _frozen_copy(model) if distill else None

    def taught(self, run_pass: RunPass) -> Tensor:
        """Run one pass that learns from the teacher, if there is one."""
        return run_pass(self._distill, self.network, self._temperature)

    def state_dict(self) -> dict[str, Any]:
        """The teacher, if there is one. It is saved because the network that the run began with may be gone."""
        return {} if self.network is None else {"teacher": self.network.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `state` may hold more."""
        if self.network is None:
            return
        if "teacher" not in state:
            raise PofError("this state comes from a training without a teacher: use the same settings as then")
        self.network.load_state_dict(state["teacher"])


def _frozen_copy(model: nn.Module) -> nn.Module:
    """`model` as it is now, in evaluation mode and without gradients."""
    return deepcopy(unwrap(model)).eval().requires_grad_(False)
