"""Fits the network of a file to the images of a folder, and writes it as a `.pof` file."""

from itertools import islice
from pathlib import Path

from pof.data.unlabelled_images import UnlabelledImages
from pof.elastic.model_saving import save
from pof.errors import PofError
from pof.file.header import StoredValues
from pof.fitting.fit_report import FitReport
from pof.fitting.fitting_run import Progress
from pof.fitting.pretrained_fit import fit
from pof.trainer.trained import load_at

CHECKPOINT = ".fit"
"""What the name of a fit's checkpoint ends in; it lies beside the file that is written."""
CALIBRATED = 8
"""How many batches the statistics in the file are estimated from."""


def fit_file(
    source: str | Path,
    target: str | Path,
    images: UnlabelledImages,
    *,
    model: str | None = None,
    minutes: float = 30.0,
    values: StoredValues = "exact",
    resume: bool = False,
    progress: Progress | None = None,
) -> tuple[FitReport, int]:
    """Fit the weights in `source`, write them to `target`, and return the report and the size of the file in bytes.

    What is finished is kept beside `target` until the end; `resume` goes on from there.

    Raises:
        PofError: such a checkpoint is there, and `resume` is not set.
    """
    checkpoint = Path(f"{target}{CHECKPOINT}")
    if checkpoint.exists() and not resume:
        raise PofError(f"{str(checkpoint)!r} is there from a fit that did not end: --resume goes on, or delete it")
    found = load_at(source, model)
    report = fit(found.model, images, minutes=minutes, checkpoint=checkpoint, progress=progress)
    facts = {"model": model} if model else {}
    batches = list(islice(images, CALIBRATED))
    size = save(found.model, target, values=values, scope="global", calibrate=batches, metadata=facts)
    return report, size
