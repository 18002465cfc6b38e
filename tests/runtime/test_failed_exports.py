"""Models that cannot be exported: one line with a remedy that works, and nothing of torch's is left switched off."""

import logging
import sys
import threading
import warnings

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.core.library import core
from pof.runtime.quiet_torch import quietly

pytestmark = pytest.mark.skipif(core() is None, reason="the core was not built")


class Detector(nn.Module):
    """Like those of torchvision: features, then as many boxes as there are high scores."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
        )
        self.score = nn.Conv2d(8, 1, 1)
        self.box = nn.Linear(8, 4)

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        features = self.backbone(torch.stack(images))
        found = []
        for scores, each in zip(self.score(features), features, strict=True):
            order = scores.flatten().argsort(descending=True)
            keep = order[scores.flatten()[order] > 0]
            keep = keep[: min(5, len(keep))] if len(keep) > 2 else keep.new_zeros(1)
            found.append({"boxes": self.box(each.flatten(1).t()[keep]), "labels": keep})
        return found


@pytest.fixture
def detector() -> Detector:
    model = Detector().eval()
    pof.Elastic(model).prune(0.8)
    return model


def test_detectors_get_one_line_whose_remedy_works(detector: Detector, capfd: pytest.CaptureFixture[str]) -> None:
    images = [torch.randn(3, 16, 16), torch.randn(3, 16, 16)]
    with pytest.raises(pof.PofError) as caught:
        pof.compile(detector, (images,))
    message = str(caught.value)
    assert "model.backbone.forward = pof.compile(model.backbone, images)" in message
    assert len(message) <= 200
    assert "\n" not in message
    assert caught.value.__cause__ is not None, "torch's own text"
    output = capfd.readouterr()
    assert output.err == output.out == "", "no page of graph"

    with torch.no_grad():
        wanted = detector(images)
        model = detector
        model.backbone.forward = pof.compile(model.backbone, torch.stack(images))  # type: ignore[method-assign]
        found = detector(images)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours["labels"], theirs["labels"])
        torch.testing.assert_close(ours["boxes"], theirs["boxes"], rtol=1e-4, atol=1e-5)


def test_a_compiled_part_is_updated_where_it_stands(detector: Detector) -> None:
    images = torch.randn(2, 3, 16, 16)
    fast = pof.compile(detector.backbone, images)
    detector.backbone.forward = fast  # type: ignore[method-assign]
    with torch.no_grad():
        detector.backbone[0].weight.mul_(2)
        fast.update()
        wanted = nn.Sequential(*detector.backbone)(images)
    torch.testing.assert_close(detector.backbone(images), wanted, rtol=1e-4, atol=1e-4)


def test_long_reasons_are_cut_and_kept_as_the_cause() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("reason " * 100)

    with pytest.raises(pof.PofError, match="cannot be exported") as caught:
        pof.compile(Fails().eval(), torch.randn(2))
    assert len(str(caught.value)) <= 200
    assert "reason" in str(caught.value.__cause__)


def test_warnings_logs_and_stderr_are_on_again_afterwards() -> None:
    """Two threads overlap: the one that came first leaves first."""
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with quietly():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    filters, stderr = list(warnings.filters), sys.stderr
    thread.start()
    inside.wait(10)
    with quietly():
        leave.set()
        thread.join()
        with warnings.catch_warnings(record=True) as during:
            warnings.warn("unheard", UserWarning, stacklevel=1)
        assert during == []
    assert list(warnings.filters) == filters
    assert sys.stderr is stderr
    assert logging.root.manager.disable == logging.NOTSET


def test_logs_of_this_thread_only_are_silenced(caplog: pytest.LogCaptureFixture) -> None:
    with quietly():
        logging.getLogger("mine").warning("of the user")
        thread = threading.Thread(target=lambda: logging.getLogger("torchs").warning("of another thread"))
        thread.start()
        thread.join()
        logging.getLogger("torch_like").warning("of this thread")
    logging.getLogger("torch_like").warning("afterwards")
    assert [record.message for record in caplog.records] == ["of the user", "of another thread", "afterwards"]
