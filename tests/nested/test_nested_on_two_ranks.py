"""`pof.Nested` under DistributedDataParallel: two real processes train as one does, with accumulated gradients."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "nested_ranks.py"


def train(out: Path, ranks: int) -> list[dict[str, torch.Tensor]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    processes = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(place if ranks > 1 else {})}
        command = [sys.executable, str(SCRIPT), str(out)]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    return [load_file(out / f"{rank}of{ranks}") for rank in range(ranks)]


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    (alone,) = train(tmp_path, 1)
    first, second = train(tmp_path, 2)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        torch.testing.assert_close(value, alone[name], rtol=1e-4, atol=1e-5)
