"""Two real processes (gloo, on the CPU) train as one does with the same global batch."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

HERE = Path(__file__).parent
RECIPE = """
[model]
name = "two_processes:plain_net"
[data]
name = "digits"
batch = 64
[optimizer]
learning_rate = 0.05
[run]
epochs = 2
accumulate = {accumulate}
[method]
{method}
"""
TOLERANCE = 2e-4
"""Sums of gradients round otherwise when a batch is split; over 40 steps this stays far below the figures' own size."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train(folder: Path, recipe: Path, ranks: int) -> list[dict[str, torch.Tensor]]:
    folder.mkdir()
    port = free_port()
    processes = []
    for rank in range(ranks):
        environment = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
        if ranks > 1:
            environment |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "ACCELERATE_USE_CPU": "true",
            }
        command = [sys.executable, str(HERE / "two_processes.py"), str(recipe), str(folder)]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    return [load_file(folder / f"rank{rank}.safetensors") for rank in range(ranks)]


def losses(folder: Path) -> list[float]:
    records = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "epoch"]


@pytest.mark.parametrize(
    ("method", "accumulate"), [('name = "pof"', 1), ('name = "dpf"\nsparsity = 0.8', 2)], ids=["pof", "dpf"]
)
def test_two_processes_train_as_one(method: str, accumulate: int, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(method=method, accumulate=accumulate))
    (alone,) = train(tmp_path / "one", recipe, 1)
    first, second = train(tmp_path / "two", recipe, 2)
    assert all(torch.equal(first[name], second[name]) for name in first), "both ranks hold the same bits"
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=TOLERANCE)
    for name, value in alone.items():
        torch.testing.assert_close(first[name], value, atol=5e-3, rtol=0)
