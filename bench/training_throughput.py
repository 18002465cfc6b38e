"""The speed of `pof train` on a CIFAR-10 ResNet-20, compared with a minimal hand-written loop over the same tensors.

    python bench/training_throughput.py [--rounds 21] [--sets 5] [--steps 1] [--threads N]

Prints JSON: the median milliseconds of rounds in which all loops make the same number of steps, the median of the
ratios within a round (above 1: faster than the hand-written loop), and the share of a step that the input pipeline
takes.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from accelerate import Accelerator
from torch.nn import functional as F

import pof
from pof.data import DATASETS
from pof.data.protocol import Dataset
from pof.trainer.from_recipe import build_method, build_model, build_optimizer
from pof.trainer.kept_heap import keep_freed_memory
from pof.trainer.loop import Trainer, span_of
from pof.trainer.recipe import Recipe, recipe_from
from pof.trainer.winograd import winograd_convolutions
from timing import interleaved, machine, median_milliseconds, ratio

BATCH = 128


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--sets", type=int, default=5, help="how often to build everything again")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `pof train` does, but for all loops, so that only their work differs
    data = DATASETS["cifar10"]()
    seconds: dict[str, list[float]] = {}
    # Two loops of the same code may differ by several per cent for as long as they live, depending on where their
    # memory happens to lie; so each is built several times.
    for _ in range(options.sets):
        candidates = {
            "hand-written loop": _hand_written(data, options.steps),
            "hand-written loop, Winograd": _hand_written(data, options.steps, winograd_convolutions),
            "pof train, dense": _trainer(data, "dense", options.steps),
            "pof train, pof": _trainer(data, "pof", options.steps),
        }
        for name, times in interleaved(candidates, options.rounds).items():
            seconds.setdefault(name, []).extend(times)
    step = statistics.median(seconds["pof train, dense"]) / options.steps
    result = {
        "bench": "training_throughput",
        "model": "resnet20",
        "data": "cifar10",
        "batch": BATCH,
        "steps_a_round": options.steps,
        "milliseconds_a_round": median_milliseconds(seconds),
        "throughput_of_dense_against_the_hand_written_loop": ratio(seconds, "hand-written loop", "pof train, dense"),
        "throughput_of_pof_against_the_hand_written_loop": ratio(seconds, "hand-written loop", "pof train, pof"),
        "throughput_of_dense_against_that_loop_with_winograd": ratio(
            seconds, "hand-written loop, Winograd", "pof train, dense"
        ),
        "input_pipeline_share_of_a_step": round(_pipeline_seconds(data, 100) / step, 4),
        "rounds": options.rounds,
        "sets": options.sets,
        "machine": machine(),
    }
    print(json.dumps(result, indent=2))


def _recipe(method: str) -> Recipe:
    return recipe_from({"data": {"name": "cifar10", "batch": BATCH}, "method": {"name": method}})


def _trainer(data: Dataset, method: str, steps: int) -> Callable[[], None]:
    """The loop of `pof train`, with its engine, its data and its method."""
    recipe, engine = _recipe(method), Accelerator(cpu=True)
    torch.manual_seed(0)
    model = build_model(recipe.model, data.classes)
    optimizer = build_optimizer(recipe, model)
    wrapped, wrapped_optimizer = engine.prepare(model, optimizer)
    made = build_method(recipe, model, wrapped_optimizer, span_of(recipe, data))
    progress = Trainer(recipe, wrapped, wrapped_optimizer, made, data, engine).steps(0)

    def run() -> None:
        with winograd_convolutions():  # as `run_recipe` does
            for _ in range(steps):
                next(progress)

    return run


def _hand_written(
    data: Dataset, steps: int, inside: Callable[[], AbstractContextManager[object]] = nullcontext
) -> Callable[[], None]:
    """The loop that one would write by hand: the same batches, and a few lines per step."""
    torch.manual_seed(0)
    model = pof.models.resnet20().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    batches = _endless(data)

    def run() -> None:
        with inside():
            for _ in range(steps):
                images, labels = next(batches)
                loss = F.cross_entropy(model(images.to(memory_format=torch.channels_last)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return run


def _endless(data: Dataset) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    epoch = 0
    while True:
        yield from data.train_batches(BATCH, seed=0, epoch=epoch)
        epoch += 1


def _pipeline_seconds(data: Dataset, batches: int) -> float:
    """The seconds that it takes to make a batch."""
    found = _endless(data)
    next(found)
    start = time.perf_counter()
    for _ in range(batches):
        next(found)
    return (time.perf_counter() - start) / batches


if __name__ == "__main__":
    main()
