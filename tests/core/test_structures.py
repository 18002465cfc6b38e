"""C and Python have the same structures, or the core is refused with the remedy."""

import ctypes
import shutil
import subprocess
from ctypes import c_int64, c_void_p
from pathlib import Path

import pytest

from pof.core import structures
from pof.core.library import LIBRARY, core
from pof.core.structures import SHARED, check_structures
from pof.errors import PofError

SOURCES = Path(structures.__file__).parent
NEEDS_CORE = pytest.mark.skipif(core() is None, reason="the core was not built")


@NEEDS_CORE
def test_every_shared_structure_is_alike() -> None:
    native = core()
    assert native is not None
    check_structures(native, "core")


@NEEDS_CORE
@pytest.mark.parametrize("name", SHARED)
def test_a_structure_of_another_size_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native = core()
    assert native is not None

    class Longer(ctypes.Structure):
        _fields_ = [*SHARED[name]._fields_, ("added", c_int64)]

    monkeypatch.setitem(SHARED, name, Longer)
    with pytest.raises(PofError, match=rf"another version of pof \({name}.* rebuild it with pip install"):
        check_structures(native, "core")


@NEEDS_CORE
def test_fields_that_changed_places_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    native = core()
    assert native is not None

    class Swapped(ctypes.Structure):
        _fields_ = [("argument", c_void_p), ("run", c_void_p)]

    monkeypatch.setitem(SHARED, "Step", Swapped)
    with pytest.raises(PofError, match=r"Step.argument lies at \(8, 8\) there, at \(0, 8\) here"):
        check_structures(native, "core")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_core_built_from_other_sources_is_refused_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in SOURCES.glob("*.[ch]"):
        text = file.read_text()
        if file.name == "structures.h":
            text = text.replace("float low, high; ", "float low, high, added; ")
            assert "added" in text
        (tmp_path / file.name).write_text(text)
    sources = [str(file) for file in tmp_path.glob("*.c") if file.name != "module.c"]
    library = tmp_path / "core.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", *sources, "-o", str(library)], check=True)
    monkeypatch.setenv(LIBRARY, str(library))
    core.cache_clear()
    try:
        with pytest.raises(PofError, match=r"Conv lies at \(0, \d+\) there"):
            core()
    finally:
        monkeypatch.undo()
        core.cache_clear()


def test_every_structure_in_the_header_is_in_the_table() -> None:
    """A structure that Python hands to C must be told of in structures.c; parts of others are told with them."""
    import re

    declared = set(re.findall(r"^\} (\w+);", (SOURCES / "structures.h").read_text(), re.MULTILINE))
    told = set(re.findall(r"^    WHOLE\((\w+)\)", (SOURCES / "structures.c").read_text(), re.MULTILINE))
    assert told == set(SHARED)
    assert declared - told == {"ConvPart", "CopyFrom", "CopyTo"}
