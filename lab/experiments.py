"""The runs behind the tables of docs/results.md: their recipes, what each starts from, and what they cost."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.budgets import BUDGETS, Budget
from pof.checks import check_choice
from pof.trainer.recipe import Recipe, recipe_from

TABLES = ("every_size", "instant", "fine_tuned", "weights", "mobilenet")
TRAIN_IMAGES = 50_000
TEST_IMAGES = 10_000
COST = {"mobilenet_v2_cifar": 6.5}
"""Cost of an image, relative to a ResNet-20, which gains from `pof.trainer.winograd`."""
BASELINE = "weights/cifar10-resnet20-dense.pof"
"""The dense network. Like all paths in recipes and records here, this one is relative to the laboratory's folder."""
RUNS = "runs"
"""The folder of runs that recipes name. Wherever runs really are, a recipe and its hash stay the same."""
PAPER_BANDS = ((0.1, 0.4), (0.1, 0.6), (0.1, 0.8), (0.3, 0.5), (0.3, 0.7), (0.3, 0.9))
PEER_BANDS = ((0.35, 0.8), (0.4, 0.7))
"""The bands that the paper compares with DPF and DSR."""
PEER_SPARSITY = 0.7
"""A sparsity at which DPF and DSR run in every budget: the end of the second of these bands."""
WITH_TEACHER = 4 / 3
"""Passes per step when learning from a teacher, which only goes forward."""
Table = dict[str, Any]
NO_TABLE: Table = {"sparsities": [], "bands": []}
HEADLINES = ("nested", "nested-global", "cram-layer", "cram-global", "tr0.9-0.7")
HEADLINE_METHODS = ("gradual", "one_shot-global", "distilled")
"""Our methods and the strongest of the others in the fine-tuned table, at each of its sparsities."""
AT_THE_HIGHEST = ("gradual-global", "dpf-global", "nested-half", "nested-global-half")
"""Rows at the highest sparsity only: is a lead due to the ranking, and does it help to train for all sizes first?"""


@dataclass(frozen=True)
class Experiment:
    """One run."""

    name: str
    """The name of its folder and its record."""
    table: str
    """One of `TABLES`."""
    label: str
    """Its name in tables."""
    recipe: Recipe
    passes: float = 1
    """Forward-backward passes per step; a teacher's forward pass counts as a third of one."""
    after: str = ""
    """The experiment whose weights it starts from."""
    sparsity: float | None = None
    """The sparsity that it is trained for; None if it is not trained for a single one."""

    @property
    def images(self) -> int:
        """How many images pass through the network, forward and backward."""
        return round(self.passes * self.recipe.run.epochs) * TRAIN_IMAGES

    @property
    def work(self) -> float:
        """What it costs, including tests, in images that pass through a ResNet-20 forward and backward."""
        table = self.recipe.table
        tests = 1 + len(table.states()) * len(self.recipe.tested_scopes) * (2 if table.calibrate else 1)
        return (self.images + tests * TEST_IMAGES / 3) * COST.get(self.recipe.model.name, 1.0)


def experiments(budget: str) -> tuple[Experiment, ...]:
    """Return all experiments of a budget, in an order in which they can run; what they start from is in `RUNS`."""
    check_choice(budget, "budget", tuple(BUDGETS))
    plan, found = BUDGETS[budget], []
    for seed in sorted({*plan.seeds, *plan.headline_seeds}):
        every = [
            *_every_size(plan, seed),
            *_instant(plan, seed),
            *_fine_tuned(plan, seed, budget),
            *_weights(plan, seed, budget),
            *_mobilenet(plan, seed, budget),
        ]
        found += [e for e in every if seed in plan.seeds or (seed in plan.headline_seeds and _is_headline(e))]
    return tuple(_named(experiment, budget) for experiment in found)


def _is_headline(experiment: Experiment) -> bool:
    return experiment.name in HEADLINES or experiment.name.rpartition("-")[0] in HEADLINE_METHODS


def _named(experiment: Experiment, budget: str) -> Experiment:
    """Return the experiment with the budget and the seed in its name."""
    return Experiment(**{**vars(experiment), "name": full_name(experiment.name, budget, experiment.recipe.run.seed)})


def full_name(name: str, budget: str, seed: int) -> str:
    """Return the name of an experiment's folder and record."""
    return f"{name}-{budget}-{seed}"


def _recipe(method: Table, epochs: int, seed: int, table: Table, **others: Any) -> Recipe:
    """Return the recipe that all of them share: only the method and the length differ."""
    model: Table = {"name": "resnet20", "weights": BASELINE}
    optimizer: Table = {"learning_rate": 0.05, "weight_decay": 5e-4, "nesterov": True}
    if others.pop("scratch", False):
        model["weights"] = ""
        optimizer |= {"learning_rate": 0.2, "warmup": 1.0}
    if "cycles" in method:
        # Each cycle has its own learning-rate schedule to recover with; one for all would leave nothing for the last.
        optimizer |= {"schedule": "restarts", "period": epochs / method["cycles"]}
    model |= others
    run = {"epochs": epochs, "seed": seed, "evaluate_every": 100}
    return recipe_from({"model": model, "optimizer": optimizer, "run": run, "table": table, "method": method})


def _instant(plan: Budget, seed: int) -> Iterator[Experiment]:
    bands = [list(band) for band in (*PAPER_BANDS, *PEER_BANDS)]
    table = {"sparsities": [0.0, 0.3, 0.5, 0.7, 0.8, 0.9], "bands": bands}
    yield Experiment("tr0", "instant", "tr=0", _recipe({"name": "dense"}, plan.penalty, seed, table))
    for name, tr in _TR.items():
        recipe = _recipe(_penalty(tr), plan.penalty, seed, table)
        yield Experiment(f"tr{name}", "instant", f"tr={name.replace('-', '->')}", recipe)
    free = _recipe({**_penalty((0.9, 0.7)), "sphere": False}, plan.penalty, seed, table)
    yield Experiment("tr0.9-0.7-no-sphere", "instant", "tr=0.9->0.7, no sphere", free)
    for name in ("0.9-0.7", "0.9"):
        # From random weights there is no accuracy to keep, and a light penalty would do little.
        recipe = _recipe({**_penalty(_TR[name]), "weight": 0.1}, plan.scratch, seed, table, scratch=True)
        yield Experiment(f"tr{name}-scratch", "instant", f"tr={name.replace('-', '->')}+", recipe)


def _penalty(tr: tuple[float, float]) -> Table:
    """The paper's method, with a penalty so light that the dense network keeps its accuracy (lab/notes.md)."""
    return {"name": "pof", "tr": list(tr), "weight": 0.015, "anneal": 0.6}


_TR: Mapping[str, tuple[float, float]] = {
    "0.9-0.7": (0.9, 0.7), "0.95": (0.95, 0.95), "0.9": (0.9, 0.9), "0.7": (0.7, 0.7), "0.95-0.9": (0.95, 0.9),
}  # fmt: skip


_METHODS: Mapping[str, tuple[str, Table]] = {
    "one_shot": ("one-shot", {"name": "one_shot"}),
    "one_shot-global": ("one-shot, global", {"name": "one_shot", "scope": "global"}),
    "gradual": ("gradual", {"name": "gradual"}),
    "gradual-global": ("gradual, global", {"name": "gradual", "scope": "global"}),
    "cyclical": ("cyclical", {"name": "cyclical", "cycles": 3}),
    "dpf": ("DPF", {"name": "dpf"}),
    "dpf-global": ("DPF, global", {"name": "dpf", "scope": "global"}),
    "dsr": ("DSR", {"name": "dsr", "start": "magnitude"}),
}
"""Methods that spend all passes on one sparsity."""

_STARTS: Mapping[str, str] = {
    "tr0.95": "POF tr=0.95", "tr0.9": "POF tr=0.9", "tr0.7": "POF tr=0.7",
    "nested-half": "nested, then one-shot", "nested-global-half": "nested, then one-shot, global",
    "cram-half": "CrAM, then one-shot",
}  # fmt: skip
"""Runs that spend half of the passes on all sparsities; the rest is then spent on one."""


def _fine_tuned(plan: Budget, seed: int, budget: str) -> Iterator[Experiment]:
    for sparsity in sorted({*plan.sparsities, PEER_SPARSITY}, reverse=True):
        only_peers = sparsity not in plan.sparsities
        if only_peers and seed not in plan.seeds:
            continue
        aside = (*plan.left_out, *(AT_THE_HIGHEST if sparsity < max(plan.sparsities) else ()))
        for name, (label, method) in _METHODS.items():
            if name in ("dpf", "dsr") or not (only_peers or name in aside):
                recipe = _recipe({**method, "sparsity": sparsity}, 2 * plan.penalty, seed, NO_TABLE)
                yield Experiment(f"{name}-{sparsity:g}", "fine_tuned", label, recipe, sparsity=sparsity)
        if not only_peers:
            # Three quarters of the epochs, so that with the teacher's passes there are as many as for the others.
            method = {"name": "one_shot", "scope": "global", "distill": 0.5, "temperature": 3.0, "sparsity": sparsity}
            recipe = _recipe(method, round(2 * plan.penalty / WITH_TEACHER), seed, NO_TABLE)
            label = "one-shot, global, learning from the dense network"
            yield Experiment(
                f"distilled-{sparsity:g}", "fine_tuned", label, recipe, passes=WITH_TEACHER, sparsity=sparsity
            )
        for start, label in () if only_peers else _STARTS.items():
            if start in aside:
                continue
            after = full_name(start, budget, seed)
            recipe = _recipe(_pruned_once(start, sparsity), plan.penalty, seed, NO_TABLE, weights=f"{RUNS}/{after}")
            name = f"{start}-one_shot-{sparsity:g}"
            yield Experiment(name, "fine_tuned", label, recipe, after=after, sparsity=sparsity)


def _pruned_once(start: str, sparsity: float) -> Table:
    """One-shot pruning of what `start` trained, ranked as it was there."""
    on_sphere = start.startswith("tr") and start != "tr0"
    scope, magnitudes = "global" if "global" in start else "layer", "unit" if on_sphere else "raw"
    return {"name": "one_shot", "sparsity": sparsity, "scope": scope, "magnitudes": magnitudes}


NESTED: Table = {"name": "nested", "bands": 0.1, "teacher": True, "clean": 2 / 3, "distill": 1.0}
"""Two passes per step: one, two thirds of another, and a third for the teacher's forward pass."""
NESTED_BEFORE: Table = {"name": "nested", "bands": 0.1}
"""Nested training without a teacher, before one-shot pruning."""
CRAM: Table = {"name": "cram", "low": 0.5, "high": 0.9}


def _every_size(plan: Budget, seed: int) -> Iterator[Experiment]:
    table: Table = {"sparsities": [0.0, 0.5, 0.7, 0.8, 0.9], "bands": [[0.5, 0.9]], "scopes": ["layer", "global"]}
    yield Experiment("nested", "every_size", "nested", _recipe(NESTED, plan.every_size, seed, table), 2)
    everywhere = _recipe({**NESTED, "scope": "global"}, plan.every_size, seed, table)
    yield Experiment("nested-global", "every_size", "nested, trained global", everywhere, 2)
    for scope in ("layer", "global"):
        recipe = _recipe({**CRAM, "scope": scope}, plan.every_size, seed, table)
        yield Experiment(f"cram-{scope}", "every_size", f"CrAM, trained {scope}", recipe, 2)
    # Half of the passes that methods in the fine-tuned table have: the other half is fine-tuning.
    halves = {
        "nested-half": NESTED_BEFORE,
        "nested-global-half": {**NESTED_BEFORE, "scope": "global"},
        "cram-half": {**CRAM, "scope": "layer"},
    }
    for name, method in halves.items():
        yield Experiment(name, "fine_tuned", "", _recipe(method, max(1, plan.penalty // 2), seed, NO_TABLE), 2)


def _weights(plan: Budget, seed: int, budget: str) -> Iterator[Experiment]:
    """For the figure of weight distributions: before and after fine-tuning at 60 %."""
    if seed != plan.seeds[0]:
        return
    recipe = _recipe(_penalty((0.5, 0.5)), plan.penalty, seed, NO_TABLE)
    yield Experiment("tr0.5", "weights", "tr=0.5", recipe)
    # If the fine-tuned table has 60 %, its runs serve here too: such a budget fine-tunes equally long for both.
    for tr in ("0", "0.5") if 0.6 in plan.sparsities else ("0", "0.9", "0.7", "0.5"):
        after = full_name(f"tr{tr}", budget, seed)
        recipe = _recipe(_pruned_once(f"tr{tr}", 0.6), plan.weights, seed, NO_TABLE, weights=f"{RUNS}/{after}")
        yield Experiment(f"tr{tr}-one_shot-0.6", "weights", f"tr={tr}", recipe, after=after, sparsity=0.6)


def _mobilenet(plan: Budget, seed: int, budget: str) -> Iterator[Experiment]:
    """For the paper's tables of MobileNetV2: it starts from a dense network that is trained here too."""
    name = {"name": "mobilenet_v2_cifar"}
    dense = full_name("mobilenet-dense", budget, seed)
    recipe = _recipe({"name": "dense"}, plan.mobilenet_scratch, seed, NO_TABLE, scratch=True, **name)
    yield Experiment("mobilenet-dense", "mobilenet", "", recipe)
    table = {"sparsities": [0.0, 0.1, 0.2, 0.3, 0.4], "bands": [list(band) for band in PAPER_BANDS]}
    trained: Table = {"0": {"name": "dense"}, "0.9-0.7": _penalty((0.9, 0.7))}
    for tr, method in trained.items():
        recipe = _recipe(method, plan.mobilenet, seed, table, weights=f"{RUNS}/{dense}", **name)
        yield Experiment(f"mobilenet-tr{tr}", "mobilenet", f"tr={tr.replace('-', '->')}", recipe, after=dense)
    for sparsity in (0.7, 0.6, 0.5):
        method = {"name": "one_shot", "sparsity": sparsity}
        recipe = _recipe(method, 2 * plan.mobilenet, seed, NO_TABLE, weights=f"{RUNS}/{dense}", **name)
        yield Experiment(
            f"mobilenet-one_shot-{sparsity:g}", "mobilenet", "one-shot", recipe, after=dense, sparsity=sparsity
        )
        after = full_name("mobilenet-tr0.9-0.7", budget, seed)
        recipe = _recipe(
            {**method, "magnitudes": "unit"}, plan.mobilenet, seed, NO_TABLE, weights=f"{RUNS}/{after}", **name
        )
        yield Experiment(
            f"mobilenet-pof-{sparsity:g}", "mobilenet", "POF tr=0.9->0.7", recipe, after=after, sparsity=sparsity
        )
