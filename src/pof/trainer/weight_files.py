"""Reads weights (safetensors, .pof, and .pth without unpickling arbitrary objects), and writes them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pof.errors import PofError, first_line
from pof.file.atomic_write import replacing
from pof.file.locations import at_hand, is_remote, local, suffix_of
from pof.file.pof_file import PofFile
from pof.file.tensor_files import save_tensors

WRAPPERS = ("state_dict", "model", "model_state_dict")
CHECKPOINT_KEY = "checksum"
"""A metadata key that only a run's checkpoints have."""
PREFIXES = ("module.", "_orig_mod.")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Read the state_dict in a file, bare or inside a checkpoint's `state_dict`; strip prefixes of wrappers."""
    if suffix_of(path) == ".pof":
        return PofFile(path).state_dict()
    if is_remote(path):
        with at_hand(path) as copy:
            return read_weights(copy)
    file = Path(local(path))
    if file.is_dir():
        file = file / "model.safetensors"
    if CHECKPOINT_KEY in facts_of(file):
        raise PofError(
            f"{str(file)!r} is a checkpoint of a run: name the run's folder, which has the weights once it ends"
        )
    try:
        state = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except FileNotFoundError:
        raise PofError(f"no weights at {str(file)!r}: check the path") from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        reason = first_line(error) if str(error) else "it is empty or cut off"
        raise PofError(f"cannot read the weights {str(file)!r}: {reason}") from error
    except Exception as error:  # torch raises pickle's own errors for anything but plain tensors
        raise PofError(
            f"{str(file)!r} holds more than tensors ({type(error).__name__}), and nothing else is unpickled: "
            "save a state_dict"
        ) from None
    return _bare(state, file)


def facts_of(path: str | Path) -> dict[str, str]:
    """Return what a file of weights says about itself, if anything: model, data, magnitudes and scope."""
    if suffix_of(path) == ".pof":
        found = PofFile(path)
        return {**found.metadata, "magnitudes": found.head.magnitudes, "scope": found.head.scope}
    if is_remote(path):
        with at_hand(path) as copy:
            return facts_of(copy)
    file = Path(local(path))
    if file.suffix == ".safetensors" and file.is_file():
        try:
            with safe_open(file, framework="pt") as tensors:
                return dict(tensors.metadata() or {})
        except (OSError, SafetensorError) as error:
            raise PofError(f"cannot read the weights {str(file)!r}: {first_line(error)}") from error
    return {}


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a file into `model`, strictly: no key missing, none left over, all shapes equal."""
    load_state(model, read_weights(path), path)


def load_state(model: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Load `state`, which was read from `path`, into `model`, strictly."""
    own = model.state_dict()
    for what, names in (
        ("the file lacks", set(own) - set(state)),
        ("the model has no place for", set(state) - set(own)),
    ):
        names = {name for name in names if not name.endswith("num_batches_tracked")}
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise PofError(f"{str(path)!r} does not fit the model: {what} {sorted(names)[0]!r}{more}")
    for name, value in state.items():
        if name in own and value.shape != own[name].shape:
            shapes = f"{tuple(value.shape)} instead of {tuple(own[name].shape)}"
            raise PofError(f"{str(path)!r} does not fit the model: {name!r} has shape {shapes}")
        if name in own and value.is_complex() and not own[name].is_complex():
            raise PofError(f"{str(path)!r} does not fit the model: {name!r} is complex")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise PofError(f"{str(path)!r} holds NaN or inf in {name!r}: its training failed, use other weights")
    model.load_state_dict({name: state.get(name, value) for name, value in own.items()})


def write_weights(model: nn.Module, path: Path, metadata: Mapping[str, str]) -> None:
    """Write the model's own state_dict as safetensors, whole or not at all."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    with replacing(path) as temporary:
        save_tensors(tensors, temporary, metadata)


def _bare(state: Any, file: Path) -> dict[str, Tensor]:
    for wrapper in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(wrapper), Mapping):
            state = state[wrapper]
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) and value.layout is torch.strided
        for name, value in state.items()
    ):
        raise PofError(f"{str(file)!r} is not a state_dict: expected names and plain tensors")
    bare = dict(state)
    for prefix in PREFIXES:
        if bare and all(name.startswith(prefix) for name in bare):
            bare = {name.removeprefix(prefix): value for name, value in bare.items()}
    return bare
