"""How much of a training is kept."""

import pytest
import torch
from torch import nn

from pof.fitting.fit_report import tensors_of
from pof.fitting.kept_share import keep_best_share


@pytest.mark.parametrize(("target", "wanted"), [(4.0, 1.0), (2.1, 0.5), (1.0, 0.25), (0.1, 0.0), (-3.0, 0.0)])
def test_the_share_with_the_least_score_is_kept(target: float, wanted: float) -> None:
    """The weight goes from 0 to 4 in training; the best place is `target`."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    weight, norm = model[0].weight, model[1]
    with torch.no_grad():
        weight.zero_()
    came = {name: tensor.clone() for name, tensor in tensors_of(model).items()}
    with torch.no_grad():
        weight.fill_(4.0)
        norm.running_mean.fill_(8.0)
        norm.num_batches_tracked.fill_(3)

    def score() -> float:
        norm.running_var.fill_(float(weight.detach()) + 1.0)
        return abs(float(weight.detach()) - target)

    assert keep_best_share(model, came, score, abs(target)) == wanted
    assert float(weight.detach()) == 4 * wanted
    assert float(norm.running_mean) == 8 * wanted
    assert float(norm.running_var) == 4 * wanted + 1, "what a score changes is kept with its share"
    assert int(norm.num_batches_tracked) == (3 if wanted else 0)
