"""One file, every size: the shipped CIFAR-10 network at many sparsities, beside plain magnitude pruning."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, cast

import torch
from torch import Tensor, nn

from pof.core.library import core
from pof.data import shipped
from pof.file.pof_file import PofFile
from pof.models.cifar_resnet import resnet20
from pof.ranking.sparsity_state import Scope
from pof.report.network_facts import Facts, described, times_of
from pof.runtime.compiled_model import CompiledModel
from pof.runtime.fair_timing import ratio_to_plain

Progress = Callable[[str, int, int], None]
"""Called with a task, the number of its steps done so far, and their total."""
SPARSITIES = (0.0, 0.5, 0.7, 0.8, 0.9)
RECOVER_FROM = {0.5: 0.3, 0.7: 0.5, 0.8: 0.5, 0.9: 0.5}
"""Where the filled band begins, for each sparsity that has one."""
BATCH = 125
IMAGES_AT_ONCE = 16
"""Batch size when speed is measured."""


@dataclass(frozen=True)
class DemoRow:
    """The network at one sparsity; accuracies are from 0 to 1."""

    sparsity: float
    bytes: int
    """Bytes read from the file."""
    plain: float
    """Accuracy of a network that was trained without regard to pruning, pruned by magnitude."""
    pruned: float
    recovered: float | None
    """Accuracy with the band from `recover_from` filled; None if there is no band."""
    speedup: float | None
    """Speedup of `pof.compile` over torch, with 16 images and one thread; None without the compiled core."""
    recovered_bytes: int | None = None
    """Bytes read from the file for the recovered network."""
    recovered_speedup: float | None = None
    recover_from: float | None = None


@dataclass(frozen=True)
class DemoResult:
    """Everything that the demo measured."""

    rows: tuple[DemoRow, ...]
    test_images: int
    file_bytes: int
    dense_bytes: int
    """Bytes of the weights in float32."""
    pages: tuple[Facts, ...]
    """Facts for the report page: those of the network, then those of the plain one."""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON, with the versions and the machine that made them."""
        found = {**asdict(self), "versions": {"pof": version("pof"), "torch": str(torch.__version__)}}
        found["machine"] = {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        del found["pages"]
        return found


def run_demo(progress: Progress = lambda *_: None, sparsities: tuple[float, ...] = SPARSITIES) -> DemoResult:
    """Measure accuracy, bytes and speed at each sparsity, with the statistics that the files keep."""
    files = {name: PofFile(shipped.network(f"cifar10-resnet20-{name}")) for name in ("nested", "dense")}
    test, model = shipped.cifar10_sample(), resnet20().eval()
    rows: list[DemoRow] = []
    images = test[0][:IMAGES_AT_ONCE]
    band_speedups: dict[float, float | None] = {}
    for number, sparsity in enumerate(sparsities):
        progress("accuracy, bytes, speed", number, len(sparsities))
        band = RECOVER_FROM.get(sparsity)
        plain = _accuracy(_loaded(model, files["dense"], sparsity), test)
        recovered: float | None = None
        filled: tuple[int | None, float | None] = (None, None)
        if band is not None:
            recovered = _accuracy(_loaded(model, files["nested"], sparsity, band), test)
            # Bands that begin at the same ratio have the same zeros, so one of them is timed for all.
            if band not in band_speedups:
                band_speedups[band] = _speedup(model, images)
            filled = files["nested"].bytes_for(sparsity, band), band_speedups[band]
        pruned = _accuracy(_loaded(model, files["nested"], sparsity), test)
        reads, speedup = files["nested"].bytes_for(sparsity), _speedup(model, images)
        rows.append(DemoRow(sparsity, reads, plain, pruned, recovered, speedup, *filled, band))
    progress("accuracy, bytes, speed", len(sparsities), len(sparsities))
    pages = [_page(name, model, file, rows, test[0][:1]) for name, file in files.items()]
    dense_bytes = sum(4 * value.numel() for value in model.state_dict().values())
    return DemoResult(tuple(rows), len(test[1]), files["nested"].size, dense_bytes, tuple(pages))


def _loaded(model: nn.Module, file: PofFile, sparsity: float, band: float | None = None) -> nn.Module:
    model.load_state_dict(file.state_dict(sparsity, band))
    return model


@torch.no_grad()
def _accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    images, labels = test
    found = torch.cat([model(batch).argmax(1) for batch in images.split(BATCH)])
    return float((found == labels).float().mean())


def _speedup(model: nn.Module, images: Tensor) -> float | None:
    """Return the speedup over torch, both taking turns on one thread."""
    if core() is None:
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return ratio_to_plain(CompiledModel(model, images, threads=1), model, images)
    finally:
        torch.set_num_threads(threads)


def _page(name: str, model: nn.Module, file: PofFile, rows: list[DemoRow], image: Tensor) -> Facts:
    """Return the facts of one of the two networks; its accuracies are those with the statistics in its file."""
    _loaded(model, file, 0.0)
    scope = cast(Scope, file.head.scope)
    states = [(row.sparsity, row.sparsity, row.pruned if name == "nested" else row.plain) for row in rows]
    if name == "nested":
        bands = ((row.sparsity, row.recover_from, row.recovered) for row in rows)
        states += [(high, low, found) for high, low, found in bands if low is not None and found is not None]
    return {
        "name": "plain" if name == "dense" else name,
        "rows": [
            {"sparsity": s, "recover_from": r, "zeros": r, "accuracy": None, "calibrated": a} for s, r, a in states
        ],
        **described(model, "raw", shipped.network(f"cifar10-resnet20-{name}"), scope),
        "times": None if core() is None else times_of(model, image, "raw", scope=scope),
    }
