"""Recipes: everything that decides the outcome of a run, as frozen dataclasses read from TOML."""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast, get_args, get_origin, get_type_hints

from pof.checks import check_choice, check_not_negative, check_whole
from pof.errors import PofError, first_line
from pof.file.locations import at_hand
from pof.methods import TrainedRanking
from pof.ranking.sparsity_state import Scope, State, pruned_state, recovered_state
from pof.trainer.named_code import find_method

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


WITHOUT_EFFECT = (
    "name", "data.root", "data.workers", "run.evaluate_every", "run.checkpoint_steps", "run.trackers",
    "table.scopes",
)  # fmt: skip
"""Keys that do not change what is trained: a run may resume with other values."""


@dataclass(frozen=True)
class ModelRecipe:
    """Which network, and what it starts from."""

    name: str = "resnet20"
    """A name from `pof.models`, or `package.module:function` for a model of your own."""
    weights: str = ""
    """Weights to start from: a file (safetensors, .pth or .pof) or a run's folder. Empty starts from scratch."""
    normalize_inputs: str = ""
    """With "patch" or "sample", inputs have unit norm too: see `pof.normalize_inputs`. Empty leaves them."""
    channels_last: bool = True

    def __post_init__(self) -> None:
        check_choice(self.normalize_inputs, "model.normalize_inputs", ("", "patch", "sample"))


@dataclass(frozen=True)
class DataRecipe:
    """Which images to train and test on."""

    name: str = "cifar10"
    root: str = ""
    """The folder of an `imagefolder`."""
    batch: int = 128
    """Images per step, over all processes."""
    workers: int = 4
    """Processes that decode an `imagefolder`."""
    hold_out: int = 0
    """Training images to leave out of training, and to test the run on instead of the test images."""

    def __post_init__(self) -> None:
        check_whole(self.batch, "data.batch", "the number of images per step")
        if self.hold_out:
            check_whole(self.hold_out, "data.hold_out", "the number of training images to test on, 0 for none")


@dataclass(frozen=True)
class OptimizerRecipe:
    """Stochastic gradient descent, and how its learning rate moves."""

    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    nesterov: bool = False
    schedule: str = "cosine"
    """One of "cosine" (down to zero), "restarts" (a new cosine every `period`), "steps" (divided by ten every `period`)
    and "constant"."""
    period: float = 10.0
    """Epochs between two restarts or steps."""
    warmup: float = 0.0
    """Epochs over which the learning rate first rises from zero."""

    def __post_init__(self) -> None:
        check_choice(self.schedule, "optimizer.schedule", ("cosine", "restarts", "steps", "constant"))
        for name in ("learning_rate", "momentum", "weight_decay", "warmup"):
            check_not_negative(getattr(self, name), f"optimizer.{name}", "see the shipped recipes")
        if not self.period > 0:
            raise PofError(f"optimizer.period={self.period!r} must be a number of epochs above 0")
        if self.nesterov and not self.momentum:
            raise PofError("optimizer.nesterov needs a momentum above 0: set optimizer.momentum=0.9")


@dataclass(frozen=True)
class RunRecipe:
    """How the run is carried out."""

    epochs: int = 40
    seed: int = 0
    precision: str = "no"
    """The mixed precision: "no" (float32), "bf16" or "fp16"."""
    accumulate: int = 1
    """Number of parts in which the gradients of a step are computed, one after the other."""
    evaluate_every: int = 5
    """Epochs between two evaluations; the last epoch is always evaluated."""
    checkpoint_steps: int = 0
    """Steps between two checkpoints; 0 writes one per epoch."""
    trackers: tuple[str, ...] = ()
    """Where figures go besides the run's own records: "tensorboard", or another tracker that accelerate knows."""

    def __post_init__(self) -> None:
        check_choice(self.precision, "run.precision", ("no", "bf16", "fp16"))
        for name in ("epochs", "accumulate", "evaluate_every"):
            check_whole(getattr(self, name), f"run.{name}", "a count")
        for name, most in (("seed", 2**63), ("checkpoint_steps", 2**31)):
            if not 0 <= getattr(self, name) < most:
                raise PofError(f"run.{name}={getattr(self, name)} must be a whole number, 0 or more, below {most}")


@dataclass(frozen=True)
class TableRecipe:
    """The states that the finished network is tested in."""

    sparsities: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)
    bands: tuple[tuple[float, float], ...] = (
        (0.1, 0.4), (0.1, 0.6), (0.1, 0.8), (0.3, 0.5), (0.3, 0.7), (0.3, 0.9), (0.5, 0.9),
    )  # fmt: skip
    """The paper's six bands and one more: alpha * sign(w) fills each from its first ratio to its second."""
    calibrate: bool = True
    """Whether each state is also tested with re-estimated BatchNorm statistics."""
    scopes: tuple[str, ...] = ()
    """How weights are ranked in tests: "layer" prunes every layer alike, "global" ranks the weights of all layers
    together. Naming both makes two tables; naming none takes the method's own scope."""

    def __post_init__(self) -> None:
        self.states()
        for scope in self.scopes:
            check_choice(scope, "table.scopes", ("layer", "global"))

    def states(self) -> tuple[State, ...]:
        """Return all states, the pruned ones first."""
        pruned = (pruned_state(sparsity) for sparsity in self.sparsities)
        return (*pruned, *(recovered_state(low, high) for low, high in self.bands))


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    name: str
    model: ModelRecipe = field(default_factory=ModelRecipe)
    data: DataRecipe = field(default_factory=DataRecipe)
    optimizer: OptimizerRecipe = field(default_factory=OptimizerRecipe)
    run: RunRecipe = field(default_factory=RunRecipe)
    table: TableRecipe = field(default_factory=TableRecipe)
    method: str = "dense"
    settings: Any = None
    """The `Settings` of the method."""

    @property
    def ranking(self) -> TrainedRanking:
        """How weights that the method has trained are ranked."""
        found: TrainedRanking = find_method(self.method).ranking(self.settings)
        return found

    @property
    def tested_scopes(self) -> tuple[Scope, ...]:
        """The scopes that the table names; if it names none, the method's own."""
        return cast(tuple[Scope, ...], self.table.scopes) or (self.ranking.scope,)

    def as_dict(self) -> dict[str, Any]:
        """Return every value, including defaults, as plain data."""
        return asdict(self)

    @property
    def hash(self) -> str:
        """A hash that is equal for equal outcomes: the keys `WITHOUT_EFFECT` do not count."""
        values = self.as_dict()
        for path in WITHOUT_EFFECT:
            *tables, key = path.split(".")
            table = values
            for name in tables:
                table = table[name]
            del table[key]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def read_recipe(path: str | Path, changes: Iterable[str] = ()) -> Recipe:
    """Read the recipe in a TOML file, and apply `changes` such as "run.epochs=10".

    The table `[method]` holds the method's `name` and its settings.
    """
    try:
        with at_hand(path) as file:
            table = tomllib.loads(file.read_text())
    except (FileNotFoundError, IsADirectoryError):
        raise PofError(
            f"no recipe at {str(path)!r}: name a .toml file; pof's own are in recipes/ of its repository"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PofError(f"cannot read the recipe {str(path)!r}: {first_line(error)}") from None
    for change in changes:
        _apply(table, change)
    return recipe_from(table, default_name=PurePosixPath(str(path)).stem)


def recipe_from(table: Mapping[str, Any], default_name: str = "run") -> Recipe:
    """Build a recipe from nested tables; the error about an unknown key lists the known ones."""
    values = dict(table)
    method = values.pop("method", {"name": "dense"})
    if not isinstance(method, Mapping):
        raise PofError(f"method={method!r} must be a table: write method.name={method!r}")
    if "settings" in values:
        raise PofError(_unknown("settings", [], "", ""))
    method = dict(method)
    name = method.pop("name", "dense")
    method_class = find_method(name)
    values.setdefault("name", default_name)
    values["method"] = name
    values["settings"] = _build(method_class.Settings, method, "method", f" for {name!r}")
    recipe: Recipe = _build(Recipe, values, "")
    return recipe


def recorded_recipe(values: Mapping[str, Any]) -> Recipe:
    """Read the recipe that `Recipe.as_dict` wrote, here or in an older version; keys added since get their defaults."""
    tables = dict(values)
    method = {"name": tables.pop("method"), **(tables.pop("settings") or {})}
    return recipe_from({**tables, "method": method})


def is_of(recipe: Recipe, values: Any) -> bool:
    """Whether `values`, written by `Recipe.as_dict` here or in an older version, have the same outcome as `recipe`."""
    try:
        return recorded_recipe(values).hash == recipe.hash
    except (KeyError, TypeError, AttributeError, PofError):
        return False


def _build(kind: type[Any], table: Mapping[str, Any], path: str, which: str = "") -> Any:
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    for key in table:
        if key not in known:
            raise PofError(_unknown(key, known, path, which))
    for item in fields(kind):
        if item.default is MISSING and item.default_factory is MISSING and item.name not in table:
            raise PofError(f"the key {item.name!r} is missing in [{path}]")
    return kind(**{key: _value(hints[key], value, f"{path}.{key}".lstrip(".")) for key, value in table.items()})


def _unknown(key: str, known: list[str], path: str, which: str) -> str:
    if path:
        return f"unknown key {key!r} in [{path}]{which}; known keys are {', '.join(sorted(known)) or 'none'}"
    tables = {item.name: item.default_factory for item in fields(Recipe) if item.default_factory is not MISSING}
    for name, table in tables.items():
        if any(item.name == key for item in fields(cast(Any, table))):
            return f"unknown key {key!r}: it is {name}.{key}"
    return f"unknown key {key!r} in the recipe; known keys are name, {', '.join((*tables, 'method'))}"


def _value(kind: Any, value: Any, path: str) -> Any:
    """Return `value` as `kind`, or raise; whole numbers pass for floats, and lists for tuples."""
    if kind is Any:
        return value
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise PofError(f"{path}={value!r} must be a table")
        return _build(kind, value, path)
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        kinds = get_args(kind)
        if kinds[-1] is Ellipsis:
            kinds = (kinds[0],) * len(value)
        if len(value) == len(kinds):
            return tuple(_value(k, v, path) for k, v in zip(kinds, value, strict=True))
    elif kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif isinstance(kind, type) and type(value) is kind:
        return value
    wanted = kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)
    raise PofError(f"{path}={value!r} must be of type {wanted}")


def _apply(table: dict[str, Any], change: str) -> None:
    """Set one key, as in "method.weight=0.3"; the value is TOML, or else a plain string."""
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise PofError(f"--set {change!r} must be key=value, such as run.epochs=10")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *path, last = key.strip().split(".")
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise PofError(f"--set {change!r}: {part!r} is not a table")
    table[last] = value
