"""The runtime: unstructured sparsity that runs faster on a CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from pof.runtime.choice import LayerTime
from pof.runtime.compiled import CompiledModel

__all__ = ["CompiledModel", "LayerTime", "compile"]


def compile(
    model: nn.Module, example: Tensor | Sequence[Any] | Mapping[str, Any], *, threads: int | None = None
) -> CompiledModel:
    """Compile `model`, at its present sparsity, to run faster on this CPU, with the same outputs.

    The model is exported (`torch.export`); BatchNorm, additions and ReLUs join the convolutions before them; each layer
    runs on the sparse kernels or on torch, whichever is faster here; if nothing is gained, torch runs it all. The model
    itself is not changed. Its weights are copied: `update()` of the result takes up others.

    Args:
        model: in evaluation mode, on the CPU, in float32.
        example: an input, a tuple of inputs, or a dict of inputs by name. Other sizes of batch work too, and are timed
            when they first come.
        threads: how many to use; torch's number by default.

    Raises:
        PofError: the model cannot be exported, or pof was built without its compiled core.

    Example:
        >>> import torch, pof
        >>> model = pof.models.resnet20().eval()
        >>> pof.Elastic(model).prune(0.9)
        >>> images = torch.randn(1, 3, 32, 32)
        >>> fast = pof.compile(model, images)
        >>> bool(torch.allclose(fast(images), model(images), atol=1e-3))
        True
    """
    return CompiledModel(model, example, threads)
