"""A network that methods learn from: a copy of what they began with, which is not trained."""

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from pof.checks import check_above_zero, check_share
from pof.errors import PofError
from pof.methods.protocol import RunPass
from pof.planning import unwrap


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
