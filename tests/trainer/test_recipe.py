from pathlib import Path

import pytest

from pof.errors import PofError
from pof.trainer.recipe import read_recipe, recipe_from

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_loads(path: Path) -> None:
    recipe = read_recipe(path)
    assert recipe.name == path.stem
    assert recipe.hash == read_recipe(path).hash


def test_the_papers_settings() -> None:
    by_name = {path.stem: read_recipe(path) for path in RECIPES}
    for name, weight in (("resnet18", 2.0), ("mobilenet_v2", 2.0), ("resnet50", 1.0)):
        recipe = by_name[f"imagenet-{name}-pof"]
        assert (recipe.settings.tr, recipe.settings.weight) == ((0.9, 0.7), weight)
        optimizer = recipe.optimizer
        assert (optimizer.learning_rate, optimizer.momentum, optimizer.weight_decay) == (0.01, 0.9, 1e-4)
        assert (optimizer.schedule, optimizer.period, recipe.run.epochs, recipe.data.batch) == (
            "restarts",
            10.0,
            90,
            256,
        )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"modle": {}}, "unknown key 'modle' in the recipe; known keys are name, model, data, "),
        ({"model": {"nam": "resnet20"}}, r"unknown key 'nam' in \[model\]; known keys are channels_last, name"),
        ({"model": 3}, "model=3 must be a table"),
        ({"run": {"epochs": "ten"}}, "run.epochs='ten' must be of type int"),
        ({"run": {"epochs": True}}, "run.epochs=True must be of type int"),
        ({"run": {"epochs": 0}}, "run.epochs=0 must be"),
        ({"run": {"precision": "fp8"}}, "run.precision='fp8' must be one of"),
        ({"optimizer": {"schedule": "linear"}}, "optimizer.schedule='linear' must be one of"),
        ({"method": {"name": "magic"}}, "method.name='magic' must be one of 'dense', 'pof'"),
        (
            {"method": {"name": "pof", "lambda": 1}},
            r"unknown key 'lambda' in \[method\] for 'pof'; known keys are anneal, refresh, sphere, tr",
        ),
        ({"method": {"name": "pof", "tr": [0.9, 0.8, 0.7]}}, "method.tr="),
        ({"method": {"name": "one_shot", "sparsity": 70}}, "sparsity=70"),
    ],
)
def test_a_wrong_recipe_says_what_is_known(table: dict[str, object], message: str) -> None:
    with pytest.raises(PofError, match=message):
        recipe_from(table)


def test_whole_numbers_pass_for_floats_and_lists_for_pairs() -> None:
    recipe = recipe_from({"method": {"name": "pof", "tr": [0.9, 0.5], "weight": 1}})
    assert recipe.settings.tr == (0.9, 0.5)
    assert type(recipe.settings.weight) is float


def test_changes_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[run]\nepochs = 3\n[method]\nname = "pof"\n')
    recipe = read_recipe(path, ["run.epochs=7", "method.weight=0.5", "model.name=resnet32", "data.name='digits'"])
    assert (recipe.run.epochs, recipe.settings.weight) == (7, 0.5)
    assert (recipe.model.name, recipe.data.name, recipe.name) == ("resnet32", "digits", "mine")
    assert recipe.hash != read_recipe(path).hash
    for wrong in ("run.epochs", "=3", "name.deep=3"):
        with pytest.raises(PofError, match="--set"):
            read_recipe(path, ["name=a", wrong])


def test_a_recipe_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PofError, match="no recipe at"):
        read_recipe(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n")
    with pytest.raises(PofError, match="cannot read the recipe"):
        read_recipe(broken)
