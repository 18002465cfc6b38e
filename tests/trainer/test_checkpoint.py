from pathlib import Path

import pytest
import torch

from pof.errors import PofError
from pof.trainer.checkpoint import read_tree, write_tree

TREE = {
    "step": 3,
    "optimizer": {"state": {0: {"momentum": torch.arange(6.0).view(2, 3), "step": torch.tensor(4)}, 1: {}}},
    "groups": [{"lr": 0.1, "params": [0, 1], "name": None, "on": True}],
    "masks": {"a.weight": torch.tensor([True, False])},
    "half": torch.tensor([1.5], dtype=torch.bfloat16),
}


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    write_tree(tmp_path / "c.safetensors", TREE)
    found = read_tree(tmp_path / "c.safetensors")
    assert found["groups"] == TREE["groups"]
    assert list(found["optimizer"]["state"]) == [0, 1], "keys keep their type"
    momentum = found["optimizer"]["state"][0]["momentum"]
    assert torch.equal(momentum, TREE["optimizer"]["state"][0]["momentum"])
    assert found["masks"]["a.weight"].dtype is torch.bool
    assert found["half"].dtype is torch.bfloat16
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"], "no temporary file is left"


def test_a_tree_of_other_things_is_refused_and_the_old_file_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    write_tree(path, TREE)
    before = path.read_bytes()
    with pytest.raises(PofError, match="holds a set"):
        write_tree(path, {"a": {1, 2}})
    assert path.read_bytes() == before


def test_a_broken_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    write_tree(path, TREE)
    whole = path.read_bytes()
    for broken in (b"", whole[:20], whole[:-10], b"\xff" * 100):
        path.write_bytes(broken)
        with pytest.raises(PofError, match=r"is broken .*delete it to start over") as caught:
            read_tree(path)
        assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PofError, match="cannot write"):
        write_tree(tmp_path / "missing" / "c.safetensors", TREE)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    write_tree(path, TREE)
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        if whole[place] == ord(" ") and place < 8 + int.from_bytes(whole[:8], "little"):
            continue  # the header's padding may be any white space
        with pytest.raises(PofError, match="is broken"):
            read_tree(path)
