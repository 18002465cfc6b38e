"""What `pof` does with a network, each as an operation that raises if something is not as it should be."""

import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pof
from foreign_networks import Network, built, call, tensors_of
from network_outputs import float64_outputs, largest_difference, outputs_alike, spread
from timing import interleaved, median_milliseconds, ratio

SPARSITY = 0.9
LARGE = 1e-3
"""A parameter with a larger share of the weights must be in the plan or among what it leaves out."""
CONSTANT = 1e-6
"""Outputs whose spread over inputs is below this share of the dense network's are the same for every input in float32.

It is judged after `calibrate` where there is BatchNorm: with the statistics of the dense weights the signal of a deep
network at 90 % fades from layer to layer, down to 1e-10. That spread is in the record too.
"""
NEAR = 1e-2
"""How far outputs in float32 may be off float64 after calibration, as a share of the largest output."""
LONGEST_MESSAGE = 200
SECONDS = 3.0
"""How long the speed is measured at least, unless `MOST_ROUNDS` are done before."""
FEWEST_ROUNDS, MOST_ROUNDS = 15, 300


class Subject:
    """One network, and what was found out about it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.model = built(network)
        torch.manual_seed(1)
        self.inputs = network.inputs(1)
        self.batch = network.inputs(4)
        self.dense = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.dense_spread = self.spread()
        self._fast: Any = None
        self.found: dict[str, Any] = {
            "library": network.library,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "operations": {},
        }

    def spread(self) -> float:
        """How much the outputs differ over inputs; in float64, where small signals do not drown in rounding."""
        return 1.0 if self.network.refused else spread(self.model, self.batch)

    @torch.no_grad()
    def write_dense(self) -> None:
        """Give the model its dense weights; `load_state_dict` would want the versions that some models save."""
        for name, value in self.model.state_dict().items():
            value.copy_(self.dense[name])

    def pruned(self, sparsity: float = SPARSITY, scope: str = "layer") -> pof.Elastic:
        """The network with its dense weights, and then pruned."""
        self.write_dense()
        self.model.eval()
        elastic = pof.Elastic(self.model, scope=scope)
        elastic.prune(sparsity)
        return elastic

    def compiled(self) -> Any:
        """The network compiled at `SPARSITY`, which it is at now; it is compiled once."""
        self.pruned()
        if self._fast is None:
            start = time.perf_counter()
            self._fast = pof.compile(self.model, self.inputs)
            self.found["compile_seconds"] = round(time.perf_counter() - start, 1)
        return self._fast

    def outputs(self, model: Callable[..., Any] | None = None) -> dict[str, Tensor]:
        """The outputs on one input by name."""
        with torch.no_grad():
            return tensors_of(call(model or self.model, self.inputs))


# The operations: each raises, or returns what to record


def plan(subject: Subject) -> dict[str, Any]:
    """Every large parameter of two or more dimensions is in the plan, or left out with a reason."""
    chosen, total = pof.plan(subject.model), subject.found["parameters"]
    known = [*(entry.name for entry in chosen), *(name for name, _ in chosen.left_out)]
    large = {n: p for n, p in subject.model.named_parameters() if p.dim() > 1 and p.numel() > LARGE * total}
    named = {id(parameter) for name in known for parameter in _parameters(subject.model, name)}
    shares = {name: round(p.numel() / total, 4) for name, p in large.items() if id(p) not in named}
    assert not shares, f"neither in the plan nor left out: {shares}"
    return {"share": round(chosen.weights / total, 4), "tensors": len(chosen), "left_out": len(chosen.left_out)}


def prune(subject: Subject, scope: str = "layer") -> dict[str, Any]:
    """No layer without weights, the right number of zeros, and outputs that depend on the input."""
    elastic = subject.pruned(scope=scope)
    rows = elastic.layers()
    empty = [row.name for row in rows if row.zeros == row.weights]
    assert not empty, f"layers without weights: {empty[:3]}"
    found = {"sparsity": round(elastic.sparsity, 5), "dead_rows": sum(row.dead_rows for row in rows)}
    kept = subject.spread() / subject.dense_spread
    found["spread"] = float(f"{kept:.3g}")
    if _has_batch_norm(subject) and not subject.network.refused:
        elastic.calibrate([subject.batch] * 2)
        kept = subject.spread() / subject.dense_spread
        found["spread_calibrated"] = float(f"{kept:.3g}")
    assert kept > CONSTANT, f"the outputs are constant: their spread is {kept:.1e} of the dense network's"
    return found


def prune_globally(subject: Subject) -> dict[str, Any]:
    """The same with all weights ranked together."""
    return prune(subject, "global")


def recover(subject: Subject) -> None:
    """Outputs stay finite after recovery."""
    elastic = subject.pruned()
    elastic.recover(0.5, SPARSITY)
    assert any(row.band for row in elastic.layers()), "no band was filled"
    assert all(value.isfinite().all() for value in subject.outputs().values()), "outputs are not finite"


def restore(subject: Subject) -> None:
    """The dense weights come back bit for bit."""
    elastic = subject.pruned()
    elastic.recover(0.5, SPARSITY)
    elastic.restore()
    _assert_same_bits(subject.model.state_dict(), subject.dense)


def training_step(subject: Subject) -> None:
    """One step of fine-tuning: zeros stay, other weights move."""
    elastic = subject.pruned()
    planned = elastic.plan.parameters(subject.model)
    before = {name: weight.detach().clone() for name, weight in planned.items()}
    optimizer = torch.optim.SGD(subject.model.parameters(), lr=1e-3, momentum=0.9)
    held = elastic.hold(optimizer)
    subject.model.train()
    inputs = (subject.network.training_inputs or subject.network.inputs)(4)
    losses = [value.square().mean() for value in tensors_of(call(subject.model, inputs)).values()]
    # Divided by themselves: the gradients of a deep pruned network are otherwise too faint to move a weight.
    sum(loss / loss.detach().clamp(min=1e-30) for loss in losses if loss.requires_grad).backward()
    optimizer.step()
    held.remove()
    subject.model.eval()
    assert any(not torch.equal(weight, before[name]) for name, weight in planned.items()), "no weight moved"
    revived = [name for name, weight in planned.items() if weight[before[name] == 0].any()]
    assert not revived, f"zeros did not stay: {revived[:3]}"


def calibrate(subject: Subject) -> dict[str, Any] | None:
    """Outputs are near those of float64 after the statistics of BatchNorm were estimated anew."""
    if not _has_batch_norm(subject):
        return None
    elastic = subject.pruned()
    elastic.calibrate([subject.batch] * 2)
    found = subject.outputs()
    assert all(value.isfinite().all() for value in found.values()), "outputs are not finite"
    if subject.network.refused:  # which boxes are found is no smooth function of the weights
        return None
    wanted = float64_outputs(subject.model, subject.inputs)
    off = largest_difference(found, wanted)
    assert off < NEAR, f"float32 is {off:.1e} off float64"
    return {"off_float64": float(f"{off:.2g}")}


def save_and_load(subject: Subject) -> dict[str, Any]:
    """A file gives the same bits as the live model, pruned and dense."""
    subject.write_dense()
    fresh = copy.deepcopy(subject.model)
    with tempfile.TemporaryDirectory() as folder:
        size = pof.save(subject.model, Path(folder) / "model.pof")
        elastic = pof.Elastic(subject.model)
        for sparsity in (SPARSITY, 0.0):
            elastic.prune(sparsity)
            with torch.no_grad():
                for weight in fresh.parameters():
                    weight.zero_()
            pof.load(Path(folder) / "model.pof", into=fresh, sparsity=sparsity)
            _assert_same_bits(fresh.state_dict(), subject.model.state_dict())
    return {"bytes_per_parameter": round(size / subject.found["parameters"], 3)}


def compile(subject: Subject) -> dict[str, Any]:
    """The compiled network computes what torch computes; a network that cannot be compiled is refused in one line."""
    try:
        fast = subject.compiled()
    except pof.PofError as error:
        if not subject.network.refused:
            raise
        message = str(error)
        assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters"
        assert "\n" not in message, "a message of several lines"
        return {"refused": message}
    return outputs_alike(subject.outputs(fast), subject.outputs(), lambda: _exact(subject))


def speeds(subject: Subject) -> dict[str, Any]:
    """The speed-up that `pof.compile` reports, and the one that is measured here, in turns with the model itself."""
    fast = subject.compiled()
    reported = fast.speedup()
    calls = {"model": lambda: call(subject.model, subject.inputs), "compiled": lambda: call(fast, subject.inputs)}
    with torch.no_grad():
        for _ in range(2):  # the first call of each is slower
            start = time.perf_counter()
            calls["model"](), calls["compiled"]()
            once = time.perf_counter() - start
        seconds = interleaved(calls, min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(SECONDS / once))))
    return {
        "reported": round(reported, 3),
        "real": round(ratio(seconds, "model", "compiled"), 3),
        "milliseconds": median_milliseconds(seconds),
        "rounds": len(seconds["model"]),
        "verdict": fast.summary().splitlines()[-1],
    }


def update(subject: Subject) -> dict[str, Any]:
    """The compiled network follows the model to another sparsity."""
    fast = subject.compiled()
    subject.pruned(0.8)
    fast.update()
    return outputs_alike(subject.outputs(fast), subject.outputs(), lambda: _exact(subject))


def _parameters(model: nn.Module, name: str) -> list[nn.Parameter]:
    """The parameters behind a weight's name: itself, or what a parametrisation computes it from."""
    module, _, attribute = name.rpartition(".")
    owner = model.get_submodule(module)
    if torch.nn.utils.parametrize.is_parametrized(owner, attribute):
        return list(owner.parametrizations[attribute].parameters())
    return [model.get_parameter(name)]


def _has_batch_norm(subject: Subject) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in subject.model.modules())


def _exact(subject: Subject) -> dict[str, Tensor]:
    return float64_outputs(subject.model, subject.inputs)


def _assert_same_bits(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), f"{name} differs"


OPERATIONS = (plan, prune, prune_globally, recover, restore, training_step, calibrate, save_and_load, compile)
"""All but `speeds`, which takes long, and `update`, which changes what is timed."""
