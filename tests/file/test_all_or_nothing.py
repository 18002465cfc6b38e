"""A load or save that fails leaves the model and the file as they were."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_files import as_file, saved, small
from file_helpers import parts_of, streams_of, with_parts, with_streams
from torch import nn

import pof
from tests.small_models import FewBytes, Kinds, bits, randomised


def test_the_model_is_untouched_by_any_error(tmp_path: Path) -> None:
    data = saved(tmp_path, small())
    model = randomised(FewBytes(), seed=9)
    before = bits(model)
    late = bytearray(data)
    late[-1] ^= 1
    head, chunks = parts_of(data)
    no_numbers = streams_of(chunks[1])
    no_numbers[26 + 1 + 26 + 2] = b"\xff" * len(no_numbers[26 + 1 + 26 + 2])
    broken = {
        "late": bytes(late),
        "cut": data[:-1],
        "too long": data + b"x",
        "nothing": b"",
        "NaN": with_parts(head, [chunks[0], with_streams(no_numbers), *chunks[2:]]),
    }
    for name, worse in broken.items():
        for sparsity in (None, 0.1):
            with pytest.raises(pof.PofFileError):
                pof.load(as_file(tmp_path, worse), into=model, sparsity=sparsity if name != "NaN" else 0.95)
            assert bits(model) == before, name
    assert pof.load(as_file(tmp_path, bytes(late)), into=model, sparsity=0.9).sparsity == 0.9
    assert bits(model) != before


def test_a_model_that_does_not_fit_is_untouched(tmp_path: Path) -> None:
    file = as_file(tmp_path, saved(tmp_path, small()))
    wider, more, fewer, meta, lazy = FewBytes(), FewBytes(), FewBytes(), FewBytes().to("meta"), FewBytes()
    wider.fc = nn.Linear(8, 5)
    more.extra = nn.Linear(2, 2)
    del fewer.fc
    lazy.fc = nn.LazyLinear(5)
    other_dims = FewBytes()
    other_dims.flag = torch.tensor([[True, False]])
    for model, text in (
        (wider, r"'fc.weight' has shape \(5, 7\) instead of \(5, 8\)"),
        (more, "lacks 'extra.bias' and 1 more"),
        (fewer, "has no place for 'fc.bias' and 1 more"),
        (meta, "meta device"),
        (lazy, "lazy"),
        (other_dims, "'flag' has shape"),
        (Kinds(), "does not fit the model"),
    ):
        before = {n: v for n, v in model.state_dict().items() if not nn.parameter.is_lazy(v)}
        copies = bits(before) if model is not meta else None
        with pytest.raises(pof.PofFileError, match=text):
            pof.load(file, into=model)
        assert copies is None or bits(before) == copies


@pytest.mark.parametrize(
    "arguments", [{"sparsity": 1.0}, {"sparsity": "0.9"}, {"recover_from": 0.3}, {"sparsity": math.nan}]
)
def test_states_that_do_not_exist_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    file = as_file(tmp_path, saved(tmp_path, small()))
    model = randomised(FewBytes(), seed=9)
    before = bits(model)
    with pytest.raises(pof.PofError):
        pof.load(file, into=model, **arguments)
    with pytest.raises(pof.PofError, match="swap them"):
        pof.load(file, into=model, sparsity=0.3, recover_from=0.7)
    assert bits(model) == before


def test_only_modules_can_be_loaded_into(tmp_path: Path) -> None:
    file = as_file(tmp_path, saved(tmp_path, small()))
    with pytest.raises(pof.PofError, match="into is a dict"):
        pof.load(file, into={})  # type: ignore[arg-type]


def nothing_but(folder: Path, file: Path) -> bool:
    return list(folder.iterdir()) == [file]


def test_a_file_stays_when_the_next_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.pof"
    model = small()
    pof.save(model, file)
    before = file.read_bytes()
    bad = copy.deepcopy(model)
    with torch.no_grad():
        bad.fc.weight[0, 0] = math.nan
    for number in (math.nan, math.inf, -math.inf):
        with torch.no_grad():
            bad.fc.weight[0, 0] = number
        for magnitudes in ("raw", "unit"):
            with pytest.raises(pof.PofError, match=r"'fc\.weight' holds NaN or inf"):
                pof.save(bad, file, magnitudes=magnitudes)
    for chosen in (
        {"stages": (0.3, 0.9)}, {"stages": (1.0,)}, {"stages": 0.9}, {"stages": (0.9, 0.0)}, {"values": "int4"},
        {"scope": "all"}, {"magnitudes": "?"}, {"include": "nothing"}, {"states": [0.5]}, {"sparsities": {"fc": 2}},
        {"scope": "global", "stages": (0.999,)},
    ):  # fmt: skip
        with pytest.raises(pof.PofError):
            pof.save(model, file, **chosen)
    for broken in ("pof.file.encode.write_head", "pof.file.atomic_write.os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises((pof.PofError, OSError), match="No space left"):
                pof.save(model, file)
    assert file.read_bytes() == before
    assert nothing_but(tmp_path, file)
    with pytest.raises(pof.PofError, match="cannot write"):
        pof.save(model, tmp_path / "no folder" / "model.pof")


class WithExtraState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}


def test_what_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.pof"
    double = nn.Linear(4, 4, dtype=torch.float64)
    with pytest.raises(pof.PofError, match=r"'weight' is torch.float64.*exclude it"):
        pof.save(double, file)
    eighth = nn.Linear(4, 4)
    eighth.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))
    with pytest.raises(pof.PofError, match=r"'scale' is torch\.float8"):
        pof.save(eighth, file)
    sparse = nn.Linear(4, 4)
    sparse.register_buffer("graph", torch.eye(3).to_sparse())
    with pytest.raises(pof.PofError, match="'graph'"):
        pof.save(sparse, file)
    with pytest.raises(pof.PofError, match="'_extra_state' is a dict"):
        pof.save(WithExtraState(4, 4), file)
    with pytest.raises(pof.PofError, match="nothing to prune"):
        pof.save(nn.BatchNorm1d(4), file)
    assert not file.exists()
