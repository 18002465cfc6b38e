"""Traps of torch and its users that were walked into once."""

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.elastic.batch_statistics import norm_layers


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


X, Y = torch.randn(8, 3, 8, 8), torch.arange(8)


def test_autocast_sees_the_present_weights() -> None:
    """Its cache of half-precision copies is not told of writes in place."""
    model = net().eval()
    elastic = pof.Elastic(model)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = []
        for sparsity in (0.0, 0.5, 0.95, 0.0):
            elastic.prune(sparsity)
            outputs.append(model(X).float())
        with pof.pruned(model, 0.95):
            inside = model(X).float()
        after = model(X).float()
    assert not torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])
    assert torch.equal(outputs[0], outputs[3])
    assert torch.equal(inside, outputs[2])
    assert torch.equal(after, outputs[0])


class CallsSuper(torch.optim.SGD):
    def step(self, closure: object = None) -> object:  # type: ignore[override]
        return super().step(closure)  # type: ignore[arg-type]


@pytest.mark.parametrize("with_closure", [False, True])
def test_an_optimizer_that_calls_its_base_class_is_stepped_once(with_closure: bool) -> None:
    """torch hooks the `step` of both classes once a plain instance has existed."""
    results = []
    for kind in (torch.optim.SGD, CallsSuper):
        torch.manual_seed(0)
        model = net()
        torch.optim.SGD(model.parameters(), 0.1)
        optimizer = kind(model.parameters(), lr=0.1)
        attached = pof.attach(model, optimizer, tr=0.7, weight=1.0)

        def closure(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        for _ in range(2):
            if with_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
        assert attached.step == 2
        results.append(model[3].weight.detach().clone())
    assert torch.equal(*results)


def test_attaching_twice_is_refused_until_removed() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attached = pof.attach(model, optimizer, tr=0.7)
    with pytest.raises(pof.PofError, match="attached to this optimizer already"):
        pof.attach(model, optimizer, tr=0.7)
    attached.remove()
    first = pof.attach(model, optimizer, tr=0.7, include="3")
    pof.attach(model, optimizer, tr=0.9, include="7")
    assert "tr 0.7" in repr(first)


def test_an_optimizer_that_climbs_is_refused() -> None:
    model = net()
    with pytest.raises(pof.PofError, match="maximize=True"):
        pof.attach(model, torch.optim.SGD(model.parameters(), 0.1, maximize=True), tr=0.7)


@pytest.mark.parametrize("refresh", [1, 3])
def test_a_look_at_the_penalty_under_inference_mode_does_no_harm(refresh: int) -> None:
    model = net()
    penalty = pof.Penalty(model, tr=0.7, refresh=refresh)
    with torch.inference_mode():
        seen = penalty(0).item()
    again = penalty(1)
    again.backward()
    assert again.item() == pytest.approx(seen)
    penalty.add_gradient(2)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_code_may_call_us() -> None:
    """Ranking runs in numpy, so the graph breaks there; it must not crash."""
    model = net()
    penalty = pof.Penalty(model, tr=0.7)
    expected = (F.cross_entropy(model(X), Y) + penalty(0)).item()

    def loss() -> Tensor:
        return F.cross_entropy(model(X), Y) + penalty(0)

    assert torch.compile(loss, backend="eager")().item() == pytest.approx(expected, rel=1e-5)
    elastic = pof.Elastic(model.eval())
    with elastic.at(0.9):
        pruned = model(X)

    def at_90() -> Tensor:
        with elastic.at(0.9):
            return model(X)

    torch.testing.assert_close(torch.compile(at_90, backend="eager")(), pruned)


def test_a_spherical_transformer_layer_computes_the_same_in_evaluation() -> None:
    """The fast path of torch's layer reads the weights and skips our forward."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    pof.normalize_inputs(layer, include=("linear1", "linear2"))
    z = torch.randn(2, 5, 16)
    trained = layer.train()(z).detach()
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(z), trained)


class Merging(nn.Linear):
    """A layer that does something of its own when the mode changes, as LoRA layers do."""

    merged = False

    def train(self, mode: bool = True) -> "Merging":
        self.merged = not mode
        return super().train(mode)


def test_calibrate_does_not_run_what_layers_do_when_the_mode_changes() -> None:
    model = nn.Sequential(Merging(4, 8), nn.BatchNorm1d(8)).train()
    pof.Elastic(model).calibrate([torch.randn(16, 4)])
    assert model[0].training
    assert not model[0].merged


def test_calibrate_a_batchnorm_that_does_not_count_batches() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    model[1].num_batches_tracked = None
    batches = [torch.randn(16, 4) for _ in range(3)]
    pof.Elastic(model).calibrate(batches, paired=False)
    expected = torch.stack([model[0](batch).mean(0) for batch in batches]).mean(0)
    torch.testing.assert_close(norm_layers(model)[0].running_mean, expected.detach())


@pytest.mark.parametrize("batches", [torch.randn(2, 3, 8, 8), {"x": X}, None, 3])
def test_batches_that_are_one_batch(batches: object) -> None:
    with pytest.raises(pof.PofError, match=r"batches is a .*such as \[batch\]"):
        pof.Elastic(net()).calibrate(batches)  # type: ignore[arg-type]


def test_statistics_belong_to_what_is_zero_not_to_how_it_was_written() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    elastic = pof.Elastic(model)
    elastic.prune(0.1 + 0.2)
    elastic.calibrate([torch.randn(16, 4)])
    mean = model[1].running_mean.clone()
    elastic.restore()
    elastic.prune(0.3)
    assert torch.equal(model[1].running_mean, mean)


def test_writing_the_same_values_is_no_change_before_the_first_copy() -> None:
    def pruned_pass(model: nn.Module) -> None:
        with pof.pruned(model, 0.5):
            F.cross_entropy(model(X), Y).backward()

    def second_elastic(model: nn.Module) -> None:
        with pof.Elastic(model, magnitudes="unit").at(0.5):
            model(X)

    for write in (
        pruned_pass,
        second_elastic,
        lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
        lambda model: model.to(memory_format=torch.channels_last),
    ):
        model = net().eval()
        elastic = pof.Elastic(model)
        write(model)
        elastic.prune(0.5)
        assert elastic.sparsity == pytest.approx(0.5, abs=0.01)


def test_the_way_back_is_offered_only_where_there_is_one() -> None:
    model = net()
    elastic = pof.Elastic(model)
    for has_copy in (False, True):
        with torch.no_grad():
            model[3].weight.mul_(2)
        with pytest.raises(pof.WeightsChangedError) as caught:
            elastic.prune(0.5)
        assert ("discard=True" in str(caught.value)) is has_copy
        elastic.refresh()
        elastic.prune(0.5)


def test_a_dropped_elastic_is_freed_at_once() -> None:
    model = nn.Linear(300, 300)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    copies = weakref.ref(elastic._live.weights[0])
    gc.disable()
    try:
        del elastic
        assert copies() is None
    finally:
        gc.enable()


def test_embeddings_tied_by_a_view_are_left_out() -> None:
    class Tied(nn.Module):
        def __init__(self, embedding: nn.Module) -> None:
            super().__init__()
            self.embed = embedding
            self.body = nn.Linear(6, 6)
            self.head = nn.Linear(10, 6, bias=False)
            self.head.weight = nn.Parameter(embedding.weight.detach().t())

    for embedding in (nn.Embedding(10, 6), nn.EmbeddingBag(10, 6)):
        with pytest.warns(UserWarning, match=r"head\.weight is not pruned: it is tied to an embedding"):
            plan = pof.plan(Tied(embedding))
        assert [entry.name for entry in plan] == ["body.weight"]


@pytest.mark.filterwarnings("ignore:.*torch:UserWarning", "ignore::DeprecationWarning", "ignore:.*quantiz")
def test_quantised_layers_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(pof.PlanError, match="it is quantised: prune before quantising"):
        pof.plan(quantised)
    mixed = nn.Sequential(model[0], quantised[2])
    with pytest.warns(UserWarning, match=r"1\.weight is not pruned: it is quantised"):
        assert len(pof.plan(mixed)) == 1


def test_an_override_below_the_band_is_its_own_band() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    elastic = pof.Elastic(model, sparsities={"1": 0.5})
    elastic.recover(0.6, 0.8)
    assert [(row.zeros, row.band) for row in elastic.layers()] == [(60, 20), (50, 0)]


def test_a_resumed_training_keeps_the_norms_that_it_began_with() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    first = pof.attach(model, optimizer, tr=0.7)
    saved = first.state_dict()
    norms = model[3].weight.flatten(1).norm(dim=1).detach()
    first.remove()
    with torch.no_grad():
        model[3].weight.mul_(3)
    pof.attach(model, optimizer, tr=0.7).load_state_dict(saved)
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    torch.testing.assert_close(model[3].weight.flatten(1).norm(dim=1).detach(), norms)


def test_an_average_of_a_held_model_keeps_its_zeros() -> None:
    """An EMA that is made after pruning averages zeros with zeros."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    elastic.hold(optimizer)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        average.update_parameters(model)
    assert pof.Elastic(average.module).sparsity == elastic.sparsity


def test_a_repr_says_where_we_are() -> None:
    elastic = pof.Elastic(net())
    elastic.recover(0.3, 0.7)
    assert repr(elastic) == "Elastic(Sequential, recovered 0.3-0.7, scope=layer, magnitudes=raw)"
