"""`pof.fit` as users call it: what it gains, the way back, and what it refuses."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pof
from pof.fitting import fitting_run, nested_distillation
from pof.fitting.fit_report import FitReport
from tests.convnets import convnet, inputs
from tests.small_models import bits

QUICK = 10
"""Minutes that are never used up, since training needs more than `no_training` leaves."""


@pytest.fixture(autouse=True, scope="module")
def _no_training() -> Iterator[None]:
    """Least squares does not depend on the clock; training does, and so does the choice of bfloat16."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting_run, "LEAST_SECONDS", 1e9)
        patch.setattr(fitting_run, "half_precision_is_faster", lambda *_: False)
        yield


def distances(model: nn.Module, teacher: nn.Module, scope: str = "global") -> list[float]:
    """How far the outputs for new images are off the teacher's, at a few sparsities."""
    x, data = inputs(128, 77), [inputs(128, 5)]
    elastic = pof.Elastic(model, scope=scope)  # type: ignore[arg-type]
    found = []
    with torch.no_grad():
        for sparsity in (0.0, 0.5, 0.7, 0.8):
            with elastic.at(sparsity):
                elastic.calibrate(data)
                ours, theirs = (each(x) - each(x).mean(1, keepdim=True) for each in (model, teacher))
                found.append(float((ours - theirs).square().mean() / theirs.square().mean()))
    return found


@pytest.fixture(scope="module")
def fitted() -> tuple[nn.Module, nn.Module, FitReport]:
    model = convnet()
    teacher = copy.deepcopy(model)
    return model, teacher, pof.fit(model, inputs().split(64), minutes=QUICK)


def test_least_squares_brings_new_images_nearer(fitted: tuple[nn.Module, nn.Module, FitReport]) -> None:
    model, teacher, report = fitted
    plain, ours = distances(copy.deepcopy(teacher), teacher), distances(model, teacher)
    assert ours[1] < 0.5 * plain[1], (ours, plain)
    assert sum(ours) < sum(plain), (ours, plain)
    assert ours[0] < 0.02, "the dense network stays near"
    assert report.after[-2] < report.before[-2]


class StepClock:
    """A clock that goes on by a second each time it is read: training has as many steps as seconds."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1.0
        return self._now


def test_training_keeps_them_near(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convnet()
    teacher = copy.deepcopy(model)
    first = pof.fit(copy.deepcopy(model), inputs().split(64), minutes=QUICK)
    monkeypatch.setattr(fitting_run, "LEAST_SECONDS", 0.5)
    monkeypatch.setattr(nested_distillation, "time", StepClock())
    report = pof.fit(model, inputs().split(64), minutes=2)
    assert [stage.name for stage in report.stages] == [
        "first look",
        "ranking",
        "least squares",
        "training",
        "how much of it to keep",
        "last look",
    ]
    assert sum(report.after[1:3]) < 0.5 * sum(report.before[1:3])
    assert sum(report.after[:3]) < 1.5 * sum(first.after[:3]), "random weights leave little to learn, but none is lost"
    assert distances(model, teacher)[0] < 0.3
    assert all(p.grad is None for p in model.parameters())


def test_undo_brings_every_bit_back(fitted: tuple[nn.Module, nn.Module, FitReport]) -> None:
    model, teacher, report = fitted
    assert bits(model) != bits(teacher)
    report.undo()
    assert bits(model) == bits(teacher)
    model[11] = nn.Linear(2, 2)
    with pytest.raises(pof.PofError, match="another shape since the fit"):
        report.undo()


def test_the_report(fitted: tuple[nn.Module, nn.Module, FitReport]) -> None:
    report = fitted[2]
    text = str(report)
    assert "fitted to 192 inputs, ranked with scope='global'" in text
    assert "for 64 more inputs" in text
    assert report.advice in text
    assert set(report.layers_after) == {"3.weight", "6.weight", "11.weight"}
    assert max(map(len, text.splitlines())) <= 100
    assert report.plot().axes[0].get_xlabel() == "sparsity, %"


@pytest.mark.parametrize("stage", ["refit", "distil"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_fails_leaves_the_model_as_it_was(
    stage: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: nn.Module, *args: Any, **settings: Any) -> None:
        with torch.no_grad():
            model[3].weight.mul_(2)
        raise error

    monkeypatch.setattr(fitting_run, stage, fails)
    monkeypatch.setattr(fitting_run, "LEAST_SECONDS", 0.0)
    model = convnet().train()
    before, modes = bits(model), [module.training for module in model.modules()]
    with pytest.raises(error):
        pof.fit(model, inputs().split(64), minutes=1)
    assert bits(model) == before
    assert [module.training for module in model.modules()] == modes


def test_a_model_in_training_mode_is_fitted_in_evaluation_mode() -> None:
    one, other = convnet().train(), convnet()
    for model in (one, other):
        pof.fit(model, inputs().split(64), minutes=QUICK)
    assert one.training
    assert bits(one) == bits(other)


def test_kinds_of_batches() -> None:
    x = inputs(128)
    labelled = TensorDataset(x, torch.full((128,), -1))
    kinds = {
        "tensors": list(x.split(64)),
        "tuples": [(part, "no label") for part in x.split(64)],
        "loader": DataLoader(labelled, batch_size=64),
        "generator": iter(x.split(64)),
    }
    found = set()
    for batches in kinds.values():
        model = convnet()
        pof.fit(model, batches, minutes=QUICK)  # type: ignore[arg-type]
        found.add(str(bits(model)))
    assert len(found) == 1


class Named(nn.Module):
    """Takes named inputs, and returns a dict with something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, tokens: Tensor, scale: float = 1.0) -> dict[str, Any]:
        x = self.embed(tokens) * scale
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return {"hidden": self.out(x), "cache": None}


def test_a_transformer_without_batch_norm() -> None:
    torch.manual_seed(0)
    model = Named().eval()
    batches = [{"tokens": torch.randint(20, (64, 6)), "scale": 2.0} for _ in range(2)]
    report = pof.fit(model, batches, minutes=QUICK)
    assert report.after[1] < report.before[1]
    assert "MultiheadAttention is not refitted" in report.not_refitted["attention.in_proj_weight"]
    assert "attention.out_proj.weight" in report.not_refitted, "its forward never runs: attention reads the weight"


def test_a_network_whose_rows_have_arbitrary_scales() -> None:
    """BatchNorm folded away and put back: magnitudes say nothing until rows are balanced."""
    model = convnet(depthwise=True)
    with torch.no_grad():
        for conv, norm in ((3, 4), (6, 7)):
            factors = torch.logspace(-2, 2, len(model[conv].weight))
            model[conv].weight.mul_(factors.view(-1, 1, 1, 1))
            if model[conv].bias is not None:
                model[conv].bias.mul_(factors)
            model[norm].running_mean.mul_(factors)
            model[norm].running_var.mul_(factors.square())
    report = pof.fit(model, inputs().split(64), minutes=QUICK)
    assert report.stages[1].remark.startswith("rows of equal size")
    assert report.after[1] < 0.6 * report.before[1]


def test_a_stopped_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    whole = convnet()
    pof.fit(whole, inputs().split(64), minutes=QUICK)
    model = convnet()
    with monkeypatch.context() as inside, pytest.raises(KeyboardInterrupt):
        inside.setattr(fitting_run, "LEAST_SECONDS", 0.0)
        inside.setattr(fitting_run, "distil", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        pof.fit(model, inputs().split(64), minutes=1, checkpoint=kept)
    assert kept.exists()
    with monkeypatch.context() as inside:
        inside.setattr(fitting_run, "refit", lambda *_: pytest.fail("it was done already"))
        pof.fit(model, inputs().split(64), minutes=QUICK, checkpoint=kept)
    assert bits(model) == bits(whole)
    assert not kept.exists()
    kept.write_bytes(b"no checkpoint")
    with pytest.raises(pof.PofError, match="not the checkpoint of a fit"):
        pof.fit(convnet(), inputs().split(64), minutes=QUICK, checkpoint=kept)


def numbers() -> Iterator[Tensor]:
    yield torch.full((256, 3, 12, 12), torch.nan)


@pytest.mark.parametrize(
    ("batches", "settings", "says"),
    [
        (lambda: [], {}, "batches is empty"),
        (lambda: inputs(), {}, "batches is a Tensor"),
        (numbers, {}, "batch 0 gives outputs with NaN or inf"),
        (lambda: inputs().split(64), {"minutes": -1}, "minutes=-1 must be a number above 0"),
        (lambda: inputs().split(64), {"scope": "all"}, "scope='all' must be one of"),
        (lambda: inputs().split(64), {"include": ["nothing"]}, "nothing"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(batches: Any, settings: dict[str, Any], says: str) -> None:
    model = convnet()
    before = bits(model)
    with pytest.raises(pof.PofError, match=says) as caught:
        pof.fit(model, batches(), **settings)
    assert len(str(caught.value)) <= 200
    assert bits(model) == before


def test_few_inputs_warn() -> None:
    with pytest.warns(UserWarning, match="a fit to 16 inputs overfits"):
        pof.fit(convnet(), [inputs(16)], minutes=QUICK)


def test_a_pruned_model_is_refused() -> None:
    model = convnet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with pytest.raises(pof.PofError, match=r"elastic.restore\(\) before pof.fit"):
        pof.fit(model, inputs().split(64), minutes=QUICK)


def test_the_globs_count_in_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def distil(*_: object, **settings: Any) -> int:
        seen.update(settings)
        return 1

    monkeypatch.setattr(fitting_run, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(fitting_run, "distil", distil)
    report = pof.fit(convnet(), inputs().split(64), minutes=1, exclude=["3.*"])
    assert seen["exclude"] == ("3.*",)
    assert "3.weight" not in report.layers_after


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting_run, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(nested_distillation, "time", StepClock())
    model = convnet().to(dtype)
    report = pof.fit(model, inputs().to(dtype).split(64), minutes=2)
    assert all(p.dtype is dtype and bool(p.isfinite().all()) for p in model.parameters())
    assert "training" in [stage.name for stage in report.stages]
    assert all(map(math.isfinite, report.after))


def test_batches_of_any_size() -> None:
    """The first inputs are taken without making batches of one, which have no variance."""
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)).eval()
    for size in (63, 21, 7):
        pof.fit(model, torch.randn(252, 8).split(size), minutes=QUICK).undo()
    with pytest.raises(pof.PofError, match="drop it"):
        pof.fit(model, torch.randn(129, 8).split(64), minutes=QUICK)


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    with monkeypatch.context() as inside, pytest.raises(KeyboardInterrupt):
        inside.setattr(fitting_run, "LEAST_SECONDS", 0.0)
        inside.setattr(fitting_run, "distil", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        pof.fit(convnet(), inputs().split(64), minutes=1, checkpoint=kept)
    with pytest.raises(pof.PofError, match="another network, plan or scope"):
        pof.fit(convnet(), inputs().split(64), minutes=QUICK, checkpoint=kept, exclude=["3.*"])
