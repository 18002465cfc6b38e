"""Models and files that are unusual but possible: shared views, copies, threads, numbers that no writer writes."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pof
from pof.cli.main import main
from pof.core import library as native
from pof.file.atomic_write import replacing
from pof.file.writing import save_state_dict


@pytest.fixture(params=["core", "numpy"])
def _either_reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "numpy":
        monkeypatch.setenv(native.SWITCH, "1")
    native.core.cache_clear()
    yield
    monkeypatch.undo()
    native.core.cache_clear()


def test_reading_while_other_threads_use_memory(tmp_path: Path) -> None:
    pof.save(nn.Linear(300, 300), tmp_path / "m.pof")
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            np.arange(20) * 2

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            pof.open(tmp_path / "m.pof").state_dict()
    finally:
        stop.set()
        thread.join()


def test_a_model_that_cannot_be_written_to_stays_whole(tmp_path: Path) -> None:
    class Expanded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(4)
            self.norm.running_mean = torch.zeros(1).expand(4)

    pof.save(Expanded(), tmp_path / "m.pof")
    into = Expanded()
    before = into.linear.weight.detach().clone()
    with pytest.raises(pof.PofFileError, match="contiguous"):
        pof.load(tmp_path / "m.pof", into=into)
    assert torch.equal(into.linear.weight, before)
    with torch.inference_mode():
        frozen = nn.Linear(8, 8)
    pof.save(nn.Linear(8, 8), tmp_path / "m.pof")
    with pytest.raises(pof.PofFileError, match="inference mode"):
        pof.load(tmp_path / "m.pof", into=frozen)


def test_a_model_that_shows_copies_is_refused(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Tensor:
            return torch.ones(3)

        def set_extra_state(self, state: Tensor) -> None:
            """Nothing."""

    pof.save(Extra(8, 8), tmp_path / "m.pof")
    with pytest.raises(pof.PofFileError, match="load_state_dict"):
        pof.load(tmp_path / "m.pof", into=Extra(8, 8))
    Extra(8, 8).load_state_dict(pof.open(tmp_path / "m.pof").state_dict())


def test_conjugated_and_negated_views(tmp_path: Path) -> None:
    model, z = nn.Linear(8, 8), torch.randn(5, dtype=torch.complex64)
    model.register_buffer("z", z)
    model.register_buffer("conjugate", z.conj())
    model.register_buffer("negated", torch._neg_view(torch.arange(3.0)))
    pof.save(model, tmp_path / "m.pof")
    found = pof.open(tmp_path / "m.pof").state_dict()
    assert torch.equal(found["z"], z)
    assert torch.equal(found["conjugate"], z.conj().resolve_conj())
    assert found["negated"].tolist() == [0.0, -1.0, -2.0]


@pytest.mark.usefixtures("_either_reader")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_that_are_not_finite_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, value: float
) -> None:
    weight = torch.randn(16, 16).to(dtype)
    weight[3, 4] = value
    with monkeypatch.context() as patch:
        # A writer that does not look.
        for module in ("pof.file.weight_integers", "pof.ranking.ranked_weight"):
            patch.setattr(f"{module}.all_finite", lambda _: True)
        save_state_dict({"weight": weight}, tmp_path / "m.pof", stages=(0.5,))
    with pytest.raises(pof.PofFileError, match="not finite"):
        pof.open(tmp_path / "m.pof").state_dict()
    with contextlib.suppress(pof.PofFileError):
        assert pof.open(tmp_path / "m.pof").state_dict(0.5)["weight"].isfinite().all()


@pytest.mark.parametrize("scale", [float("nan"), -1.0])
def test_scales_and_norms_that_are_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    from pof.file import encode

    def wrong(name: str, weight: Tensor, values: str) -> Any:
        stored, scales = real(name, weight, values)
        return stored, None if scales is None else scales * scale

    real = encode.rounded
    with monkeypatch.context() as patch:
        patch.setattr(encode, "rounded", wrong)
        patch.setattr(encode, "to_integers", lambda weight, *_: np.ones(weight.numel(), np.uint8))
        save_state_dict({"weight": torch.randn(8, 8)}, tmp_path / "m.pof", values="int8")
    with pytest.raises(pof.PofFileError, match="a scale of 'weight'"):
        pof.open(tmp_path / "m.pof").state_dict()


def test_weights_without_elements_are_kept(tmp_path: Path) -> None:
    state = {"weight": torch.randn(4, 4), "none.weight": torch.empty(3, 0)}
    save_state_dict(state, tmp_path / "m.pof")
    assert pof.open(tmp_path / "m.pof").state_dict()["none.weight"].shape == (3, 0)
    with pytest.raises(pof.PofError, match="shape"):
        save_state_dict({**state, "huge": torch.empty(0, 2**41)}, tmp_path / "huge.pof")


def test_tied_weights_count_as_often_as_they_are_named(tmp_path: Path) -> None:
    weight = torch.randn(4, 4)
    save_state_dict({"a.weight": weight, "b.weight": weight}, tmp_path / "m.pof")
    assert pof.open(tmp_path / "m.pof").elements == 32


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with replacing(target) as one:
        one.write_text("one")
        with replacing(target) as other:
            other.write_text("other")
        assert target.read_text() == "other"
    assert target.read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_file_urls_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    pof.save(model, f"file://{tmp_path}/m.pof")
    assert pof.load(f"file://{tmp_path}/m.pof", into=model) == (0.0, 0.0)
    with pytest.raises(pof.PofError, match="what was there before is kept"):
        pof.save(model, f"file://{tmp_path}/none/m.pof")


@pytest.mark.parametrize(("path", "message"), [("", "name a file"), ("x" * 300, "File name too long")])
def test_names_that_are_none(path: str, message: str) -> None:
    with pytest.raises(pof.PofError, match=message):
        pof.save(nn.Linear(4, 4), path)


def test_bad_arguments_of_save_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(pof.PofError, match="stages=None"):
        pof.save(nn.Linear(4, 4), tmp_path / "m.pof", stages=None)  # type: ignore[arg-type]
    with pytest.raises(pof.PofError, match=r"such as \[batch\]"):
        pof.save(nn.Linear(4, 4), tmp_path / "m.pof", calibrate=torch.ones(2, 4))


def _unpack(*arguments: str, limit: str = "unlimited") -> subprocess.CompletedProcess[str]:
    command = f"ulimit -f {limit}; exec {sys.executable} -m pof unpack {' '.join(arguments)}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_unpack_to_a_full_disk(tmp_path: Path, suffix: str) -> None:
    pof.save(nn.Linear(300, 300), tmp_path / "m.pof")
    out = tmp_path / f"out.{suffix}"
    out.write_text("before")
    done = _unpack(str(tmp_path / "m.pof"), str(out), limit="100")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "cannot write" in done.stderr
    assert out.read_text() == "before"


def test_unpack_of_what_safetensors_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.randn(8, 8)
    save_state_dict({"weight": weight, "z": torch.ones(2, dtype=torch.complex128)}, tmp_path / "z.pof")
    save_state_dict({f"{i}.weight": weight for i in range(40)}, tmp_path / "tied.pof")
    for name, message in (("z", "complex128"), ("tied", "tied")):
        assert main(["unpack", str(tmp_path / f"{name}.pof"), str(tmp_path / "out.safetensors")]) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert message in said
        assert main(["unpack", str(tmp_path / f"{name}.pof"), str(tmp_path / "out.pth")]) == 0


def test_the_first_convolution_is_found_in_any_order(tmp_path: Path) -> None:
    state = {
        "stem.weight": torch.randn(8, 3, 3, 3),
        "a.weight": torch.randn(8, 8, 3, 3),
        "b.weight": torch.randn(8, 1, 3, 3),
    }
    for each in (state, dict(sorted(state.items()))):
        save_state_dict(each, tmp_path / "m.pof")
        assert [tensor.name for tensor in pof.open(tmp_path / "m.pof").head.of_role("plain")] == ["stem.weight"]


def test_states_that_are_none(tmp_path: Path) -> None:
    for states in (0.7, "0.7", [(0.1, 0.2, 0.3)]):
        with pytest.raises(pof.PofError, match="states="):
            pof.save(nn.Linear(4, 4), tmp_path / "m.pof", calibrate=[torch.ones(2, 4)], states=states)  # type: ignore[arg-type]


def test_saving_what_an_elastic_has_pruned_is_warned_of(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4))
    elastic = pof.Elastic(model)
    elastic.recover(0.3, 0.7)
    with pytest.warns(UserWarning, match=r"has this model recovered 0.3-0.7, .*elastic.restore\(\) first"):
        pof.save(nn.DataParallel(model), tmp_path / "model.pof")
    elastic.restore()
    pof.save(model, tmp_path / "model.pof")
    elastic.prune(0.5)
    elastic.refresh()
    pof.save(model, tmp_path / "meant.pof")
    elastic.prune(0.9)
    del elastic
    pof.save(model, tmp_path / "nobody.pof")


def test_saving_tells_how_far_it_is(tmp_path: Path) -> None:
    model, told = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), []
    pof.save(model, tmp_path / "m.pof", stages=(0.9,), calibrate=[torch.randn(16, 8)], states=[0.5, 0.7],
             progress=lambda *now: told.append(now))  # fmt: skip
    assert told == [("BatchNorm statistics", done, 3) for done in range(4)]
    pof.save(model, tmp_path / "m.pof", progress=lambda *now: told.append(now))
    assert len(told) == 4, "without data there is nothing to wait for"
