"""A pass of a training loop on pruned weights: the one primitive of every method that trains on them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn
from torch.utils.hooks import RemovableHandle

from pof.checks import check_choice
from pof.errors import WeightsChangedError
from pof.model_states import ModelStates
from pof.planning import plan, unwrap
from pof.states import Magnitudes, Scope, pruned_state


@contextmanager
def pruned(
    model: nn.Module,
    sparsity: float,
    *,
    recover_from: float | None = None,
    scope: Scope = "layer",
    magnitudes: Magnitudes = "raw",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    sparsities: Mapping[str, float] | None = None,
    masked: bool = False,
) -> Iterator[None]:
    """For training loops: `model` has pruned weights inside the block, and its dense ones after it.

    Call `backward()` inside the block: the gradients land on the dense weights. BatchNorm statistics are put back too.
    Step the optimiser outside.

    Args:
        model: any module.
        sparsity: as in `Elastic.prune`.
        recover_from: fill the band from here to `sparsity`, as in `Elastic.recover`.
        scope: as in `Elastic`.
        magnitudes: as in `Elastic`.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        sparsities: as in `Elastic`.
        masked: whether weights that are zero inside get no gradient from there, as `nested` does. Without it they get
            one too (straight-through), and may come back. A filter that is pruned whole makes its BatchNorm divide by
            next to nothing, and that gradient explode: networks with depthwise layers need the mask.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 4)
        >>> with pruned(model, 0.75):
        ...     model(torch.ones(1, 8)).sum().backward()
        ...     int((model.weight == 0).sum())
        24
        >>> int((model.weight == 0).sum())
        0
    """
    state = pruned_state(sparsity, recover_from)
    check_choice(scope, "scope", ("layer", "global"))
    check_choice(magnitudes, "magnitudes", ("raw", "unit"))
    chosen = plan(model, include=include, exclude=exclude, sparsities=sparsities)
    states = ModelStates(unwrap(model), chosen, scope, magnitudes, many_states=False)
    states.copy_dense()
    changed = None
    hooks = [_mask_gradient(weight.parameter) for weight in states.weights if masked and weight.parameter.requires_grad]
    try:
        states.go(state)
        yield
        changed = next((weight.entry.name for weight in states.weights if weight.change() is not None), None)
    finally:
        for hook in hooks:
            hook.remove()
        states.undo()
    states.check_layers()
    if changed is not None:
        raise WeightsChangedError(
            f"weight {changed!r} was changed inside pof.pruned, and the change is lost: step the optimizer outside"
        )


def _mask_gradient(weight: nn.Parameter) -> RemovableHandle:
    """No gradient from now on where `weight` is zero when the gradient is made."""
    handle: RemovableHandle = weight.register_hook(lambda gradient: gradient.masked_fill(weight.detach() == 0, 0.0))
    return handle
