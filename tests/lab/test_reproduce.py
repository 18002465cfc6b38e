"""`python -m lab.reproduce`: a plan that can run, runs that are skipped when done, records, and their tables."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lab import experiments as plan_of
from lab.budgets import BUDGETS
from lab.command_line import LAB
from lab.experiments import TABLES, Experiment, experiments
from lab.pretrained_tables import PretrainedRecords
from lab.reproduce import main
from lab.result_tables import tables, total_passes
from lab.results_page import BEGIN, END, draw_methods, draw_weights, read_paper, with_tables
from lab.run_experiments import Places, check_starts, is_done, reproduce, seconds_left
from lab.weight_histogram import weight_histogram
from pof.cli.train_verb import Display
from pof.errors import PofError
from pof.trainer.recipe import recipe_from
from pof.trainer.run import run_recipe
from pof.trainer.run_folder import own_folder

RESULTS = Path(__file__).parents[2] / "lab" / "records"


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
    assert mobilenet.work == pytest.approx(6.5 * (2 * 50_000 + 10_000 / 3))


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
            wanted = {"mobilenet": 2 * plan.mobilenet, "weights": plan.penalty + plan.weights}
            assert passes == wanted.get(experiment.table, 2 * plan.penalty), experiment.name


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
    record = json.loads(places.record(first).read_text())
    del record["recipe"]["run"]["accumulate"]
    places.record(first).write_text(json.dumps({**record, "recipe_hash": "of before"}))
    assert is_done(first, places), "a setting that is new since has its default"
    record["recipe"]["run"]["no longer known"] = 1
    places.record(first).write_text(json.dumps(record))
    assert not is_done(first, places)
    places.record(first).write_text("{")
    with pytest.raises(PofError, match="cannot read"):
        is_done(first, places)


def test_the_plan_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main(["fine_tuned", "--plan", *places]) == 0
    text = capsys.readouterr().out
    assert "tr0.9-quick-0" in text, "what others start from comes with them"
    assert "0 of" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main(["instant", "--json", *places]) == 0
    assert not any(each["done"] for each in json.loads(capsys.readouterr().out))


def quiet(_: Experiment) -> Any:
    return lambda _: None


def refuse(experiment: Experiment, why: str) -> None:
    raise AssertionError(f"{experiment.name} was left out: {why}")


def test_a_record_of_an_older_version_is_written_anew_without_training(tmp_path: Path) -> None:
    places, first = Places(tmp_path / "runs", tmp_path / "results"), small("first")
    assert reproduce([first], places, quiet, refuse)
    lines = (places.folder(first) / "records.jsonl").read_text()
    older = json.loads(places.record(first).read_text())
    del older["histogram"]
    places.record(first).write_text(json.dumps(older))
    assert seconds_left([first], places) == {"first": 0.0}
    assert reproduce([first], places, quiet, refuse)
    assert "histogram" in json.loads(places.record(first).read_text())
    assert (places.folder(first) / "records.jsonl").read_text() == lines, "it was not trained again"


def test_runs_may_be_anywhere_and_may_be_gone(tmp_path: Path) -> None:
    places = Places(tmp_path / "elsewhere", tmp_path / "results")
    chain = [small("first"), small("second", "first", "runs/first"), small("third", "second", "runs/second")]
    assert reproduce(chain, places, quiet, refuse)
    found = json.loads(places.record(chain[1]).read_text())
    assert found["recipe_hash"] == chain[1].recipe.hash
    assert found["recipe"]["model"]["weights"] == "runs/first", "a record does not tell where runs were"
    clone = Places(tmp_path / "a clone has none", places.results)
    assert seconds_left(chain, clone) == {}
    places.record(chain[1]).unlink()
    assert list(seconds_left(chain, clone)) == ["first", "second"], "its start has to be made anew"
    assert reproduce(chain, clone, quiet, refuse)
    assert seconds_left(chain, clone) == {}


def test_a_run_that_was_begun_does_not_need_its_start_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = small("first"), small("second", "first", "runs/first")
    run_recipe(first.recipe, "runs/first")
    assert not run_recipe(second.recipe, "runs/second", lambda _: signal.raise_signal(signal.SIGINT)).finished
    Path("runs/first/model.safetensors").unlink()
    places = Places(tmp_path / "runs", tmp_path / "results")
    assert reproduce([second], places, quiet, refuse)
    assert json.loads(places.record(second).read_text())["resumed"] == 1


def test_a_run_that_another_process_takes_first_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, skipped = Places(tmp_path / "runs", tmp_path / "results"), []
    monkeypatch.setattr("lab.run_experiments.is_free", lambda _: True)
    with own_folder(places.runs / "first"):
        assert not reproduce([small("first"), small("other")], places, quiet, lambda *why: skipped.append(why[1]))
    assert skipped == ["another process is running it"]
    assert is_done(small("other"), places)


def test_a_run_that_another_process_has_just_finished_is_not_finished_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small("first").recipe

    @contextmanager
    def after_another(folder: Path) -> Iterator[None]:
        monkeypatch.undo()
        run_recipe(recipe, folder)
        yield

    monkeypatch.setattr("pof.trainer.run.own_folder", after_another)
    assert run_recipe(recipe, tmp_path).already
    assert (tmp_path / "records.jsonl").read_text().count('"final"') == 1


def test_a_broken_run_does_not_stop_the_others(tmp_path: Path) -> None:
    places, skipped = Places(tmp_path / "runs", tmp_path / "results"), {}
    cut, broken, whole = small("cut"), small("broken"), small("whole")
    for name, text in {"cut": '{"kind": "epoch", "images_per_second": 7}\n{"kin', "broken": "5\n"}.items():
        (places.runs / name).mkdir(parents=True)
        (places.runs / name / "records.jsonl").write_text(text)
    assert seconds_left([cut, broken, whole], places)["whole"] == pytest.approx(whole.work / 7)
    assert not reproduce([broken, whole], places, quiet, lambda each, why: skipped.update({each.name: why}))
    assert "line 1 of" in skipped["broken"]
    assert is_done(whole, places)


def test_a_folder_of_another_recipe_does_not_stop_the_others(tmp_path: Path) -> None:
    places, first, second = Places(tmp_path / "runs", tmp_path / "results"), small("first"), small("second")
    run_recipe(small("", method={"name": "one_shot", "sparsity": 0.5}).recipe, places.folder(first))
    assert seconds_left([first], places)["first"] > 0, "what is there is not a part of it"
    why: list[str] = []
    assert not reproduce([first, second], places, lambda _: lambda _: None, lambda _, told: why.append(told))
    assert len(why) == 1
    assert "first' holds a run of another recipe: delete it, or choose another --runs" in why[0]
    assert is_done(second, places)


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_record_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_folder: bool
) -> None:
    path = tmp_path / "tr0-quick-0.json"
    if is_folder:
        path.mkdir()
    else:
        path.write_text('{"bad')
    assert main(["instant", "--plan", "--runs", str(tmp_path), "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert "delete it to run it again" in error


def test_without_the_files_of_the_repository_nothing_is_run(tmp_path: Path) -> None:
    places = Places(tmp_path / "runs", tmp_path / "results", files=tmp_path)
    with pytest.raises(PofError, match=r"there is no .*weights/cifar10-resnet20-dense.pof.*clone the whole repository"):
        check_starts(experiments("quick"), places)
    check_starts(experiments("quick"), replace(places, files=LAB))


def test_a_terminal_shows_how_far_runs_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("lab.reproduce.experiments", lambda _: (small("first"),))
    command = ["instant", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    show = Display.show

    def interrupt(display: Display, event: Any) -> None:
        show(display, event)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Display, "show", interrupt)
        assert main(command) == 130
    assert "the same command resumes from there" in capsys.readouterr().out
    assert main(command) == 0
    said = capsys.readouterr()
    assert "\u2501" in said.err, "the bar"
    assert "first: accuracy " in said.out
    assert "all done" in said.out


def record(table: str, label: str, **more: Any) -> dict[str, Any]:
    states = [
        {"sparsity": s, "recover_from": r, "accuracy": 0.9 - s / 10, "calibrated": 0.95 - s / 10 if s else None}
        for s, r in ((0.0, 0.0), (0.5, 0.5), (0.8, 0.8), (0.7, 0.3))
    ]
    recipe = {"run": {"epochs": 2, "seed": 0}, "model": {"name": "resnet20"}}
    common = {"table": table, "label": label, "states": states, "recipe": recipe, "test_images": 10_000}
    return {**common, "name": f"{label}-quick-0", "passes": 1, "after": "", "sparsity": None, "accuracy": 0.9, **more}


def test_tables_are_made_of_records() -> None:
    globally = {**record("", "")["recipe"], "settings": {"scope": "global"}}
    everywhere = {"sparsity": 0.8, "recover_from": 0.8, "accuracy": 0.1, "calibrated": 0.88, "scope": "global"}
    found = tables(
        [
            record("instant", "tr=0"),
            record("fine_tuned", "one-shot", sparsity=0.8, accuracy=0.885, passes=2),
            record("fine_tuned", "POF", sparsity=0.8, accuracy=0.875, after="tr=0-quick-0"),
            record("fine_tuned", "longer", sparsity=0.8, accuracy=0.9, passes=10),
            record("fine_tuned", ""),
            record("every_size", "nested", passes=2),
            record("every_size", "CrAM", passes=2, recipe=globally, states=[everywhere]),
            record("mobilenet", "", name="mobilenet-dense-quick-0", accuracy=0.85),
            record("mobilenet", "tr=0", after="mobilenet-dense-quick-0"),
            record("mobilenet", "one-shot", sparsity=0.7, accuracy=0.8, passes=2, after="mobilenet-dense-quick-0"),
            record("mobilenet", "", name="mobilenet-dense-full-1", accuracy=0.9),
            record("mobilenet", "tr=0.9", name="tr-full-1", after="mobilenet-dense-full-1"),
            record("mobilenet", "POF", sparsity=0.7, accuracy=0.87, passes=3, after="tr-full-1"),
        ],
        read_paper(RESULTS / "paper.json"),
        0.9,
    )
    assert "| 50 % | 85.00 |" in found
    assert "| 50 % | 90.00 |" in found
    assert "| 30-70 | 83.00 |" in found
    four = found[
        found.index("### Fine-tuned at a sparsity, 4 passes") : found.index("### Fine-tuned at a sparsity, 20")
    ]
    assert "| one-shot | 88.50 (-1.50) |" in four
    assert "| POF | 87.50 (-2.50) |" in four, "with the passes of what it started from"
    assert "| nested, all sizes at once | 87.00 (-3.00) |" in four
    assert "| CrAM, all sizes at once | 88.00 (-2.00) |" in four, "pruned as it was trained"
    assert "longer" not in four
    assert "| nested | 0 | 2 | layer | 90.00 | 90.00 | " in found
    assert "### MobileNetV2, fine-tuned at a sparsity, 4 passes" in found
    assert "| one-shot | 80.00 (-5.00) |" in found, "the difference to the network that it began with"
    longer = found[found.index("### MobileNetV2, fine-tuned at a sparsity, 8 passes") :]
    assert "| POF | 87.00 (-3.00) |" in longer, "those of another budget began with another one"
    assert "| 70 % | 40.03 | 53.44 |" in found
    assert "63.50 (-6.20)" in found
    page = with_tables(
        f"before\n{BEGIN}\nold\n{END}\nafter", [], read_paper(RESULTS / "paper.json"), 0.9, PretrainedRecords()
    )
    assert page.startswith("before\n")
    assert page.endswith("\nafter")
    assert "old" not in page
    with pytest.raises(PofError, match="to write tables between"):
        with_tables("nothing", [], {}, 0.9, PretrainedRecords())


def test_recovered_networks_stand_beside_those_of_other_methods() -> None:
    states = [
        {"sparsity": 0.0, "recover_from": 0.0, "accuracy": 0.9, "calibrated": None},
        {"sparsity": 0.8, "recover_from": 0.35, "accuracy": 0.85, "calibrated": 0.88},
    ]
    ours = record("instant", "tr=0.95", states=states)
    theirs = record("fine_tuned", "DPF", sparsity=0.8, accuracy=0.89, passes=2)
    elsewhere = record("fine_tuned", "DPF", sparsity=0.7, accuracy=0.895)
    found = tables([ours, theirs, elsewhere], read_paper(RESULTS / "paper.json"), 0.91)
    assert "| DPF | 0 | 4 | 80 % | 91.00 | 89.00 (-2.00) |  |" in found
    assert "| POF tr=0.95 | 0 | 2 | 35-80 | 90.00 | 85.00 (-5.00) | 88.00 (-2.00) |" in found
    assert "| DPF | 0 | 2 | 70 %" not in found, "nothing of ours to stand beside"
    assert "| DPF | 75.95 | 75.13 | -0.82 | 80 |" in found


def test_passes_are_those_of_the_whole_way() -> None:
    first = record("instant", "tr=0.9")
    second = record("fine_tuned", "POF", after="tr=0.9-quick-0", sparsity=0.8)
    assert total_passes(second, [first, second]) == 4
    with pytest.raises(PofError, match=r"starts from tr=0.9-quick-0, of which there is no record"):
        total_passes(second, [second])
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
