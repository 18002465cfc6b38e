"""The summary of a compiled model: a table of its layers, and how fast it is as a whole."""

from pof.runtime.engine_choice import Runner, Times
from pof.terminal.text_table import text_table

HEADER = ("layer", "operation", "output", "sparsity", "engine", "ms", "speed-up")


def summary_of(times: Times, runner: Runner) -> str:
    """A table with one row per layer, and a line for the whole model."""
    rows = [
        (t.name, t.operation, "x".join(map(str, t.shape)), f"{t.sparsity:.0%}", t.engine,
         f"{t.sparse if t.engine == 'sparse' and t.sparse is not None else t.dense:.3g}",
         f"{t.dense / t.sparse:.2f}x" if t.engine == "sparse" and t.sparse else "-")
        for t in times.layers
    ]  # fmt: skip
    total = f"whole model: {times.plain:.3g} ms plain, {times.compiled:.3g} ms compiled"
    if runner == "model":
        verdict = "the plain model is used: compiling gains nothing at this size and sparsity"
    else:
        verdict = f"{times.plain / times.compiled:.2f}x as fast"
    table = (
        text_table(HEADER, rows)
        if rows
        else "no convolution and no linear layer, which are all that the kernels compute"
    )
    return f"{table}\n{total}; {verdict}"
