"""Write a `.pof` file from tensors without their model. `pof.save` writes one from a model."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from pof.file.contents import contents_of_state_dict
from pof.file.encode import Encoder
from pof.file.header import StoredValues
from pof.ranking.sparsity_state import Magnitudes, Scope

DEFAULT_STAGES = (0.9, 0.7, 0.3)


def save_state_dict(
    state: Mapping[str, Tensor],
    path: str | Path,
    *,
    values: StoredValues = "exact",
    stages: Sequence[float] = DEFAULT_STAGES,
    scope: Scope = "layer",
    magnitudes: Magnitudes = "raw",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Like `pof.save`, but for a state_dict without its model: names and shapes decide what is pruned."""
    writer = Encoder(contents_of_state_dict(state, include, exclude), values, stages, scope, magnitudes)
    return writer.write(path, metadata or {})
