"""Run a recipe on the rank that the environment names, and keep its weights: `python two_processes.py RECIPE OUT`."""

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from pof.trainer.accelerator import engine_for
from pof.trainer.recipe import read_recipe
from pof.trainer.run import _Run
from pof.trainer.run_folder import own_folder
from pof.trainer.run_origin import open_records


def plain_net() -> nn.Module:
    """Without BatchNorm, whose statistics would depend on how a batch is split."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 10),
    )


def main(recipe_path: str, out: str) -> None:
    """Train, then write what this rank ended with."""
    torch.set_num_threads(1)
    recipe, folder = read_recipe(recipe_path), Path(out)
    engine = engine_for(recipe)
    run = _Run(recipe, folder, open_records(folder, recipe, engine), engine)
    with own_folder(folder) if engine.is_main_process else nullcontext():
        engine.wait_for_everyone()
        assert run.go(lambda _: None).finished
    state = {name: value.contiguous() for name, value in run._model.state_dict().items()}
    save_file(state, folder / f"rank{engine.process_index}.safetensors")
    engine.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
