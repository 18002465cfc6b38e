"""How much of a training to keep: all of it, a part of the way, or nothing. New inputs tell.

Training on few inputs can go too far: it learns them by heart, and pays for high sparsities with low ones. A part of
the way may then be better than all of it.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pof.fitting.fit_report import tensors_of

SHARES = (1.0, 0.5, 0.25)
"""The shares of the way that are tried."""


@torch.no_grad()
def keep_best_share(model: nn.Module, came: Mapping[str, Tensor], score: Callable[[], float], least: float) -> float:
    """Leave `model` where the score is least, on the way from `came` to its present tensors; return the share kept.

    `score` may change the model, such as its statistics; that is kept too. `least` is the score of `came`.
    """
    tensors = tensors_of(model)
    trained = {name: tensor.clone() for name, tensor in tensors.items()}
    best, chosen = 0.0, dict(came)
    for share in SHARES:
        for name, tensor in tensors.items():
            # Numbers that are counted, such as batches, have no halves.
            between = torch.lerp(came[name], trained[name], share) if tensor.is_floating_point() else trained[name]
            tensor.copy_(between)
        if (found := score()) < least:
            best, least, chosen = share, found, {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        tensor.copy_(chosen[name])
    return best
