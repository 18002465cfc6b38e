"""How fast a pruned network runs, compared with dense engines.

    python bench/runtime.py [--only resnet18-1 ...] [--rounds 15]           needs pip install 'pof[bench]'

The same network runs on one thread in torch (NCHW and NHWC), torch.compile, ONNX Runtime and OpenVINO, all with
BatchNorm folded, and in `pof.compile` at 70, 80 and 90 %. All take turns in one run, in random order; a ratio is the
median over rounds of the ratio within a round. Weights are random and pruned by magnitude. "Real" networks have trained
weights: our own CIFAR-10 ResNet-20, and a ResNet-18 filled with kernels of an ImageNet ResNet-50, whose masks are
uneven. Outputs are compared with torch's. Prints JSON.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.optimization import fuse

import imagenet_weights
import pof
from timing import interleaved, machine, median_milliseconds, ratio

WEIGHTS = Path(__file__).parent.parent / "lab" / "weights" / "cifar10-resnet20-dense.pof"


@dataclass(frozen=True)
class Case:
    """A network at a batch size."""

    model: str
    batch: int
    size: int
    sparsities: tuple[float, ...] = (0.7, 0.8, 0.9)
    real: bool = False
    peers: bool = True
    """Whether engines other than torch take part."""


CASES = {
    "resnet18-1": Case("resnet18", 1, 224),
    "resnet18-16": Case("resnet18", 16, 224),
    "resnet50-1": Case("resnet50", 1, 224),
    "mobilenet_v2-1": Case("mobilenet_v2", 1, 224, (0.5, 0.8)),
    "resnet20-128": Case("resnet20", 128, 32, (0.8, 0.9)),
    "resnet20-128-real": Case("resnet20", 128, 32, (0.8, 0.9), real=True, peers=False),
    "resnet18-1-real": Case("resnet18", 1, 224, real=True, peers=False),
}


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*CASES, "threads"], default=[*CASES, "threads"])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"bench": "runtime", "rounds": options.rounds, "machine": machine(), "cases": {}}
    with torch.no_grad():
        for name in options.only:
            if name == "threads":
                result["two threads against one"] = _threads(options.rounds)
            else:
                result["cases"][name] = _case(CASES[name], options.rounds)
    print(json.dumps(result, indent=2))


def _case(case: Case, rounds: int) -> dict[str, Any]:
    images = torch.randn(case.batch, 3, case.size, case.size, generator=torch.Generator().manual_seed(1))
    model = _model(case)
    calls: dict[str, Callable[[], object]] = {}
    folded = fuse(model)
    nhwc = fuse(model).to(memory_format=torch.channels_last)
    calls["torch NCHW"] = lambda: folded(images)
    calls["torch NHWC"] = lambda: nhwc(images.contiguous(memory_format=torch.channels_last))
    if case.peers:
        calls |= _peers(folded, images)
    elastic, errors, compile_seconds, summaries = pof.Elastic(model), {}, {}, {}
    for sparsity in case.sparsities:
        elastic.prune(sparsity)
        start = time.perf_counter()
        fast = pof.compile(model, images)
        name = f"pof {sparsity:.0%}"
        compile_seconds[name] = round(time.perf_counter() - start, 1)
        wanted = model(images)
        errors[name] = float((fast(images) - wanted).abs().max() / wanted.abs().max())
        summaries[name] = [vars(row) for row in fast.times()] if sparsity == 0.8 else None
        calls[name] = lambda fast=fast: fast(images)
    start = time.perf_counter()
    fast.update()
    update = time.perf_counter() - start
    seconds = interleaved(calls, rounds)
    best = min(("torch NCHW", "torch NHWC"), key=lambda name: median_milliseconds(seconds)[name])
    ours = [name for name in calls if name.startswith("pof")]
    return {
        **vars(case),
        "milliseconds": median_milliseconds(seconds),
        "times as fast as the better torch": {name: ratio(seconds, best, name) for name in calls},
        "times as fast as ONNX Runtime": {
            n: ratio(seconds, "ONNX Runtime", n) for n in ours if "ONNX Runtime" in calls
        },
        "largest difference to torch, relative": errors,
        "compile_seconds": compile_seconds,
        "update_seconds": round(update, 3),
        "layers": {name: rows for name, rows in summaries.items() if rows},
    }


def _threads(rounds: int) -> dict[str, dict[str, float]]:
    """How much faster two threads are than one: in pof, and in torch, which shows what the machine allows."""
    found = {}
    for name, batch in (("resnet18", 1), ("resnet18", 16), ("resnet50", 1)):
        model = _model(Case(name, batch, 224))
        pof.Elastic(model).prune(0.8)
        images = torch.randn(batch, 3, 224, 224)
        fast = {threads: pof.compile(model, images, threads=threads) for threads in (1, 2)}
        engines = {"pof": fast, "torch": dict.fromkeys((1, 2), model)}
        found[f"{name}-{batch}"] = {}
        # Measure one after the other: after a call, torch's second thread spins for a while on the core that pof needs.
        for engine, models in engines.items():
            seconds = interleaved(
                {str(n): partial(_with_threads, n, each, images) for n, each in models.items()}, rounds
            )
            best = round(min(seconds["1"]) / min(seconds["2"]), 4)
            found[f"{name}-{batch}"] |= {engine: ratio(seconds, "1", "2"), f"{engine}, best of all rounds": best}
    torch.set_num_threads(1)
    return found


def _with_threads(threads: int, fast: Callable[[Tensor], object], images: Tensor) -> object:
    torch.set_num_threads(threads)
    with torch.no_grad():
        return fast(images)


def _model(case: Case) -> nn.Module:
    torch.manual_seed(0)
    model = getattr(pof.models, case.model)().eval()
    if case.real and case.model == "resnet20":
        pof.load(WEIGHTS, into=model)
    elif case.real:
        real = imagenet_weights.resnet18_shaped()
        state = model.state_dict()
        model.load_state_dict(
            {name: real[name] if name in real and name.endswith("weight") else state[name] for name in state}
        )
    return model


def _peers(model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    """The same network in other engines; those that are not installed are left out."""
    found: dict[str, Callable[[], object]] = {}
    compiled = torch.compile(model)
    compiled(images)
    found["torch.compile"] = lambda: compiled(images)
    try:
        import onnxruntime
        import openvino
    except ImportError:
        return found
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        with contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(model, (images,), path, dynamo=True, external_data=False)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        vino = openvino.Core().compile_model(
            path, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        )
    feed = {session.get_inputs()[0].name: images.numpy()}
    found["ONNX Runtime"] = lambda: session.run(None, feed)
    request = vino.create_infer_request()
    found["OpenVINO"] = lambda: request.infer([images.numpy()])
    return found


if __name__ == "__main__":
    main()
