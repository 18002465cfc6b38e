"""The compiled core is there where it can be: or tests of it would be skipped, and nobody would notice."""

import os
import re
import shutil
from pathlib import Path

import pytest

from pof.core.library import SWITCH, core

SOURCES = Path(__file__).parents[2] / "src" / "pof" / "core"


@pytest.mark.skipif(os.environ.get(SWITCH) is not None or shutil.which("cc") is None, reason="no core is wanted")
def test_the_core_was_built_from_these_sources() -> None:
    native = core()
    assert native is not None, "there is a compiler, but no core: pip install --editable . builds it"
    exported = {
        name
        for file in SOURCES.glob("*.c")
        for name in re.findall(r"^EXPORT (?:const )?\w+ \*?(pof_\w+)\(", file.read_text(), re.MULTILINE)
    }
    assert len(exported) > 10
    missing = {name for name in exported if not hasattr(native, name)}
    assert not missing, "an older build: pip install --editable . builds it anew"
