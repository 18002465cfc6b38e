"""Reading weights (safetensors, .pof, and .pth without unpickling arbitrary objects) and writing them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pof.errors import PofError
from pof.file import PofFile
from pof.replacing import replacing

WRAPPERS = ("state_dict", "model", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The state_dict in a file: bare, or inside a checkpoint's `state_dict`; prefixes of wrappers are taken off."""
    file = Path(path)
    if file.is_dir():
        file = file / "model.safetensors"
    if file.suffix == ".pof":
        return PofFile(file).state_dict()
    try:
        state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except FileNotFoundError:
        raise PofError(f"no weights at {str(file)!r}: give --weights FILE, or model.weights in the recipe") from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise PofError(f"cannot read the weights {str(file)!r}: {error}".splitlines()[0]) from None
    except Exception as error:  # torch raises pickle's own errors for what is not plain tensors
        raise PofError(
            f"{str(file)!r} holds more than tensors ({type(error).__name__}) and is not unpickled: save its state_dict"
        ) from None
    return _bare(state, file)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a file into `model`, strictly: every key there, none too many, all shapes equal."""
    state = read_weights(path)
    own = model.state_dict()
    for what, names in (("lacks", set(own) - set(state)), ("has no place for", set(state) - set(own))):
        names = {name for name in names if not name.endswith("num_batches_tracked")}
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise PofError(f"{str(path)!r} does not fit the model: it {what} {sorted(names)[0]!r}{more}")
    for name, value in state.items():
        if name in own and value.shape != own[name].shape:
            shapes = f"{tuple(value.shape)} instead of {tuple(own[name].shape)}"
            raise PofError(f"{str(path)!r} does not fit the model: {name!r} has shape {shapes}")
    model.load_state_dict({name: state.get(name, value) for name, value in own.items()})


def write_weights(model: nn.Module, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the model's own state_dict as safetensors, whole or not at all."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    with replacing(path) as temporary:
        save_tensors(tensors, temporary, metadata)


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """As safetensors' own `save_file`; a file that cannot be written is an OSError as everywhere else."""
    try:
        save_file(tensors, path, metadata=dict(metadata))
    except SafetensorError as error:
        raise OSError(str(error)) from None


def _bare(state: Any, file: Path) -> dict[str, Tensor]:
    for wrapper in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise PofError(f"{str(file)!r} is no state_dict: expected names and tensors")
    bare = dict(state)
    for prefix in PREFIXES:
        if bare and all(name.startswith(prefix) for name in bare):
            bare = {name.removeprefix(prefix): value for name, value in bare.items()}
    return bare
