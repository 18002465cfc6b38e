"""docs/breadth.md, written from bench/records/breadth.json; and what in that record is not as it should be."""

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "breadth.md"
MOST_OFF = 0.1
"""How far a reported speed-up may be off the real one, as a share of it."""
SLOWEST = 0.97
"""The least speed of a compiled network, as a multiple of the model's own."""
FAINT = 1e-4
"""Spreads of the outputs over inputs, as a share of the dense network's, below which the page names a network."""
HEADER = "| network | weights | in the plan | operations | off torch | reported | real | ms, model / compiled |"


def failures(record: dict[str, Any]) -> list[str]:
    """One line for each thing that is not as it should be."""
    found = []
    for name, network in record["networks"].items():
        found += [f"{name}: {key}: {text}" for key, text in network["operations"].items() if text != "pass"]
        if speeds := network.get("speeds"):
            reported, real = speeds["reported"], speeds["real"]
            if abs(reported / real - 1) > MOST_OFF:
                found.append(f"{name}: reports {reported:.2f}x, is {real:.2f}x")
            if real < SLOWEST:
                found.append(f"{name}: runs at {real:.2f}x of the model's own speed")
    return found


def page(record: dict[str, Any]) -> str:
    """The page as markdown."""
    networks = record["networks"]
    parts = [_introduction(record)]
    for library in dict.fromkeys(network["library"] for network in networks.values()):
        rows = [_row(name, n) for name, n in networks.items() if n["library"] == library]
        parts.append(f"## {library}\n\n{HEADER}\n|{' --- |' * HEADER.count(' |')}\n" + "\n".join(rows))
    bad = failures(record)
    lines = "\n".join(f"* `{line}`" for line in bad) if bad else "Nothing."
    parts.append(f"## What failed\n\n{lines}")
    return "\n\n".join(parts) + "\n"


def _introduction(record: dict[str, Any]) -> str:
    networks = record["networks"].values()
    passed = sum(all(text == "pass" for text in n["operations"].values()) for n in networks)
    timed = [n["speeds"] for n in networks if "speeds" in n]
    faster = sum(speeds["real"] >= 1.05 for speeds in timed)
    machine = record.get("machine", {})
    commits = sorted({str(commit) for n in networks for commit in n.get("commits", {}).values()})
    remarks = "".join(f" {remark}." for remark in record.get("remarks", []))
    return f"""# On networks of others

{len(networks)} architectures of torchvision, timm and transformers, with random weights and small inputs, each in a
process of its own ([record](../bench/records/breadth.json), `make foreign`, `python bench/breadth.py`).
**All operations pass on {passed} of {len(networks)}**:

* *plan*: every parameter of two or more dimensions with more than 0.1 % of the weights is planned, or left out with a
  reason;
* *prune* to 90 %, layer by layer and globally: no layer is without weights, and outputs still depend on the input;
* *recover*, and *restore* bit for bit; a *training step* in which zeros stay zero; *calibrate*, after which float32 is
  near float64;
* *save and load*: the file gives the live model's bits, pruned and dense;
* *compile* and *update*: outputs are torch's to 2e-5 of the largest, or as near to float64 as torch's own where those
  are further off. A detector, whose sizes depend on the data, is refused in one line that says what to do.

"Reported" is what `fast.speedup()` says at 90 %. "Real" is measured by the benchmark, in turns with the model as its
user calls it, batch 1, one thread; {faster} of {len(timed)} gain 5 % or more. Where nothing is gained, the model
itself runs: 1.00x. Commit {", ".join(commits)}; torch {machine.get("torch")},
{machine.get("cpu_capability")}.{remarks}{_faint(record["networks"])}"""


def _faint(networks: dict[str, Any]) -> str:
    """The networks whose outputs hardly differ over inputs once they are pruned."""
    found = []
    for name, network in networks.items():
        for operation, scope in (("prune", "layer by layer"), ("prune_globally", "globally")):
            details = network.get(operation, {})
            if details.get("spread", 1) < FAINT:
                after = f", {details['spread_calibrated']:.0e}" if "spread_calibrated" in details else ""
                found.append(f"{name.split('/')[1]} {scope} ({details['spread']:.0e}{after})")
    if not found:
        return ""
    return f"""

The signal of a deep pruned network fades, most of all while BatchNorm has the statistics of the dense weights. The
outputs of these differ over inputs by less than {FAINT:.0e} of what the dense outputs do (in brackets: by how much, and
after `elastic.calibrate` if there is BatchNorm): {"; ".join(found)}."""


def _row(name: str, network: dict[str, Any]) -> str:
    operations = network["operations"]
    bad = [key for key, text in operations.items() if text != "pass"]
    share = f"{network['plan']['share']:.1%}" if "plan" in network else "-"
    compiled, speeds = network.get("compile", {}), network.get("speeds")
    off = (
        "refused"
        if "refused" in compiled
        else f"{compiled['difference']:.0e}".replace("0e+00", "0")
        if compiled
        else "-"
    )
    timing = ["-"] * 3
    if speeds:
        took = speeds["milliseconds"]
        timing = [
            f"{speeds['reported']:.2f}x", f"{speeds['real']:.2f}x", f"{took['model']:.1f} / {took['compiled']:.1f}",
        ]  # fmt: skip
    done = f"**failed: {', '.join(bad)}**" if bad else "all pass"
    millions = f"{network['parameters'] / 1e6:.2f} M" if "parameters" in network else "-"
    return f"| {' | '.join([name.split('/')[1], millions, share, done, off, *timing])} |"
