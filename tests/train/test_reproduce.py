"""`pof reproduce`: a plan that can run, runs that are skipped when done, records, and the tables made of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pof.cli.main import main
from pof.errors import PofError
from pof.report.result_tables import tables, total_passes
from pof.report.results import BEGIN, END, draw_methods, draw_weights, read_paper, with_tables
from pof.train import experiments as plan_of
from pof.train.experiments import BUDGETS, TABLES, Experiment, experiments
from pof.train.folder import own_folder
from pof.train.histogram import weight_histogram
from pof.train.recipe import recipe_from
from pof.train.reproduce import Places, is_done, reproduce, seconds_left

RESULTS = Path(__file__).parents[2] / "results"


def small(name: str, after: str = "", weights: str = "", method: Any = None) -> Experiment:
    """A real run, of a second."""
    recipe = recipe_from(
        {
            "model": {"name": "digits_convnet", "weights": weights},
            "data": {"name": "digits", "batch": 64},
            "run": {"epochs": 1},
            "table": {"sparsities": [0.0, 0.5], "bands": []},
            "method": method or {"name": "dense"},
        }
    )
    return Experiment(name, "instant", name, recipe, after=after)


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_experiment_can_run_when_its_turn_comes(budget: str) -> None:
    seen: set[str] = set()
    for experiment in experiments(budget):
        assert experiment.name not in seen
        assert not experiment.after or experiment.after in seen
        assert experiment.recipe.model.weights in ("", plan_of.BASELINE, f"runs/{experiment.after}")
        assert experiment.table in TABLES
        seen.add(experiment.name)
    assert {f"nested-{budget}-1", f"cram-global-{budget}-1"} <= seen, "claims rest on two seeds"


def test_the_time_of_a_run_counts_its_tests_and_its_network() -> None:
    every = {experiment.name: experiment for experiment in experiments("quick")}
    nested, mobilenet = every["nested-quick-0"], every["mobilenet-one_shot-0.7-quick-0"]
    # 2 epochs of 2 passes; 6 states, 2 scopes, with and without new statistics, and the network as it is, forward only
    assert nested.work == pytest.approx(4 * 50_000 + 25 * 10_000 / 3)
    assert mobilenet.work == pytest.approx(4 * (2 * 50_000 + 10_000 / 3))


def test_methods_at_a_sparsity_have_equal_passes() -> None:
    for budget in BUDGETS:
        every = {experiment.name: experiment for experiment in experiments(budget)}
        for experiment in every.values():
            if experiment.sparsity is None:
                continue
            after = every.get(experiment.after)
            before = 0 if after is None or after.name.startswith("mobilenet-dense") else after.images
            passes = (experiment.images + before) / plan_of.TRAIN_IMAGES
            plan = BUDGETS[budget]
            assert passes == 2 * (plan.mobilenet if experiment.table == "mobilenet" else plan.penalty), experiment.name


def test_runs_are_made_once_and_in_order(tmp_path: Path) -> None:
    places = Places(tmp_path / "runs", tmp_path / "results")
    first = small("first")
    second = small("second", "first", str(places.runs / "first"), {"name": "one_shot", "sparsity": 0.5})
    began: list[str] = []
    skipped: dict[str, str] = {}

    def show(experiment: Experiment) -> Any:
        began.append(experiment.name)
        return lambda _: None

    def skip(experiment: Experiment, why: str) -> None:
        skipped[experiment.name] = why

    assert not reproduce([second], places, show, skip)
    assert "first, which has not finished" in skipped["second"]
    assert set(seconds_left([first, second], places)) == {"first", "second"}
    with own_folder(places.runs / "first"):
        assert not reproduce([first], places, show, skip)
    assert "another process" in skipped["first"]
    assert reproduce([first, second], places, show, skip)
    assert began == ["first", "second"]
    assert reproduce([first, second], places, show, skip)
    assert began == ["first", "second"], "what is done is not run again"
    record = json.loads(places.record(second).read_text())
    assert (record["label"], record["after"], record["test_images"]) == ("second", "first", 500)
    assert [row["sparsity"] for row in record["states"]] == [0.0, 0.5]
    other = replace(first, recipe=replace(first.recipe, run=replace(first.recipe.run, epochs=2)))
    assert not is_done(other, places), "a record of another recipe is not this one's"
    places.record(first).write_text("{")
    with pytest.raises(PofError, match="cannot read"):
        is_done(first, places)


def test_the_plan_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main(["reproduce", "fine_tuned", "--plan", *places]) == 0
    text = capsys.readouterr().out
    assert "tr0.9-quick-0" in text, "what others start from comes with them"
    assert "0 of" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main(["reproduce", "instant", "--json", *places]) == 0
    assert not any(each["done"] for each in json.loads(capsys.readouterr().out))


def record(table: str, label: str, **more: Any) -> dict[str, Any]:
    states = [
        {"sparsity": s, "recover_from": r, "accuracy": 0.9 - s / 10, "calibrated": 0.95 - s / 10 if s else None}
        for s, r in ((0.0, 0.0), (0.5, 0.5), (0.8, 0.8), (0.7, 0.3))
    ]
    recipe = {"run": {"epochs": 2, "seed": 0}, "model": {"name": "resnet20"}}
    common = {"table": table, "label": label, "states": states, "recipe": recipe, "test_images": 10_000}
    return {**common, "name": f"{label}-quick-0", "passes": 1, "after": "", "sparsity": None, "accuracy": 0.9, **more}


def test_tables_are_made_of_records() -> None:
    found = tables(
        [
            record("instant", "tr=0"),
            record("fine_tuned", "one-shot", sparsity=0.8, accuracy=0.885, passes=2),
            record("fine_tuned", "POF", sparsity=0.8, accuracy=0.875, after="tr=0-quick-0"),
            record("fine_tuned", "longer", sparsity=0.8, accuracy=0.9, passes=10),
            record("fine_tuned", ""),
            record("every_size", "nested", passes=2),
            record("mobilenet", "tr=0"),
            record("mobilenet", "one-shot", sparsity=0.7, accuracy=0.8, passes=2),
        ],
        read_paper(RESULTS / "paper.json"),
        0.9,
    )
    assert "| 50 % | 85.0 |" in found
    assert "| 50 % | 90.0 |" in found
    assert "| 30-70 | 83.0 |" in found
    four = found[
        found.index("### Fine-tuned at a sparsity, 4 passes") : found.index("### Fine-tuned at a sparsity, 20")
    ]
    assert "| one-shot | 88.5 (-1.5) |" in four
    assert "| POF | 87.5 (-2.5) |" in four, "with the passes of what it started from"
    assert "| nested, all sizes at once | 87.0 (-3.0) |" in four
    assert "longer" not in four
    assert "| nested | 0 | 2 | layer | 90.0 | 90.0 | " in found
    assert "### MobileNetV2, fine-tuned at a sparsity, 4 passes" in found
    assert "| 70 % | 40.03 | 53.44 |" in found
    assert "63.50 (-6.20)" in found
    page = with_tables(f"before\n{BEGIN}\nold\n{END}\nafter", [], read_paper(RESULTS / "paper.json"), 0.9)
    assert page.startswith("before\n")
    assert page.endswith("\nafter")
    assert "old" not in page
    with pytest.raises(PofError, match="to write tables between"):
        with_tables("nothing", [], {}, 0.9)


def test_recovered_networks_stand_beside_those_of_other_methods() -> None:
    states = [
        {"sparsity": 0.0, "recover_from": 0.0, "accuracy": 0.9, "calibrated": None},
        {"sparsity": 0.8, "recover_from": 0.35, "accuracy": 0.85, "calibrated": 0.88},
    ]
    ours = record("instant", "tr=0.95", states=states)
    theirs = record("fine_tuned", "DPF", sparsity=0.8, accuracy=0.89, passes=2)
    elsewhere = record("fine_tuned", "DPF", sparsity=0.7, accuracy=0.895)
    found = tables([ours, theirs, elsewhere], read_paper(RESULTS / "paper.json"), 0.91)
    assert "| DPF | 0 | 4 | 80 % | 91.0 | 89.0 (-2.0) |  |" in found
    assert "| POF tr=0.95 | 0 | 2 | 35-80 | 90.0 | 85.0 (-5.0) | 88.0 (-2.0) |" in found
    assert "| DPF | 0 | 2 | 70 %" not in found, "nothing of ours to stand beside"
    assert "| DPF | 75.95 | 75.13 | -0.82 | 80 |" in found


def test_passes_are_those_of_the_whole_way() -> None:
    first = record("instant", "tr=0.9")
    second = record("fine_tuned", "POF", after="tr=0.9-quick-0", sparsity=0.8)
    assert total_passes(second, [first, second]) == 4
    assert total_passes(record("every_size", "nested", passes=2), []) == 4


def test_pictures_are_drawn_when_there_is_enough(tmp_path: Path) -> None:
    counts = {"widest": 3.0, "zeros": 5, "pruned": [0, 3, 3, 0], "kept": [2, 0, 0, 1]}
    names = [f"tr{tr}{end}" for tr in ("0", "0.9", "0.7", "0.5") for end in ("", "-one_shot-0.6")]
    records = [record("instant", name, histogram=counts) for name in names]
    assert draw_weights(records[1:], tmp_path / "weights.png") is None
    assert draw_methods(records[:1], tmp_path / "methods.png") is None
    for picture in (draw_weights(records, tmp_path / "weights.png"), draw_methods(records, tmp_path / "methods.svg")):
        assert picture is not None
        assert Path(picture).stat().st_size > 10_000


def test_a_histogram_counts_every_weight_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {f"conv{number}.weight": torch.randn(8, 4, 3, 3) for number in range(3)} | {"fc.weight": torch.ones(2, 8)}
    weights["conv1.weight"][0, 0] = 0.0
    save_file(weights, tmp_path / "model.safetensors")
    found = weight_histogram(tmp_path / "model.safetensors")
    assert found is not None
    assert (found["layer"], found["zeros"]) == ("conv1.weight", 9)
    assert sum(found["pruned"]) + 9 == round(0.6 * 288)
    assert sum(found["kept"]) == 288 - round(0.6 * 288)
    assert found["kept"][30] == found["kept"][29] == 0, "what is kept is not near zero"
