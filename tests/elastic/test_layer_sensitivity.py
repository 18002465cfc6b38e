"""`Elastic.sensitivity`: what each layer costs alone, and sparsities that share zeros better than evenly."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import pof
from pof.data import DATASETS
from pof.elastic.layer_sensitivity import LayerScores, Sensitivity
from pof.models import digits_convnet


def test_a_hand_computed_allocation() -> None:
    # "a" loses 0.1 for its first 50 zeros and 0.4 for the next 40; "b", twice as large, loses 0.02 and 1.0.
    found = Sensitivity(
        1.0, (0.5, 0.9), (LayerScores("a", (0.9, 0.5)), LayerScores("b", (0.98, -0.02))), {"a": 100, "b": 200}
    )
    # By cost a zero: b up to 0.5 (0.0002), a up to 0.5 (0.002), a up to 0.9 (0.01), b up to 0.9 (0.0125).
    assert found.allocate(0.0) == {"a": 0.0, "b": 0.0}
    assert found.allocate(100 / 300) == pytest.approx({"a": 0.0, "b": 0.5})
    assert found.allocate(0.5) == pytest.approx({"a": 0.5, "b": 0.5})
    assert found.allocate(180 / 300) == pytest.approx({"a": 0.8, "b": 0.5})
    assert found.allocate(0.9) == pytest.approx({"a": 0.9, "b": 0.9})
    with pytest.raises(pof.PofError, match=r"must be in \[0, 0\.9\]"):
        found.allocate(0.95)


def test_a_dent_in_a_curve_is_passed_over() -> None:
    # Half of it pruned scores worse than all of it: the line from none to 0.9 is below.
    found = Sensitivity(
        1.0, (0.5, 0.9), (LayerScores("a", (0.2, 0.9)), LayerScores("b", (0.95, 0.5))), {"a": 100, "b": 100}
    )
    assert found.allocate(0.45) == pytest.approx({"a": 0.4, "b": 0.5})


def test_rows_are_of_one_layer_at_a_time() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 20))
    elastic = pof.Elastic(model)
    elastic.prune(0.3)
    before = [p.clone() for p in model.parameters()]
    found = elastic.sensitivity(lambda m: -float(sum((p == 0).sum() for p in m.parameters())), (0.5, 0.9))
    assert found.dense == 0
    assert found.rows == (LayerScores("0.weight", (-50.0, -90.0)), LayerScores("1.weight", (-100.0, -180.0)))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert elastic.state == pof.State(0.3, 0.3)
    assert "0.weight" in str(found)


def test_names_with_brackets() -> None:
    model = nn.ModuleDict({"a[0]": nn.Linear(4, 4), "a0": nn.Linear(4, 4)})
    found = pof.Elastic(model).sensitivity(lambda m: -float((m["a0"].weight == 0).sum()), (0.5,))  # type: ignore[index]
    assert {row.name: row.scores for row in found.rows} == {"a[0].weight": (0.0,), "a0.weight": (-8.0,)}


def test_sparsities_are_sorted_and_checked() -> None:
    elastic = pof.Elastic(nn.Linear(10, 10))
    assert elastic.sensitivity(lambda _: 1.0, iter((0.9, 0.5, 0.5))).sparsities == (0.5, 0.9)  # type: ignore[arg-type]
    for wrong in ((), (0.0,), (50,), ("a",)):
        with pytest.raises(pof.PofError):
            elastic.sensitivity(lambda _: 1.0, wrong)  # type: ignore[arg-type]


def test_what_is_allocated_is_taken_by_an_elastic() -> None:
    model = nn.ModuleDict({"a[0]": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    found = pof.Elastic(model).sensitivity(lambda m: -float((m["b"].weight == 0).sum()), (0.5,))  # type: ignore[index]
    elastic = pof.Elastic(model, sparsities=found.allocate(0.25))
    elastic.prune(0.25)
    assert {row.name: row.zeros for row in elastic.layers()} == {"a[0].weight": 8, "b.weight": 0}
    with pytest.raises(pof.PofError, match=r"pass 0\.8 for 80 %"):
        found.allocate(80)


def test_it_beats_the_same_sparsity_everywhere_on_a_trained_model() -> None:
    data = DATASETS["digits"]()
    torch.manual_seed(0)
    model = digits_convnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(6):
        for images, labels in data.train_batches(64, seed=0, epoch=epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    seen = list(data.train_batches(128, seed=1, epoch=0))

    @torch.no_grad()
    def loss(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        return float(sum(F.cross_entropy(model(images), labels, reduction="sum") for images, labels in batches))

    total = 0.85
    shared = pof.Elastic(model).sensitivity(lambda _: -loss(seen)).allocate(total)
    unseen = list(data.test_batches(500))
    losses = {}
    for name, elastic in (
        ("even", pof.Elastic(model)),
        ("shared", pof.Elastic(model, sparsities=shared)),
    ):
        with elastic.at(total):
            assert elastic.sparsity == pytest.approx(total, abs=1e-3)
            losses[name] = loss(unseen)
    assert losses["shared"] < 0.9 * losses["even"]
