"""The README's code runs as written, in order."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_code_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["elastic"].state == (0.0, 0.0)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert links
    missing = [link for link in links if "://" not in link and not (README.parent / link).exists()]
    assert not missing
