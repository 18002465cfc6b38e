"""Train with `pof.Nested` on the rank that the environment names: `python nested_ranks.py OUT`."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pof


def main(out: str) -> None:
    """A few steps, each in two parts that are accumulated; the ranks share every batch."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)
    )
    plain = model
    if ranks > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    nested = pof.Nested(model, low=0.3, high=0.9, seed=4, teacher=True, clean=0.5, weight=0.7)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1)
    for _ in range(4):
        x, y = torch.randn(16, 1, 8, 8), torch.randint(5, (16,))
        optimizer.zero_grad()
        for part, (images, labels) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
            mine, answers = images.chunk(ranks)[rank], labels.chunk(ranks)[rank]

            def loss(mine: torch.Tensor = mine, answers: torch.Tensor = answers) -> tuple[torch.Tensor, torch.Tensor]:
                logits = model(mine)
                return F.cross_entropy(logits, answers), logits

            # Ranks exchange gradients once per step, with the last part.
            with model.no_sync() if ranks > 1 and part == 0 else nullcontext():
                nested.backward(loss, parts=2)
        optimizer.step()
    save_file({name: value.contiguous() for name, value in plain.state_dict().items()}, Path(out) / f"{rank}of{ranks}")
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
        # Threads of torch's that are still there may abort a process that ends; the weights are written.
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
