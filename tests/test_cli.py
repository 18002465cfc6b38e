import subprocess
import sys

import pytest

import pof
from pof.cli.main import main, parser


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["demo", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert "example: pof demo" in text
        assert all(len(line) <= 80 for line in text.splitlines())
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"pof {pof.__version__}"


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

    monkeypatch.setattr("pof.cli.demo.run", interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "pof: stopped\n"


def test_every_verb_has_help() -> None:
    assert "demo" in parser().format_help()
