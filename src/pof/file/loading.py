"""Fill a model from a `.pof` file, at any sparsity."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pof.errors import PofError, PofFileError, warn
from pof.file.pof_file import PofFile
from pof.planning.live_paths import PathCheck, is_thin
from pof.planning.wrappers import unwrap
from pof.ranking.shares import GLOBAL_FLOOR
from pof.ranking.sparsity_state import State, asked_state


def load(
    path: str | Path,
    *,
    into: nn.Module,
    sparsity: float | None = None,
    recover_from: float | None = None,
    partial: bool = False,
) -> State:
    """Load a file into the module `into`, and return the state that was loaded.

    Args:
        path: a local path, or a URL that fsspec can read by ranges; only what the state needs is read.
        into: a module with the same keys and shapes; on any error it stays unchanged.
        sparsity: any sparsity in [0, 1); dense by default.
        recover_from: fill the band from this ratio to `sparsity` with alpha * sign(w).
        partial: accept a file that is cut off; without a sparsity, load the densest state that is complete.
    """
    if not isinstance(into, nn.Module):
        raise PofError(
            f"into is a {type(into).__name__}: pass a torch.nn.Module; pof.open(path).state_dict() gives tensors"
        )
    file = PofFile(path, partial=partial)
    state = file.densest if sparsity is None and recover_from is None else asked_state(sparsity, recover_from)
    found, lacks_statistics = file.tensors_and_lack(state)
    target = unwrap(into).state_dict(keep_vars=True)
    _refuse_other(target, found, file.name)
    _refuse_unwritable(unwrap(into), target)
    with torch.no_grad():
        for name, value in found.items():
            target[name].copy_(value)
    torch.clear_autocast_cache()
    if lacks_statistics:
        name = file.name.replace("\\", "/").rpartition("/")[2]
        warn(
            f"{name!r} has no BatchNorm statistics for {state}, so outputs may be far off: save it with "
            "calibrate=batches, or call pof.Elastic(model).calibrate(batches, paired=False)"
        )
    least = min(GLOBAL_FLOOR, 1 - state.sparsity)
    weights = (found[tensor.name] for tensor in file.head.of_role("pruned"))
    # Counting takes time, so only layers that may be thin are counted, in either scope.
    small = (weight for weight in weights if weight.dim() and is_thin(int(least * weight.numel()), len(weight)))
    counts = [(int(torch.count_nonzero(weight)), len(weight)) for weight in small]
    if thin := [count for count, rows in counts if is_thin(count, rows)]:
        PathCheck(unwrap(into)).warn_if_dead(state, min(thin))
    return state


def _refuse_unwritable(into: nn.Module, target: dict[str, Tensor]) -> None:
    """Raise an error if a tensor cannot be written to, or is only a copy of what the model uses."""
    own = {id(tensor) for tensor in (*into.parameters(), *into.buffers())}
    for name, tensor in target.items():
        if id(tensor) not in own:
            raise PofFileError(
                f"{name!r} is made by the model's own state_dict, so writing to it changes nothing: "
                "call model.load_state_dict(pof.open(path).state_dict(...))"
            )
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise PofFileError(f"{name!r} was made in inference mode and cannot be written to: load in that mode too")
        if torch._debug_has_internal_overlap(tensor) == 1:
            raise PofFileError(f"{name!r} of the model repeats one number in memory (expand): make it contiguous")


def _refuse_other(target: dict[str, Tensor], found: dict[str, Tensor], name: str) -> None:
    """Raise an error if the file does not fit the model."""
    for what, names in (
        ("the file lacks", target.keys() - found.keys()),
        ("the model has no place for", found.keys() - target.keys()),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise PofFileError(f"{name!r} does not fit the model: {what} {sorted(names)[0]!r}{more}")
    for key, value in found.items():
        if is_lazy(target[key]):
            raise PofFileError(f"{key!r} of the model has no shape yet (a lazy layer): run one batch through it first")
        if target[key].shape != value.shape:
            shapes = f"{tuple(value.shape)} instead of {tuple(target[key].shape)}"
            raise PofFileError(f"{name!r} does not fit the model: {key!r} has shape {shapes}")
        if target[key].is_meta:
            raise PofFileError(f"{key!r} of the model is on the meta device: call model.to_empty(device='cpu') first")
