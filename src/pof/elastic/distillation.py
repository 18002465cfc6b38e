"""Learning from another network: the passes of a step that can distil, the loss, and the network as it was at first."""

from copy import deepcopy
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional as F

from pof.checks import check_above_zero, check_share
from pof.errors import PofError
from pof.planning.wrappers import unwrap


class RunPass(Protocol):
    """Runs the present batch at the model's present weights."""

    def __call__(self, distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
        """One forward and backward pass; returns the loss, detached.

        It is the whole batch of the step, over all ranks and all parts in which its gradients are accumulated. Like
        `backward()` it adds to `.grad`, which is empty when `Method.gradients` is called.

        Args:
            distill: the share of the loss that is not that of the labels but the Kullback-Leibler divergence of the
                outputs from those of `teacher`.
            teacher: whose outputs are learnt, in a forward pass of its own; None: the first pass of this step.
            temperature: what both outputs are divided by before they are compared. The divergence is multiplied by its
                square, so that gradients stay about as large.
        """


def divergence(outputs: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The Kullback-Leibler divergence of the classes' probabilities from the teacher's, a mean over images."""
    found, wanted = (F.log_softmax(values.float() / temperature, 1) for values in (outputs, teacher))
    # Its gradient falls with the square (Hinton et al., Distilling the Knowledge in a Neural Network, 2015).
    return F.kl_div(found, wanted, reduction="batchmean", log_target=True) * temperature**2


def check_teaching(distill: float, temperature: float) -> None:
    """Refuse a `distill` that is not a share, and a `temperature` that is not above zero."""
    check_share(distill, "distill", "the share of the loss that is learnt from the dense network")
    check_above_zero(temperature, "temperature", "1 compares probabilities as they are, 3 counts small ones for more")
    if temperature != 1.0 and not distill:
        raise PofError(f"temperature={temperature:g} has no effect without distill: set distill=0.5, say")


class DenseTeacher:
    """The network as it was before it was pruned, for methods that learn a share `distill` of their loss from it.

    `temperature` is that of `RunPass`. With a share of 0 there is none, and nothing is copied.
    """

    def __init__(self, model: nn.Module, distill: float, temperature: float) -> None:
        self._distill, self._temperature = distill, temperature
        self.network = _frozen_copy(model) if distill else None

    def taught(self, run_pass: RunPass) -> Tensor:
        """One pass, and the teacher's forward one."""
        return run_pass(self._distill, self.network, self._temperature)

    def state_dict(self) -> dict[str, Any]:
        """The teacher, if there is one: the network that the run began with may be gone."""
        return {} if self.network is None else {"teacher": self.network.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave, among other things."""
        if self.network is not None:
            self.network.load_state_dict(state["teacher"])


def _frozen_copy(model: nn.Module) -> nn.Module:
    """`model` as it is now, in evaluation mode and without gradients."""
    return deepcopy(unwrap(model)).eval().requires_grad_(False)
