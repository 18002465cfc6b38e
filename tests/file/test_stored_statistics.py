"""BatchNorm statistics in the file: estimated once for many states, so that whoever loads it needs no data."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from file_helpers import assert_same
from torch import Tensor, nn

import pof
from pof.elastic.model_saving import default_states
from pof.file import statistics_stream
from pof.file import stored_statistics as statistics
from pof.file.stored_statistics import EPSILON
from pof.ranking.sparsity_state import State
from tests.small_models import bits

MEAN, VARIANCE = "running_mean", "running_var"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.kernel = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(12)
        self.point = nn.Conv2d(12, 16, 1)
        self.bn3 = nn.BatchNorm2d(16, track_running_stats=False)
        self.bn4 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.stem(x)))
        x = torch.relu(self.bn2(self.kernel(x)))
        x = torch.relu(self.bn4(self.bn3(self.point(x)) * 2 + 1))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(16, 3, 6, 6, generator=generator) + 0.3 for _ in range(3)]


def trained() -> nn.Module:
    """A network whose statistics fit it."""
    torch.manual_seed(5)
    model = Net()
    pof.Elastic(model).calibrate(batches(), paired=False)
    return model.eval()


def assert_near(found: dict[str, Tensor], live: dict[str, Tensor], dense: dict[str, Tensor], steps: float) -> None:
    """Within so many steps of the quantisation."""
    for name in [name for name in dense if name.endswith(MEAN)]:
        other = name.replace(MEAN, VARIANCE)
        spread = (dense[other].double() + EPSILON).sqrt()
        assert float(((found[name] - live[name]).abs() / spread).max()) <= steps / 64, name
        octaves = torch.log2((found[other].double() + EPSILON) / (live[other].double() + EPSILON))
        assert float(octaves.abs().max()) <= steps / 32, other


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return any(not torch.equal(one[name], other[name]) for name in one if name.endswith((MEAN, VARIANCE)))


def live_at(model: nn.Module, sparsity: float, recover_from: float | None, **chosen: Any) -> dict[str, Tensor]:
    elastic = pof.Elastic(live := copy.deepcopy(model), **chosen)
    with elastic.at(sparsity, recover_from):
        elastic.calibrate(batches())
        return {name: value.clone() for name, value in live.state_dict().items()}


@pytest.mark.parametrize("chosen", [{}, {"scope": "global"}, {"magnitudes": "unit"}], ids=str)
def test_a_state_comes_with_its_statistics(file: Path, chosen: dict[str, Any]) -> None:
    model = trained()
    before = bits(model)
    pof.save(model.train(), file, calibrate=batches(), **chosen)
    assert bits(model) == before
    assert model.training
    opened, dense = pof.open(file), model.state_dict()
    for sparsity, recover_from in ((0.9, None), (0.7, None), (0.3, None), (0.5, None), (0.96, None), (0.58, None),
                                   (0.9, 0.3), (0.9, 0.7), (0.7, 0.3)):  # fmt: skip
        live = live_at(model, sparsity, recover_from, **chosen)
        found = opened.state_dict(sparsity, recover_from)
        assert differ(found, dense)
        assert_near(found, live, dense, steps=0.501)
        rest = [name for name in dense if not name.endswith((MEAN, VARIANCE, "num_batches_tracked"))]
        assert_same({name: found[name] for name in rest}, {name: live[name] for name in rest})
        into = trained()
        pof.load(file, into=into, sparsity=sparsity, recover_from=recover_from)
        assert_same(into.state_dict(), found)


def test_dense_stays_bit_exact(file: Path) -> None:
    model = trained()
    for states in (None, [0.0, 0.5], [0.0]):
        pof.save(model, file, calibrate=batches(), states=states)
        assert bits(pof.open(file).state_dict()) == bits(model)


def assert_interpolated(opened: pof.PofFile, sparsity: float, known: list[float]) -> None:
    """Linear in the sparsity between the nearest of `known`: means as they are, variances in their logarithm.

    A variance that is quantised to less than nothing is zero, which half a step allows for.
    """
    below = max(end for end in known if end <= sparsity)
    above = min((end for end in known if end >= sparsity), default=below)
    share = 0.0 if above == below else (sparsity - below) / (above - below)
    low, found, high = (opened.state_dict(end) for end in (below, sparsity, above))
    for name in (name for name in found if name.endswith(MEAN)):
        torch.testing.assert_close(found[name], torch.lerp(low[name], high[name], share))
        other = name.replace(MEAN, VARIANCE)
        logs = [torch.log2(tensors[other].double() + EPSILON) for tensors in (low, found, high)]
        torch.testing.assert_close(logs[1], torch.lerp(logs[0], logs[2], share), rtol=0.0, atol=0.5 / 32)


def test_between_two_states_they_are_interpolated(file: Path) -> None:
    model = trained()
    pof.save(model, file, calibrate=batches())
    known = [state.sparsity for state in default_states((0.9, 0.7, 0.3)) if state.sparsity == state.recover_from]
    opened, dense = pof.open(file), model.state_dict()
    for sparsity in (0.05, 0.35, 0.51, 0.71, 0.89, 0.91, 0.955):
        assert_interpolated(opened, sparsity, [0.0, *known])
        found, live = opened.state_dict(sparsity), live_at(model, sparsity, None)
        errors = [
            sum(float((tensors[name] - live[name]).abs().mean()) for name in dense if name.endswith((MEAN, VARIANCE)))
            for tensors in (found, dense)
        ]
        assert errors[0] < 0.25 * errors[1] + 0.02


def test_halfway_is_halfway(file: Path) -> None:
    model = trained()
    pof.save(model, file, calibrate=batches(), states=[0.4, 0.6], stages=(0.6, 0.4))
    opened = pof.open(file)
    low, middle, high, dense, quarter = (opened.state_dict(s) for s in (0.4, 0.5, 0.6, 0.0, 0.1))
    for name in (name for name in dense if name.endswith(MEAN)):
        torch.testing.assert_close(middle[name], (low[name] + high[name]) / 2)
        torch.testing.assert_close(quarter[name], 0.75 * dense[name] + 0.25 * low[name])
        other = name.replace(MEAN, VARIANCE)
        torch.testing.assert_close(middle[other], (low[other] * high[other]).sqrt(), rtol=1e-3, atol=1e-5)
    # Beyond the last there is nothing to go to.
    assert not differ(opened.state_dict(0.95), high)


def test_a_grid_of_ones_own(file: Path) -> None:
    model = trained()
    dense = model.state_dict()
    default = pof.save(model, file, calibrate=batches())
    few = pof.save(model, file, calibrate=batches(), states=[0.5, 0.95, (0.2, 0.6)])
    none = pof.save(model, file)
    assert none < few < default
    pof.save(model, file, calibrate=batches(), states=[0.5, 0.95, (0.2, 0.6)])
    opened = pof.open(file)
    for ends in ((0.5, None), (0.95, None), (0.6, 0.2)):
        assert_near(opened.state_dict(*ends), live_at(model, *ends), dense, steps=0.501)
    # A band that was not asked for has the statistics of the dense network.
    assert not differ(opened.state_dict(0.9, 0.3), dense)


def test_a_coarse_grid_gives_the_same_whatever_part_of_the_file_is_read(file: Path) -> None:
    """The neighbours of a state may lie in chunks that are not read for it, so there are always the stages as well."""
    model = trained()
    pof.save(model, file, calibrate=batches(), states=[0.2, 0.96])
    opened = pof.open(file)
    for sparsity in (0.93, 0.9, 0.85, 0.75, 0.7, 0.6, 0.4, 0.25, 0.1):
        assert_interpolated(opened, sparsity, [0.0, 0.2, 0.3, 0.7, 0.9, 0.96])
    for stage in (0.9, 0.7, 0.3):
        assert_near(opened.state_dict(stage), live_at(model, stage, None), model.state_dict(), steps=0.501)


@pytest.mark.parametrize("values", ["fp16", "int8"])
def test_they_are_those_of_the_weights_that_the_file_holds(file: Path, values: str) -> None:
    model = trained()
    pof.save(model, file, values=values, calibrate=batches())
    loaded = trained()
    pof.load(file, into=loaded)
    for ends in ((0.9, None), (0.7, 0.3)):
        found, live = pof.open(file).state_dict(*ends), live_at(loaded, *ends)
        assert_near(found, live, model.state_dict(), steps=0.501)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_in_half_precision(file: Path, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
    data = [torch.randn(32, 8).to(dtype)]
    pof.Elastic(model).calibrate(data, paired=False)
    pof.save(model, file, calibrate=data, states=[0.5])
    elastic, dense = pof.Elastic(live := copy.deepcopy(model)), model.state_dict()
    with elastic.at(0.5):
        elastic.calibrate(data)
        found = pof.open(file).state_dict(0.5)
        assert found["1.running_mean"].dtype is dtype
        torch.testing.assert_close(found["1.running_mean"], live[1].running_mean, rtol=0.02, atol=0.02)
        torch.testing.assert_close(found["1.running_var"], live[1].running_var, rtol=0.03, atol=0.01)
    assert bits(pof.open(file).state_dict()) == bits(dense)


@torch.no_grad()
def test_they_help(file: Path) -> None:
    """The point of it all: at a high sparsity the outputs are nearer to those of a calibrated network."""
    model = trained()
    data = batches()[0]
    outputs = []
    for calibrate in (batches(), None):
        pof.save(model, file, calibrate=calibrate)
        pof.load(file, into=(loaded := trained()), sparsity=0.9)
        outputs.append(loaded(data))
    elastic = pof.Elastic(live := trained())
    elastic.prune(0.9)
    elastic.calibrate(batches())
    right = live.eval()(data)
    with_them, without = ((output - right).norm() for output in outputs)
    assert float(with_them) < 0.1 * float(without)


def test_batches_as_elsewhere(file: Path) -> None:
    model = trained()
    forms = [batches(), [(batch, 0) for batch in batches()], [{"x": batch} for batch in batches()], iter(batches())]
    sizes = set()
    for form in forms:
        pof.save(model, file, calibrate=form, states=[0.5])
        sizes.add(file.read_bytes())
    assert len(sizes) == 1


def test_what_cannot_be_is_refused(file: Path) -> None:
    model = trained()
    with pytest.raises(pof.PofError, match="calibrate=batches"):
        pof.save(model, file, states=[0.5])
    with pytest.raises(pof.PofError, match="calibrate=batches"):
        pof.save(model, file, states=[])
    for states in ([1.0], ["x"], [(0.7, 0.3)], [-0.1]):
        with pytest.raises(pof.PofError):
            pof.save(model, file, calibrate=batches(), states=states)
    with pytest.raises(pof.PofError, match="empty"):
        pof.save(model, file, calibrate=[])
    with pytest.raises(pof.PofError, match="NaN"):
        pof.save(model, file, calibrate=[torch.full((2, 3, 6, 6), torch.nan)])
    assert not file.exists()


def test_a_model_without_normalisation_needs_none(file: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    pof.save(model, file, calibrate=[torch.randn(2, 4)])
    assert bits(pof.open(file).state_dict()) == bits(model)
    assert torch.equal(pof.open(file).state_dict(0.5)["0.bias"], model[0].bias)


class Odd(nn.Module):
    """Buffers that are called like statistics, of every shape."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.bn = nn.BatchNorm1d(8)
        self.again = self.bn
        for name, first, second in (("scalar", (), ()), ("wide", (1, 8, 1), (1, 8, 1)), ("apart", (3,), (1, 3))):
            self.add_module(name, module := nn.Module())
            module.register_buffer(MEAN, torch.randn(first))
            module.register_buffer(VARIANCE, torch.rand(second))
        self.register_buffer(MEAN, torch.arange(3))
        self.register_buffer(VARIANCE, torch.arange(3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.bn(self.fc(x))
        return found


@pytest.mark.filterwarnings("ignore:Odd and 3 more keep statistics")
def test_buffers_that_only_look_like_statistics_keep_their_shapes(file: Path) -> None:
    model = Odd()
    data = [torch.randn(64, 8) * 2 + 1]
    pof.save(model, file, calibrate=data, states=[0.5])
    found = pof.open(file).state_dict(0.5)
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    elastic = pof.Elastic(model)
    with elastic.at(0.5):
        elastic.calibrate(data)
        own = {name: value for name, value in dense.items() if name.startswith("bn.")}
        assert_near(found, model.state_dict(), own, steps=0.501)
    for name, value in dense.items():
        assert found[name].shape == value.shape
        assert found[name].dtype is value.dtype
        if not name.startswith(("bn", "again", "fc")):
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-5)
    assert torch.equal(found["again.running_var"], found["bn.running_var"])


def test_fixed_sparsities_have_statistics_too(file: Path) -> None:
    model = trained()
    pof.save(model, file, sparsities={"point": 0.5}, calibrate=batches(), states=[0.8])
    live = live_at(model, 0.8, None, sparsities={"point": 0.5})
    assert_near(pof.open(file).state_dict(0.8), live, model.state_dict(), steps=0.501)


def test_bands_lie_between_their_neighbours() -> None:
    def steps(sparsity: float, recover_from: float) -> np.ndarray:
        """Differences that are a plane over both ratios, so that interpolation is exact."""
        return 1000 * np.array([sparsity, recover_from, sparsity - 2 * recover_from])

    ends = [(s, r) for r in (0.1, 0.3, 0.5) for s in (r, 0.6, 0.8, 0.9)]
    known = {State(*pair): steps(*pair) for pair in ends}
    for state in (State(0.7, 0.3), State(0.8, 0.2), State(0.85, 0.45), State(0.4, 0.2), State(0.35, 0.3)):
        found = statistics_stream.between(known, state)
        assert found is not None
        np.testing.assert_allclose(found, steps(*state), atol=1)
    beyond = statistics_stream.between(known, State(0.95, 0.3))
    assert beyond is not None
    np.testing.assert_allclose(beyond, steps(0.9, 0.3))
    beside = statistics_stream.between(known, State(0.9, 0.6))
    assert beside is not None
    np.testing.assert_allclose(beside, steps(0.9, 0.5))
    assert statistics_stream.between({}, State(0.9, 0.6)) is None
    assert statistics_stream.between({}, State(0.9, 0.9)) is None


def test_silenced_channels_stay_silent(tmp_path: Path) -> None:
    """A channel that pruning has emptied keeps the dense variance: dividing by nothing would magnify rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, bias=False), nn.BatchNorm2d(16)).eval()
    with torch.no_grad():
        model[2].weight[::2] *= 0.01  # these go first
    batches = [torch.randn(32, 3, 8, 8) for _ in range(4)]
    pof.Elastic(model).calibrate(batches, paired=False)
    dense = model[3].running_var.clone()
    pof.save(model, tmp_path / "m.pof", calibrate=batches, states=[0.9])
    loaded = copy.deepcopy(model)
    pof.load(tmp_path / "m.pof", into=loaded, sparsity=0.9)
    elastic = pof.Elastic(model)
    elastic.prune(0.9)
    elastic.calibrate(batches)
    emptied = (model[2].weight == 0).flatten(1).all(1)
    assert bool(emptied.any())
    torch.testing.assert_close(model[3].running_var[emptied], dense[emptied])
    with torch.no_grad():
        torch.testing.assert_close(loaded(batches[0]), model(batches[0]), rtol=0.0, atol=0.06)


@pytest.mark.parametrize("bias", [False, True])
def test_channels_that_are_loud_when_dense_and_silent_when_pruned(tmp_path: Path, bias: bool) -> None:
    """A depthwise filter may be pruned away whole, however large the values are that it gives when dense."""
    torch.manual_seed(0)
    filters = nn.Conv2d(8, 8, 3, groups=8, bias=bias)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), filters, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    with torch.no_grad():
        filters.weight[:4] += 900.0
        filters.weight[4:] += 1000.0
    batches = [torch.randn(32, 3, 8, 8) + 1.0 for _ in range(4)]
    pof.Elastic(model).calibrate(batches, paired=False)
    pof.save(model, tmp_path / "m.pof", calibrate=batches, states=[0.5, 0.9])
    for sparsity in (0.5, 0.9):
        loaded, live = copy.deepcopy(model), copy.deepcopy(model)
        pof.load(tmp_path / "m.pof", into=loaded, sparsity=sparsity)
        elastic = pof.Elastic(live)
        elastic.prune(sparsity)
        elastic.calibrate(batches)
        assert float(live[2].running_var.min()) > 0.1
        off = (loaded[2].running_mean - live[2].running_mean).abs() / (live[2].running_var + 1e-5).sqrt()
        assert float(off.max()) < 0.13
        spread = (loaded[2].running_var + 1e-5) / (live[2].running_var + 1e-5)
        assert 0.9 < float(spread.min()) <= float(spread.max()) < 1.1


def test_numbers_that_are_kept_as_such() -> None:
    means = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.14159265, -1e-30, 1e30, -65537.0], dtype=torch.float64)
    quarters = torch.tensor([0, 63, 1, 2, 3, 4, 5, 6], dtype=torch.float64)
    high, low = statistics._absolute(means, quarters)
    assert -32768 <= float(high.min()) <= float(high.max()) < statistics.OFTEN
    assert -32768 <= float(low.min()) <= float(low.max()) <= 32767
    found, spread = statistics._from_absolute(high, low)
    torch.testing.assert_close(found, means, rtol=2.0**-16, atol=0.0)
    torch.testing.assert_close(spread, EPSILON * torch.exp2(quarters / 4), rtol=1e-12, atol=0.0)


@pytest.mark.filterwarnings("error")
def test_a_file_without_them_says_so_when_it_is_loaded_pruned(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    batches = [torch.randn(16, 8)]
    pof.save(model, tmp_path / "without.pof")
    pof.save(model, tmp_path / "with.pof", calibrate=batches)
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    pof.save(plain, tmp_path / "plain.pof")
    pof.load(tmp_path / "without.pof", into=model)
    pof.load(tmp_path / "with.pof", into=model, sparsity=0.7)
    pof.load(tmp_path / "with.pof", into=model, sparsity=0.65, recover_from=0.2)
    pof.load(tmp_path / "plain.pof", into=plain, sparsity=0.7)
    with pytest.warns(UserWarning, match=r"without.pof' has no BatchNorm statistics for pruned at 0.7") as caught:
        pof.load(tmp_path / "without.pof", into=model, sparsity=0.7)
    assert len(caught) == 1
