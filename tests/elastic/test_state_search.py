"""`Elastic.choose` and `pof choose`: the state that fits, found with few measurements."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pof
from pof.cli.main import main
from pof.data import DATASETS
from pof.elastic.state_search import Limits, candidates, choose_state
from pof.models import digits_convnet
from pof.ranking.sparsity_state import DENSE, State
from pof.trainer.accuracy_sweep import accuracy as accuracy_of

SHIPPED = Path(pof.__file__).parent / "data" / "shipped" / "cifar10-resnet20-nested.pof"


class Curve:
    """Measures that are plain functions of the sparsity, and how often each was asked for."""

    def __init__(self, fall_at: float, size: int = 1000) -> None:
        self.fall_at, self.size = fall_at, size
        self.asked: list[tuple[str, State]] = []

    def score(self, state: State) -> float:
        self.asked.append(("score", state))
        return 0.9 if state.sparsity <= self.fall_at else 0.1

    def bytes(self, state: State) -> int:
        self.asked.append(("bytes", state))
        return round(self.size * (1 - state.sparsity))

    def milliseconds(self, state: State) -> float:
        self.asked.append(("milliseconds", state))
        return 10 * (1 - state.sparsity)


@given(st.integers(0, 99), st.integers(1, 100))
def test_the_same_as_trying_every_state(fall: int, thousandths: int) -> None:
    fall_at, most = fall / 100, 10 * thousandths
    states = candidates()
    curve = Curve(fall_at)
    limits = Limits(at_least=0.5, max_bytes=most)
    holding = [s for s in states if curve.score(s) >= 0.5 and curve.bytes(s) <= most]
    curve.asked.clear()
    if not holding:
        with pytest.raises(pof.PofError, match="no state"):
            choose_state(states, curve, limits)
        return
    found = choose_state(states, curve, limits)
    assert found.state == holding[-1]
    assert (found.score, found.bytes) == (0.9, curve.bytes(found.state))
    curve.asked.pop()
    assert len(curve.asked) == len(set(curve.asked)) <= 22, "bisection, and nothing twice"
    assert {trial.state for trial in found.tried} == {state for _, state in curve.asked}


@given(st.floats(0.2, 9.9))
def test_without_a_score_it_is_the_densest_that_fits(most: float) -> None:
    curve = Curve(0.5)
    found = choose_state(candidates(), curve, Limits(max_ms=most))
    assert found.state == next(s for s in candidates() if curve.milliseconds(s) <= most)
    assert found.score is None


def test_a_hand_computed_example() -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    elastic = pof.Elastic(model)
    choice = elastic.choose(lambda m: float((m.weight != 0).float().mean()), at_least=0.3)
    assert choice.state == pof.State(0.7, 0.7)
    assert elastic.state == choice.state, "the model is in the chosen state"
    assert int((model.weight == 0).sum()) == 70
    text = str(choice).splitlines()
    assert text[0].split() == ["state", "score"]
    assert sum(line.startswith("*") for line in text) == 1


def test_bytes_are_those_of_a_file_that_goes_so_far(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    elastic = pof.Elastic(model, magnitudes="unit", exclude="1")
    elastic.prune(0.3)
    choice = elastic.choose(max_bytes=55_000, values="exact")
    elastic.restore()
    stages = [choice.state.sparsity]
    pof.save(model, tmp_path / "a.pof", stages=stages, magnitudes="unit", exclude="1")
    read = pof.open(tmp_path / "a.pof").bytes_for(choice.state.sparsity)
    assert read == choice.bytes
    assert read is not None
    assert read <= 55_000
    fewer = round(choice.state.sparsity - 0.01, 2)
    pof.save(model, tmp_path / "b.pof", stages=[fewer], magnitudes="unit", exclude="1")
    assert pof.open(tmp_path / "b.pof").bytes_for(fewer) > 55_000


def test_bands_statistics_and_time() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)).eval()
    images = torch.randn(4, 3, 8, 8)
    elastic = pof.Elastic(model)
    means = {}

    def score(live: nn.Module) -> float:
        means[elastic.state] = live[2].running_mean.clone()  # type: ignore[index]
        return 1 - elastic.sparsity

    choice = elastic.choose(score, at_least=0.5, recover_from=0.4, calibrate=iter([images]))
    assert choice.state == State(0.99, 0.4), "a filled band is not zero"
    assert torch.equal(means[DENSE], torch.zeros(8)), "the dense state keeps its own statistics"
    assert not torch.equal(means[choice.state], torch.zeros(8))
    elastic.restore()
    timed = elastic.choose(max_ms=1e6, example=images)
    assert timed.state == DENSE
    assert timed.milliseconds is not None
    assert timed.milliseconds > 0


def test_when_nothing_holds_the_model_stays_as_it_was() -> None:
    model = nn.Linear(10, 10)
    elastic = pof.Elastic(model)
    elastic.prune(0.4)
    before = model.weight.clone()
    for asked, message in (
        ({"at_least": 2.0}, "score of dense, the densest that fits, is 1, below at_least=2"),
        ({"max_bytes": 3}, r"no state fits: pruned at 0\.99 has [\d,]+ bytes, more than 3"),
        ({}, "nothing to choose by"),
        ({"max_ms": 1}, "pass example="),
    ):
        with pytest.raises(pof.PofError, match=message):
            elastic.choose(lambda _: 1.0, **asked)  # type: ignore[arg-type]
        assert torch.equal(model.weight, before)
    with pytest.raises(pof.PofError, match="pass evaluate"):
        elastic.choose(at_least=0.5)
    with pytest.raises(ZeroDivisionError):
        elastic.choose(lambda _: 1 / 0, at_least=0.5)
    assert torch.equal(model.weight, before)


def test_what_cannot_be_scored_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    elastic = pof.Elastic(model)
    for call in (elastic.choose, elastic.sensitivity):
        model.train()
        with pytest.raises(pof.PofError, match=r"in training mode: call model\.eval\(\) first"):
            call(lambda _: 1.0, **({"at_least": 0.5} if call == elastic.choose else {}))
        model.eval()
        for wrong in (None, "good", torch.ones(2), float("nan")):
            with pytest.raises(pof.PofError, match="let it return a number"):
                call(lambda _, wrong=wrong: wrong, **({"at_least": 0.5} if call == elastic.choose else {}))
    with pytest.raises(pof.PofError, match="batches is a Tensor"):
        elastic.choose(lambda _: 1.0, at_least=0.5, calibrate=torch.ones(2, 4))
    assert elastic.choose(lambda m: m[0].weight.sum() * 0 + 1, at_least=0.5).score == 1.0, (
        "tensors of one number will do"
    )


@pytest.mark.parametrize("name", ["digits-pof-0"])
def test_the_verb(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / name)
    recipe = Path(__file__).parents[2] / "recipes" / "digits-pof.toml"
    changes = ["run.epochs=2", "table.sparsities=[]", "table.bands=[]"]
    assert main(["train", str(recipe), "--out", out, "--json", *(w for c in changes for w in ("--set", c))]) == 0
    accuracy = json.loads(capsys.readouterr().out)["accuracy"]
    assert main(["choose", out, "--at-least", f"{accuracy / 2:.3f}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["score"] >= accuracy / 2
    assert found["sparsity"] > 0
    assert found["tried"][0]["score"] == accuracy
    # What is exported is what was measured, with statistics of its own.
    weights = str(tmp_path / "chosen.pth")
    assert main(["export", out, weights, "--sparsity", str(found["sparsity"])]) == 0
    capsys.readouterr()
    network = digits_convnet().eval()
    network.load_state_dict(torch.load(weights))
    assert accuracy_of(network, DATASETS["digits"]()) == found["score"]
    assert main(["export", out, weights, "--sparsity", str(found["sparsity"]), "--no-calibrate"]) == 0
    plain = digits_convnet()
    plain.load_state_dict(torch.load(weights))
    assert not torch.equal(plain.bn2.running_mean, network.bn2.running_mean)
    capsys.readouterr()
    packed = str(tmp_path / "model.pof")
    assert main(["pack", out, packed, "--stages", "0.8"]) == 0
    size = pof.open(packed).bytes_for(0.8)
    capsys.readouterr()
    assert main(["choose", packed, "--max-bytes", str(size)]) == 0
    assert "chosen: pruned at 0.8" in capsys.readouterr().out
    for words, message in (
        ([out], "give --at-least, --max-bytes or --max-ms"),
        ([out, "--at-least", "95"], "write 0.95 for 95 %"),
        ([out, "--max-bytes", "1"], "no state fits"),
    ):
        assert main(["choose", *words]) == 2
        assert message in capsys.readouterr().err


def test_limits_and_bands_are_numbers_in_range() -> None:
    elastic = pof.Elastic(nn.Linear(10, 10))
    for asked in ({"at_least": float("nan")}, {"max_bytes": float("inf")}, {"at_least": "0.9"}):
        with pytest.raises(pof.PofError, match="must be a number"):
            elastic.choose(lambda _: 1.0, **asked)  # type: ignore[arg-type]
    for start in (1.5, 30, float("nan"), 0.99):
        with pytest.raises(pof.PofError, match="recover_from"):
            elastic.choose(lambda _: 1.0, at_least=0.5, recover_from=start)


def test_layers_too_small_for_the_sparsest_states_do_not_end_the_search() -> None:
    torch.manual_seed(0)
    elastic = pof.Elastic(nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))), scope="global")
    assert elastic.choose(lambda _: 1.0, at_least=0.5).state.sparsity == 0.94


def test_what_is_chosen_held_when_it_was_measured() -> None:
    class Noisy(Curve):
        def milliseconds(self, state: State) -> float:
            # The state at the end of the search is slow when it is timed.
            return 30.0 if state.sparsity == 0.47 else super().milliseconds(state)

    found = choose_state(candidates(), Noisy(0.47), Limits(at_least=0.5, max_ms=9))
    assert found.milliseconds is not None
    assert found.milliseconds <= 9
    assert found.score == 0.9


def test_bytes_of_a_file_need_not_fall_with_the_sparsity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    file = str(tmp_path / "digits.pof")
    pof.save(digits_convnet(), file, metadata={"model": "digits_convnet", "data": "digits"})
    most = pof.open(file).bytes_for(0.9, 0.3)
    assert most < pof.open(file).bytes_for(0.99, 0.3)
    assert main(["choose", file, "--recover-from", "0.3", "--max-bytes", str(most), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] <= most


def test_inputs_by_name_can_be_timed() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            found: torch.Tensor = self.one(x) * scale
            return found

    elastic = pof.Elastic(Named().eval())
    assert elastic.choose(max_ms=1e6, example={"x": torch.ones(2, 8)}).milliseconds is not None
