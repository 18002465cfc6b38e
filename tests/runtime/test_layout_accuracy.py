"""torch's channels-last layout is used only where it computes the same."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.runtime import engine_choice
from pof.runtime.engine_choice import EngineChoice


class NormOfLargeNumbers(nn.Module):
    """In channels last, torch's GroupNorm subtracts the square of the mean from the mean of squares."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.GroupNorm(2, 8)
        self.mean = mean

    def forward(self, images: Tensor) -> dict[str, Any]:
        return {"normed": self.norm(self.conv(images) + self.mean), "mean": self.mean}


@pytest.mark.parametrize(("mean", "layouts"), [(0.0, {False, True}), (30.0, {False})])
def test_a_less_exact_layout_is_not_tried(mean: float, layouts: set[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: set[bool] = set()
    run = EngineChoice.run

    def watched(choice: EngineChoice, *arguments: Any) -> Any:
        tried.add(choice.channels_last)
        return run(choice, *arguments)

    monkeypatch.setattr(engine_choice.EngineChoice, "run", watched)
    torch.manual_seed(0)
    images, model = torch.randn(2, 3, 32, 32), NormOfLargeNumbers(mean).eval()
    fast = pof.compile(model, images)
    assert tried == layouts
    assert (fast(images)["normed"] - model.double()(images.double())["normed"]).abs().max() < 2e-5
