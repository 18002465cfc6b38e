"""The runs behind the tables of docs/results.md: which recipes, which start from which, and what they cost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pof.checks import check_choice
from pof.train.recipe import Recipe, recipe_from

TABLES = ("instant", "fine_tuned", "every_size")
TRAIN_IMAGES = 50_000
BASELINE = "weights/cifar10-resnet20-dense.pof"
PAPER_BANDS = ((0.1, 0.4), (0.1, 0.6), (0.1, 0.8), (0.3, 0.5), (0.3, 0.7), (0.3, 0.9))
PEER_BANDS = ((0.35, 0.8), (0.4, 0.7))
"""Beside DPF and DSR in the paper."""
Table = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """How long runs are, in epochs."""

    penalty: int
    """Fine-tuning with the penalty. Methods that are compared at a sparsity get twice as many passes."""
    scratch: int
    every_size: int
    """Of `nested` and `cram`, two passes a step."""
    sparsities: tuple[float, ...]
    """Of the fine-tuned table."""
    seeds: tuple[int, ...]


BUDGETS = {
    "quick": Budget(penalty=2, scratch=8, every_size=2, sparsities=(0.8, 0.9), seeds=(0,)),
    "full": Budget(penalty=10, scratch=36, every_size=10, sparsities=(0.6, 0.7, 0.8, 0.9), seeds=(0, 1)),
}


@dataclass(frozen=True)
class Experiment:
    """One run."""

    name: str
    """Of its folder and its record."""
    table: str
    """One of `TABLES`."""
    label: str
    """What it is called in tables."""
    recipe: Recipe
    passes: int = 1
    """Forward-backward passes a step."""
    after: str = ""
    """The experiment whose weights it starts from."""
    sparsity: float | None = None
    """That it was trained for, if it is for one."""

    @property
    def images(self) -> int:
        """How many images pass through the network, forward and backward."""
        return self.passes * self.recipe.run.epochs * TRAIN_IMAGES


def experiments(budget: str, runs: str = "runs") -> tuple[Experiment, ...]:
    """All of a budget, in an order in which they can run; those that start from others do from folders in `runs`."""
    check_choice(budget, "budget", tuple(BUDGETS))
    plan, found = BUDGETS[budget], []
    for seed in plan.seeds:
        found += [*_every_size(plan, seed), *_instant(plan, seed), *_fine_tuned(plan, seed, budget, runs)]
    return tuple(_named(experiment, budget) for experiment in found)


def _named(experiment: Experiment, budget: str) -> Experiment:
    """With the budget and the seed in its name."""
    return Experiment(**{**vars(experiment), "name": full_name(experiment.name, budget, experiment.recipe.run.seed)})


def full_name(name: str, budget: str, seed: int) -> str:
    """The name of an experiment's folder and record."""
    return f"{name}-{budget}-{seed}"


def _recipe(method: Table, epochs: int, seed: int, table: Table, **others: Any) -> Recipe:
    """The recipe that all of them share: only the method and the length differ."""
    model = {"name": "resnet20", "weights": BASELINE}
    optimizer: Table = {"learning_rate": 0.05, "weight_decay": 5e-4, "nesterov": True}
    if others.pop("scratch", False):
        model["weights"] = ""
        optimizer |= {"learning_rate": 0.2, "warmup": 1.0}
    model |= others
    run = {"epochs": epochs, "seed": seed, "evaluate_every": 100}
    return recipe_from({"model": model, "optimizer": optimizer, "run": run, "table": table, "method": method})


def _instant(plan: Budget, seed: int) -> Iterator[Experiment]:
    bands = [list(band) for band in (*PAPER_BANDS, *PEER_BANDS)]
    table = {"sparsities": [0.0, 0.3, 0.5, 0.7, 0.8, 0.9], "bands": bands}
    yield Experiment("tr0", "instant", "tr=0", _recipe({"name": "dense"}, plan.penalty, seed, table))
    for name, tr in _TR.items():
        recipe = _recipe({"name": "pof", "tr": list(tr)}, plan.penalty, seed, table)
        yield Experiment(f"tr{name}", "instant", f"tr={name.replace('-', '->')}", recipe)
    free = _recipe({"name": "pof", "tr": [0.9, 0.7], "sphere": False}, plan.penalty, seed, table)
    yield Experiment("tr0.9-0.7-no-sphere", "instant", "tr=0.9->0.7, no sphere", free)
    for name in ("0.9-0.7", "0.9"):
        recipe = _recipe({"name": "pof", "tr": list(_TR[name])}, plan.scratch, seed, table, scratch=True)
        yield Experiment(f"tr{name}-scratch", "instant", f"tr={name.replace('-', '->')}+", recipe)


_TR: Mapping[str, tuple[float, float]] = {
    "0.9-0.7": (0.9, 0.7), "0.95": (0.95, 0.95), "0.9": (0.9, 0.9), "0.7": (0.7, 0.7), "0.95-0.9": (0.95, 0.9),
}  # fmt: skip


def _fine_tuned(plan: Budget, seed: int, budget: str, runs: str) -> Iterator[Experiment]:
    none: Table = {"sparsities": [], "bands": []}
    labels = {"one_shot": "one-shot", "gradual": "gradual", "cyclical": "cyclical", "dpf": "DPF", "dsr": "DSR"}
    for sparsity in sorted(plan.sparsities, reverse=True):
        for method, label in labels.items():
            settings = {"name": method, "sparsity": sparsity} | ({"start": "magnitude"} if method == "dsr" else {})
            recipe = _recipe(settings, 2 * plan.penalty, seed, none)
            yield Experiment(f"{method}-{sparsity:g}", "fine_tuned", label, recipe, sparsity=sparsity)
        starts = {"tr0.95": "POF tr=0.95", "tr0.9": "POF tr=0.9", "tr0.7": "POF tr=0.7", "nested-half": "nested"}
        for start, label in starts.items():
            after = full_name(start, budget, seed)
            recipe = _recipe(
                {"name": "one_shot", "sparsity": sparsity}, plan.penalty, seed, none, weights=f"{runs}/{after}"
            )
            name = f"{start}-one_shot-{sparsity:g}"
            yield Experiment(name, "fine_tuned", label, recipe, after=after, sparsity=sparsity)


NESTED: Table = {"name": "nested", "bands": 0.1}
CRAM: Table = {"name": "cram", "low": 0.5, "high": 0.9}


def _every_size(plan: Budget, seed: int) -> Iterator[Experiment]:
    table = {"sparsities": [0.0, 0.5, 0.7, 0.8, 0.9], "bands": [[0.3, 0.7], [0.5, 0.9]]}
    half: Table = {"sparsities": [0.8, 0.9], "bands": []}
    yield Experiment("nested", "every_size", "nested", _recipe(NESTED, plan.every_size, seed, table), 2)
    for scope in ("layer", "global"):
        recipe = _recipe({**CRAM, "scope": scope}, plan.every_size, seed, table)
        yield Experiment(f"cram-{scope}", "every_size", f"CrAM, {scope}", recipe, 2)
    # As many passes as the methods of the fine-tuned table have; half of them, for those that are fine-tuned after it.
    yield Experiment(
        "nested-short", "fine_tuned", "nested, not fine-tuned", _recipe(NESTED, plan.penalty, seed, half), 2
    )
    yield Experiment("cram-short", "fine_tuned", "CrAM", _recipe(CRAM, plan.penalty, seed, half), 2)
    yield Experiment("nested-half", "fine_tuned", "", _recipe(NESTED, max(1, plan.penalty // 2), seed, half), 2)
