"""Import timm and torchvision from the folder that `make foreign` fills, beside any build of torch.

* They are in a folder of their own, `.venv/foreign`: other packages, such as transformers, change what they import
  when torchvision is installed.
* torchvision's compiled operators load beside one build of torch only, and it refuses to be imported without them. Its
  networks need none of them, so we declare `nms`, the one that detectors call. Where its own load, they are used.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

FOLDER = Path(sys.prefix) / "foreign"
_DECLARED: list[torch.library.Library] = []
"""A library's declarations end with it: this keeps ours."""


def missing() -> str:
    """Why networks of torchvision and timm cannot be built here; empty if they can."""
    try:
        need()
    except (ImportError, RuntimeError) as error:
        return f"timm and torchvision cannot be imported ({error}): make foreign"
    return ""


def need() -> None:
    """Import torchvision and timm; declare what torchvision lacks."""
    if find_spec("torchvision") is None and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declare()
        import torchvision

        # Only `nms` asks for this, and it is there now.
        torchvision.ops.boxes._assert_has_ops = lambda: None
    import timm  # noqa: F401


def _declare() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.impl("nms", _nms, "CPU")
    _DECLARED.append(library)


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """The boxes to keep, best first: none overlaps a better one that is kept by more than `threshold`."""
    order, kept = scores.argsort(descending=True), []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
    while len(order):
        best, others = order[0], order[1:]
        kept.append(best)
        corners = torch.maximum(boxes[best, :2], boxes[others, :2]), torch.minimum(boxes[best, 2:], boxes[others, 2:])
        shared = (corners[1] - corners[0]).clamp(min=0).prod(dim=1)
        order = others[shared <= threshold * (areas[best] + areas[others] - shared)]
    return torch.stack(kept) if kept else order
