import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pof
from pof.cli.main import VERBS, main


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_fits_a_terminal_and_shows_an_example(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([*([verb] if verb else []), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert re.search(rf"^example: .*pof {verb}", text, re.MULTILINE)
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"pof {pof.__version__}"


def completions(words: str, folder: Path) -> set[str]:
    """What bash offers after these words."""
    script = f"""
        eval "$({sys.executable} -m pof completion bash)"; cd {folder}
        COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
        _shtab_pof; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    assert completions("pof un", tmp_path) == {"unpack"}
    assert completions("pof export --s", tmp_path) == {"--sparsity", "--size", "--scope"}
    assert completions("pof compile --rec", tmp_path) == {"--recover-from"}
    assert completions("pof train mi", tmp_path) == {"mine.toml"}
    assert completions("pof pack --values f", tmp_path) == {"fp16"}


def test_zsh_gets_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef pof")


def takes_less(limit: float, code: str) -> bool:
    """Whether the seconds of CPU time that the code prints last, in a new process, are fewer; in one of three runs."""
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(3))
    return any(float(run.stdout.split()[-1]) < limit for run in runs)


def test_pof_is_imported_quickly() -> None:
    names = "pof.Elastic, pof.attach, pof.plan, pof.pruned, pof.save, pof.load"
    start = "import time, torch, numpy; start = time.process_time()"
    assert takes_less(0.15, f"{start}\nimport pof; {names}\nprint(time.process_time() - start)")
    assert takes_less(0.02, f"{start}\nimport pof\nprint(time.process_time() - start)")


def test_help_is_there_at_once() -> None:
    command = [sys.executable, "-m", "pof", "--help"]
    code = f"import os, subprocess; subprocess.run({command!r}, stdout=subprocess.DEVNULL)"
    assert takes_less(0.3, f"{code}\nprint(os.times().children_user + os.times().children_system)")


def test_help_does_not_import_torch() -> None:
    script = "import sys; from pof.cli.main import parser; parser().format_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_wrong_verb_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demonstrate"])
    assert stopped.value.code == 2
    assert "demo" in capsys.readouterr().err


def test_stopping_by_hand_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pof.cli.demo_verb.run", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "pof: stopped\n"


def test_the_nearest_option_and_folder_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["eval", "runs/x", "--sparity", "0.7"])
    assert stopped.value.code == 2
    assert "there is no --sparity, perhaps --sparsity: pof eval --help shows how" in capsys.readouterr().err
    (tmp_path / "digits-pof-0").mkdir()
    assert main(["eval", str(tmp_path / "digits-pof")]) == 2
    assert "perhaps 'digits-pof-0': name a run's folder" in capsys.readouterr().err
