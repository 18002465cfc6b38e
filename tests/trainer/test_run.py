"""A run in its folder: it finishes, resumes to the same bits after a kill, and says what is wrong."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from pof.cli.main import main
from pof.elastic.distillation import divergence
from pof.errors import PofError
from pof.report.run_facts import portrait_of, training_of
from pof.trainer.checkpoint import read_tree, write_tree
from pof.trainer.loop import _outputs
from pof.trainer.recipe import Recipe, recipe_from
from pof.trainer.run import run_recipe
from pof.trainer.run_origin import commit_of
from pof.trainer.run_records import Records

RECIPE = """
[model]
name = "digits_convnet"
[data]
name = "digits"
batch = 64
[run]
epochs = 3
checkpoint_steps = 4
[method]
name = "pof"
refresh = 3
"""


def quick(**method: object) -> Recipe:
    return recipe_from(
        {
            "model": {"name": "digits_convnet"},
            "data": {"name": "digits", "batch": 128},
            "run": {"epochs": 2, "evaluate_every": 1},
            "method": method or {"name": "dense"},
        }
    )


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_a_run_writes_records_and_weights_and_then_does_nothing(tmp_path: Path) -> None:
    recipe = quick()
    outcome = run_recipe(recipe, tmp_path)
    assert outcome.finished
    assert not outcome.already
    assert outcome.accuracy is not None
    assert outcome.accuracy > 0.5
    written = records(tmp_path)
    assert [record["kind"] for record in written] == ["start", "epoch", "evaluation", "epoch", "final"]
    assert len(written[-1]["table"]) == len(recipe.table.states())
    assert written[0]["recipe_hash"] == recipe.hash
    assert written[-1]["test_images"] == 500
    shown = [(line["loss"], line["accuracy"]) for line in portrait_of(tmp_path, speed=False)["training"]]
    assert shown == [(written[1]["loss"], written[2]["accuracy"]), (written[3]["loss"], outcome.accuracy)]
    weights = (tmp_path / "model.safetensors").read_bytes()
    again = run_recipe(recipe, tmp_path)
    assert again.already
    assert again.accuracy == outcome.accuracy
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert records(tmp_path) == written


def test_a_record_names_the_commit(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    assert commit_of(tmp_path) is None

    def git(*words: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", "-C", tmp_path, *name, *words], capture_output=True, text=True).stdout.strip()

    git("init")
    assert commit_of(tmp_path) is None, "there is none yet"
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    assert commit_of(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    assert commit_of(inside) is None, "what is installed in a checkout is not of it"


def test_an_epoch_that_was_resumed_is_shown_as_it_ended(tmp_path: Path) -> None:
    lines = [("epoch", 1, 2.0), ("evaluation", 1, 0.3), ("epoch", 2, 1.5), ("epoch", 2, 1.0)]
    kept = Records(tmp_path / "records.jsonl")
    for kind, epoch, found in lines:
        kept.append(kind, epoch=epoch, **{"loss" if kind == "epoch" else "accuracy": found})
    first, second = {"epoch": 1, "loss": 2.0, "accuracy": 0.3}, {"epoch": 2, "loss": 1.0, "accuracy": None}
    assert training_of(kept) == [first, second]
    kept.append("final", accuracy=0.5)
    assert training_of(kept) == [first, {**second, "accuracy": 0.5}]


def test_the_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    run_recipe(quick(), tmp_path)
    with pytest.raises(PofError, match="holds a run of another recipe"):
        run_recipe(quick(name="one_shot", sparsity=0.5), tmp_path)


def test_a_run_that_holds_images_out_never_sees_the_test_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    out = str(tmp_path / "run")
    command = ["train", str(recipe), "--set", "run.epochs=1", "--set", "data.hold_out=297", "--out", out]
    assert main(command) == 0
    assert "Top-1 on 297 training images, held out." in capsys.readouterr().out
    final = records(tmp_path / "run")[-1]
    assert (final["test_images"], final["step"]) == (297, (1297 - 297) // 64)
    assert main(["eval", out]) == 0
    assert "500 test images" in capsys.readouterr().out, "once settings are chosen"
    assert portrait_of(out, speed=False)["name"] == "run (held-out images)"
    assert main([*command[:-1], out + "2", "--set", "data.hold_out=1297"]) == 2
    assert "hold_out=1297 must be less than 1297" in capsys.readouterr().err


def test_a_newer_version_with_more_settings_goes_on_with_a_run(tmp_path: Path) -> None:
    recipe = quick()
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run_recipe(recipe, whole)

    def interrupt(event: object) -> None:
        if getattr(event, "step", 0) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    assert not run_recipe(recipe, stopped, interrupt).finished
    # What an older version would have written, to which a setting was unknown.
    (line,) = records(stopped)
    del line["recipe"]["run"]["accumulate"]
    (stopped / "records.jsonl").write_text(json.dumps({**line, "recipe_hash": "of before"}) + "\n")
    tree = read_tree(stopped / "checkpoint.safetensors")
    write_tree(stopped / "checkpoint.safetensors", {**tree, "recipe": "of before"})
    assert run_recipe(recipe, stopped).finished
    assert [line["kind"] for line in records(stopped)][:2] == ["start", "resume"]
    one, other = load_file(whole / "model.safetensors"), load_file(stopped / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_killed_at_a_random_moment_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(["train", str(recipe), "--out", str(whole), "--json"]) == 0
    command = [sys.executable, "-m", "pof.cli.main", "train", str(recipe), "--out", str(killed), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not (killed / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it was killed before it could finish"
    assert main(["train", str(recipe), "--out", str(killed), "--json"]) == 0
    assert "resume" in [record["kind"] for record in records(killed)]
    one, other = load_file(whole / "model.safetensors"), load_file(killed / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_interrupt_stops_after_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0

    def interrupt_at_the_third_step(_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            os.kill(os.getpid(), signal.SIGINT)

    outcome = run_recipe(quick(), tmp_path, interrupt_at_the_third_step)
    assert not outcome.finished
    assert outcome.step == 3
    assert run_recipe(quick(), tmp_path).finished
    whole = run_recipe(quick(), tmp_path / "whole")
    assert whole.finished
    one, other = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "whole" / "model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    table = quick().as_dict()
    method = {"name": table.pop("method"), **table.pop("settings")}
    table["optimizer"]["learning_rate"] = 1e30
    table["run"]["checkpoint_steps"] = 1
    with pytest.raises(PofError, match=r"lower optimizer\.learning_rate"):
        run_recipe(recipe_from({**table, "method": method}), tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    assert not checkpoint.exists() or all(value.isfinite().all() for value in load_file(checkpoint).values())


def test_a_loss_that_is_no_number_is_noticed_without_a_checkpoint(tmp_path: Path) -> None:
    table = quick().as_dict()
    method = {"name": table.pop("method"), **table.pop("settings")}
    table["optimizer"]["learning_rate"] = 1e30
    with pytest.raises(PofError, match=r"the loss is (nan|inf) at step 9: lower optimizer.learning_rate"):
        run_recipe(recipe_from({**table, "method": method}), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PofError, match="cannot make the folder"):
        run_recipe(quick(), tmp_path / "file" / "run")


def test_a_broken_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"junk")
    with pytest.raises(PofError, match="is broken"):
        run_recipe(quick(), tmp_path)


def test_a_cut_off_last_line_of_the_records_is_mended(tmp_path: Path) -> None:
    run_recipe(quick(), tmp_path)
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"kind": "fin')
    assert run_recipe(quick(), tmp_path).already


def test_eval_and_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_recipe(quick(name="pof", weight=0.3), tmp_path / "run")
    assert main(["eval", str(tmp_path / "run"), "--sparsity", "0.5", "--recover-from", "0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["zeros"] == pytest.approx(0.2, abs=0.01)
    assert main(["eval", str(tmp_path / "run"), "--sparsity", "0.5", "--calibrate"]) == 0
    assert "re-estimated" in capsys.readouterr().out
    file = tmp_path / "run" / "model.safetensors"
    assert main(["eval", str(file), "--model", "digits_convnet", "--data", "digits", "--json"]) == 0
    dense = json.loads(capsys.readouterr().out)["accuracy"]
    assert main(["sweep", str(tmp_path / "run"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[0]["accuracy"] == dense
    assert len(rows) == 13
    assert main(["sweep", str(tmp_path / "run")]) == 0
    assert "pruned at 0.7" in capsys.readouterr().out
    assert main(["eval", str(file), "--json"]) == 0, "the file says of which model and dataset it is"
    assert json.loads(capsys.readouterr().out)["accuracy"] == dense
    assert main(["eval", str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err


def no_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def loss_of_one_epoch(folder: Path, method: dict[str, Any], **others: Any) -> float:
    """Of training on the digits, without a table."""
    recipe = recipe_from(
        {
            "model": {"name": "digits_convnet"},
            "data": {"name": "digits", "batch": 1000},
            "run": {"epochs": 1},
            "table": {"sparsities": [], "bands": []},
            "method": method,
            **others,
        }
    )
    run_recipe(recipe, folder)
    return float(next(r["loss"] for r in records(folder) if r["kind"] == "epoch"))


def test_a_teacher_is_run_on_the_same_images(tmp_path: Path) -> None:
    losses = {}
    for sparsity in (0.0, 0.9):
        method = {"name": "one_shot", "sparsity": sparsity, "distill": 1.0}
        still = {"model": {"name": "test_run:no_norm"}, "optimizer": {"learning_rate": 1e-9}}
        losses[sparsity] = loss_of_one_epoch(tmp_path / str(sparsity), method, **still)
    assert losses[0.0] == pytest.approx(0.0, abs=1e-6), "it differs in nothing from its teacher"
    assert losses[0.9] > 1e-3


def test_divergence_against_a_plain_loop() -> None:
    outputs, teacher, temperature = [[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], [[2.0, 0.0, -1.0], [0.5, 0.5, 4.0]], 3.0
    wanted = 0.0
    for found, taught in zip(outputs, teacher, strict=True):
        q, p = ([math.exp(value / temperature) for value in values] for values in (found, taught))
        wanted += sum(b / sum(p) * math.log((b / sum(p)) / (a / sum(q))) for a, b in zip(q, p, strict=True)) / 2
    found = float(divergence(torch.tensor(outputs), torch.tensor(teacher), temperature))
    assert found == pytest.approx(9.0 * wanted, rel=1e-6)


def test_temperature_reaches_the_loss(tmp_path: Path) -> None:
    losses = {}
    for temperature in (1.0, 4.0):
        method = {"name": "one_shot", "sparsity": 0.9, "distill": 1.0, "temperature": temperature}
        losses[temperature] = loss_of_one_epoch(tmp_path / str(temperature), method)
    assert abs(losses[4.0] / losses[1.0] - 1) > 1e-3


@pytest.mark.parametrize(("asked", "tested"), [([], ["global"]), (["layer", "global"], ["layer", "global"])])
def test_the_final_table_ranks_as_the_method_did_unless_told(
    tmp_path: Path, asked: list[str], tested: list[str]
) -> None:
    recipe = recipe_from(
        {
            "model": {"name": "digits_convnet"},
            "data": {"name": "digits", "batch": 1000},
            "run": {"epochs": 1},
            "table": {"sparsities": [0.8], "bands": [], "calibrate": False, "scopes": asked},
            "method": {"name": "one_shot", "sparsity": 0.8, "scope": "global"},
        }
    )
    rows = run_recipe(recipe, tmp_path).table
    assert [row["scope"] for row in rows] == tested
    assert rows[-1]["zeros"] == pytest.approx(0.8, abs=1e-3), "what was pruned globally is not pruned further"


def test_a_teacher_goes_forward_once_a_step_for_both_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def outputs(teacher: nn.Module, images: torch.Tensor) -> torch.Tensor:
        asked.append(len(images))
        return _outputs(teacher, images)

    monkeypatch.setattr("pof.trainer.loop._outputs", outputs)
    recipe = recipe_from(
        {
            "model": {"name": "digits_convnet"},
            "data": {"name": "digits", "batch": 600},
            "run": {"epochs": 1, "accumulate": 2},
            "table": {"sparsities": [], "bands": []},
            "method": {"name": "nested", "teacher": True},
        }
    )
    assert run_recipe(recipe, tmp_path).finished
    assert asked == [300, 300] * 2, "two steps, in two parts each"
