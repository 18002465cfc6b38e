"""BatchNorm in a training pass, with the statistics that the state would have after `Elastic.calibrate`.

Batch statistics alone are noisy, and they are not what the network runs with later. So each normalisation layer uses
the paired statistics of the batch (`pof.elastic.paired_statistics`): the teacher, the network as it came, sees the same
batch, and its kept statistics move by the difference. With the batch's mean m and variance v, and the paired M and V,

    gamma * (x - M) / sqrt(V + eps) + beta  =  gamma' * (x - m) / sqrt(v + eps) + beta'
    gamma' = gamma * sqrt((v + eps) / (V + eps)),   beta' = beta + gamma * (m - M) / sqrt(V + eps)

which is torch's own training-mode BatchNorm with another weight and bias, so its gradients are right.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pof.elastic.paired_statistics import moved

Moments = tuple[Tensor, Tensor]
"""The mean and the variance of each channel of a batch."""


class PairedNorms:
    """The normalisation layers of a model that is trained, and those of its teacher, which is a copy of it."""

    def __init__(self, model: nn.Module, teacher: nn.Module) -> None:
        self._pairs = [
            (own, other)
            for own, other in zip(model.modules(), teacher.modules(), strict=True)
            if isinstance(own, _BatchNorm) and isinstance(other, _BatchNorm) and own.running_mean is not None
        ]
        self._seen: dict[nn.Module, list[Moments]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Remember the moments of the teacher's layers for the pass inside the block."""
        self._seen = {own: [] for own, _ in self._pairs}

        def look(own: nn.Module, x: Tensor) -> None:
            self._seen[own].append(moments(x))

        hooks = [
            other.register_forward_pre_hook(lambda _, args, own=own: look(own, args[0])) for own, other in self._pairs
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def paired(self) -> Iterator[None]:
        """Let the layers of the model use paired statistics inside the block."""
        calls = {own: iter(self._seen[own]) for own, _ in self._pairs}
        kept = [(own, own.training, own.momentum, own.num_batches_tracked) for own, _ in self._pairs]
        hooks = []
        for own, other in self._pairs:
            own.training, own.momentum, own.num_batches_tracked = True, 0.0, None
            hooks.append(
                own.register_forward_pre_hook(
                    lambda own, args, other=other: _enter(own, other, args[0], next(calls[own]))
                )
            )
            hooks.append(own.register_forward_hook(_leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for own, training, momentum, count in kept:
                own.training, own.momentum, own.num_batches_tracked = training, momentum, count


def moments(x: Tensor) -> Moments:
    """The mean and the variance of each channel (dimension 1) of `x`."""
    with torch.no_grad():
        # BatchNorm's own way, 15 times as fast as `torch.var_mean`; with buffers in float32 the moments are so too.
        wide = torch.promote_types(x.dtype, torch.float32)
        unused = torch.zeros(x.shape[1], dtype=wide, device=x.device)
        mean, variance = torch.batch_norm_update_stats(x, unused, unused.clone(), 0.0)
    return mean, variance


def _enter(own: Any, other: Any, x: Tensor, dense: Moments) -> None:
    """Give the layer the weight and bias that turn batch statistics into paired ones."""
    weight, bias = own._parameters["weight"], own._parameters["bias"]
    with torch.no_grad():
        mean, variance = moments(x)
        # One value per channel has no variance to speak of; torch refuses it, and so would training.
        paired_mean, paired_variance = moved((other.running_mean, other.running_var), dense, (mean, variance), own.eps)
        spread = (paired_variance + own.eps).sqrt()
        dtype = own.running_mean.dtype
        factor = ((variance + own.eps).sqrt() / spread).to(dtype)
        shift = ((mean - paired_mean) / spread).to(dtype)
    own._plain_parameters = weight, bias
    own._parameters["weight"] = factor if weight is None else weight * factor
    own._parameters["bias"] = shift if weight is None else (weight * shift if bias is None else bias + weight * shift)


def _leave(own: Any, args: object, output: object) -> None:
    own._parameters["weight"], own._parameters["bias"] = own._plain_parameters
    del own._plain_parameters
