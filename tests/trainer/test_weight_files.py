import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import pof
from pof.errors import PofError
from pof.models import digits_convnet
from pof.trainer.weight_files import load_weights, read_weights, write_weights


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil",)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("form", ["safetensors", "bare", "state_dict", "module", "run"])
def test_forms_of_weights(form: str, tmp_path: Path) -> None:
    source, target = digits_convnet(), digits_convnet()
    state = source.state_dict()
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
    if form == "safetensors":
        save_file(state, path)
    elif form == "bare":
        torch.save(state, path)
    elif form == "state_dict":
        torch.save({"state_dict": state, "epoch": 3}, path)
    elif form == "module":
        torch.save({"state_dict": {f"module.{name}": value for name, value in state.items()}}, path)
    else:
        write_weights(source, tmp_path / "model.safetensors", {"recipe": "abc"})
        path = tmp_path
    assert not same(source, target)
    load_weights(target, path)
    assert same(source, target)


def test_loading_is_strict_and_leaves_the_model_alone(tmp_path: Path) -> None:
    model = digits_convnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cases = {
        "lacks 'fc.weight'": lambda state: state.pop("fc.weight"),
        "has no place for 'more'": lambda state: state.update(more=torch.ones(1)),
        r"'fc.bias' has shape \(3,\)": lambda state: state.update({"fc.bias": torch.ones(3)}),
    }
    for message, change in cases.items():
        state = dict(digits_convnet().state_dict())
        change(state)
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(PofError, match=message):
            load_weights(model, tmp_path / "w.pth")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Evil()}, tmp_path / "w.pth")
    with pytest.raises(PofError, match="nothing else is unpickled"):
        read_weights(tmp_path / "w.pth")
    assert not (tmp_path / "evil").exists()


def test_what_is_no_weights(tmp_path: Path) -> None:
    with pytest.raises(PofError, match="no weights at"):
        read_weights(tmp_path / "none.pth")
    torch.save({"a": 3}, tmp_path / "w.pth")
    with pytest.raises(PofError, match="is not a state_dict"):
        read_weights(tmp_path / "w.pth")
    (tmp_path / "w.safetensors").write_bytes(b"junk")
    with pytest.raises(PofError, match="cannot read the weights"):
        read_weights(tmp_path / "w.safetensors")


def test_a_pof_file_is_read_dense(tmp_path: Path) -> None:
    model = digits_convnet()
    pof.save(model, tmp_path / "m.pof")
    other = digits_convnet()
    load_weights(other, tmp_path / "m.pof")
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    (tmp_path / "m.pof").write_bytes(b"junk")
    with pytest.raises(PofError, match=r"not a \.pof file"):
        load_weights(other, tmp_path / "m.pof")


def test_the_shipped_baseline_loads() -> None:
    file = Path(__file__).parents[2] / "lab" / "weights" / "cifar10-resnet20-dense.pof"
    load_weights(pof.models.resnet20(), file)
    assert pof.open(file).metadata["recipe"] == "recipes/cifar10-resnet20-dense.toml"
