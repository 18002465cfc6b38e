"""The user's own module inside the wrappers that torch puts around it."""

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside DistributedDataParallel, DataParallel, AveragedModel, or the wrapper of torch.compile."""
    while True:
        if isinstance(model, (DistributedDataParallel, nn.DataParallel, AveragedModel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model
