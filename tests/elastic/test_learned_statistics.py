"""Statistics that learn from the dense network: they are that state's only, and the weights stay as they are."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.elastic import learned_statistics
from pof.elastic.block_outputs import BlockOutputs
from pof.elastic.learned_statistics import _Affine, _Learner
from pof.elastic.output_distance import output_distance
from tests.convnets import convnet, inputs
from tests.small_models import bits


class Steps:
    """A clock by which each look takes a hundredth of a minute, so that learning has the same steps everywhere."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 0.6
        return self._now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_statistics, "time", Steps())


def pruned(sparsity: float = 0.9) -> tuple[nn.Sequential, pof.Elastic, list[Tensor]]:
    model, data = convnet(), list(inputs(320).split(64))
    elastic = pof.Elastic(model, scope="global")
    elastic.prune(sparsity)
    elastic.calibrate(data)
    return model, elastic, data


@torch.no_grad()
def distance(model: nn.Module, dense: nn.Module) -> float:
    new = inputs(256, seed=5)
    return float(output_distance(model(new), dense(new)))


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.named_buffers()}


@pytest.mark.usefixtures("clock")
def test_outputs_for_new_inputs_come_nearer_and_nothing_else_changes() -> None:
    dense = convnet()
    model, elastic, data = pruned()
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    estimated, before = distance(model, dense), statistics_of(model)
    elastic.calibrate(data, minutes=1)
    assert distance(model, dense) < 0.8 * estimated
    assert all(torch.equal(value, weights[name]) for name, value in model.named_parameters())
    assert all(value.requires_grad and value.grad is None for value in model.parameters())
    learnt = statistics_of(model)
    assert not torch.equal(learnt["4.running_mean"], before["4.running_mean"])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())

    elastic.prune(0.8)
    assert torch.equal(model[4].running_mean, dense[4].running_mean), "another state has its own"
    elastic.prune(0.9)
    assert all(torch.equal(value, learnt[name]) for name, value in model.named_buffers())
    elastic.restore()
    assert bits(model) == bits(dense)


@pytest.mark.usefixtures("clock")
def test_the_dense_state_learns_nothing() -> None:
    model, data = convnet(), [inputs(64)]
    before = bits(model)
    pof.Elastic(model).calibrate(data, minutes=1)
    assert bits(model) == before


@pytest.mark.usefixtures("clock")
def test_what_does_not_help_new_inputs_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, elastic, data = pruned()
    before = statistics_of(model)
    monkeypatch.setattr(learned_statistics, "RATE", 30.0)
    elastic.calibrate(data, minutes=1)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def odd_norms() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6)
    )
    with torch.no_grad():
        model[4].weight.copy_(torch.tensor([1.0, -2.0, 0.0, 0.5, -0.1, 3.0]))
        model(inputs(64))
    return model.eval().requires_grad_(False)


@torch.no_grad()
def test_statistics_compute_what_was_learnt() -> None:
    model = odd_norms()
    before = copy.deepcopy(model)
    learner = _Learner(model, before, BlockOutputs(model, before, ["3.weight"]), half=False)
    for part in learner._parts:
        part.log_factor.normal_(std=0.3)
        part.shift.normal_()
    x = inputs(32)
    with learner._learning():
        wanted = model(x)
    assert torch.equal(model(x), before(x)), "outside of the block, the layers have their own parameters"
    learner.write()
    torch.testing.assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(wanted, before(x), atol=0.1)


@torch.no_grad()
def test_a_variance_stays_above_zero() -> None:
    norm = nn.BatchNorm1d(2).eval()
    norm.running_var.fill_(0.0)
    part = _Affine(norm)
    part.log_factor.fill_(5.0)
    part.write()
    assert torch.equal(norm.running_var, torch.zeros(2))


@pytest.mark.usefixtures("clock")
def test_networks_without_batch_norm_and_of_other_outputs() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = convnet()

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            return {"logits": self.body(images)}

    plain = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    elastic = pof.Elastic(plain)
    elastic.prune(0.5)
    with pytest.warns(UserWarning, match="no BatchNorm whose statistics could learn"):
        assert elastic.calibrate([torch.randn(16, 8)], minutes=1) == 1
    model = Named().eval()
    elastic = pof.Elastic(model, scope="global")
    elastic.prune(0.9)
    elastic.calibrate({"images": each} for each in inputs(256).split(64))
    before = statistics_of(model)

    def once() -> Iterator[dict[str, Tensor]]:
        yield from ({"images": each} for each in inputs(256).split(64))

    elastic.calibrate(once(), minutes=1)
    assert any(not torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.usefixtures("clock")
def test_files_keep_what_their_stages_have_learnt(tmp_path: Path) -> None:
    model, data = convnet(), list(inputs(320).split(64))
    found = {}
    for name, minutes in (("estimated", 0.0), ("learnt", 1.0)):
        path = tmp_path / f"{name}.pof"
        pof.save(model, path, scope="global", stages=(0.9,), calibrate=data, minutes=minutes)
        for sparsity in (0.9, 0.7):
            pof.load(path, into=(loaded := convnet(seed=1)), sparsity=sparsity)
            found[name, sparsity] = statistics_of(loaded)["4.running_mean"], distance(loaded, model)
    assert found["learnt", 0.9][1] < found["estimated", 0.9][1]
    assert torch.equal(found["learnt", 0.7][0], found["estimated", 0.7][0]), "only the stages learn"


def test_bad_input(tmp_path: Path) -> None:
    model, elastic, data = pruned()
    with pytest.raises(pof.PofError, match=r"minutes=-1 must be a number, 0 or more: 0 only estimates"):
        elastic.calibrate(data, minutes=-1)
    with pytest.raises(pof.PofError, match=r"minutes need data to learn statistics from: pass calibrate=batches too"):
        pof.save(convnet(), tmp_path / "model.pof", minutes=1)
    model.train()
    with pytest.raises(pof.PofError, match=r"training mode: call model.eval\(\) first"):
        elastic.calibrate(data, minutes=1)
