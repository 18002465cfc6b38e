"""A hook of mkdocs: pages of the site that are not files of docs/.

* `spec.md` is src/pof/file/SPEC.md, `notes.md` is lab/notes.md, and `cli.md` is written from the command line's own
  parser.
* What a page links to outside of docs/ (records, examples, recipes) is brought into the site, under `repository/`, and
  the link is turned there. So the same link works on the site and where the repository itself is browsed.
"""

import argparse
import os
import posixpath
import re
from pathlib import Path
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from pof.cli.main import parser

ROOT = Path(__file__).parent.parent
SPEC, NOTES, COMMANDS = "src/pof/file/SPEC.md", "lab/notes.md", "src/pof/cli"
HOMES = {SPEC: "spec.md", NOTES: "notes.md", COMMANDS: "cli.md"}
"""Where things of the repository have a page of their own."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".h": "c", ".html": "html", ".yml": "yaml"}
WIDTH = "100"
"""Columns of the command line's help."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and everything that some page links to."""
    for path in (SPEC, NOTES):
        files.append(File.generated(config, HOMES[path], content=(ROOT / path).read_text("utf-8")))
    files.append(File.generated(config, HOMES[COMMANDS], content=command_line()))
    waiting = list(files.documentation_pages())
    while waiting:
        page = waiting.pop()
        for target in targets(page):
            if (ROOT / target).exists() and files.get_file_from_path(home(target)) is None:
                files.append(brought(target, config))
                if home(target).endswith(".md"):
                    waiting.append(files.get_file_from_path(home(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that lead out of docs/ to where the site has the same thing."""

    def turned(link: re.Match[str]) -> str:
        target = resolve(page.file, link[1])
        # A link that leads nowhere stays as it is, and mkdocs complains about it.
        if not (ROOT / target).exists():
            return link[1]
        return posixpath.relpath(home(target), posixpath.dirname(page.file.src_uri))

    return "".join(part if part.startswith("```") else LINK.sub(turned, part) for part in FENCED.split(markdown))


def targets(page: File) -> set[str]:
    """What a page links to, as paths of the repository."""
    return {resolve(page, link) for link in LINK.findall(FENCED.sub("", page.content_string))}


def resolve(page: File, link: str) -> str:
    """The path in the repository that `link` on `page` leads to."""
    source = next((path for path, uri in HOMES.items() if uri == page.src_uri), None)
    if source is None:
        inside = page.src_uri.startswith("repository/")
        source = page.src_uri.removeprefix("repository/") if inside else f"docs/{page.src_uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def home(target: str) -> str:
    """Where the site has a path of the repository."""
    if target in HOMES:
        return HOMES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    as_page = (ROOT / target).is_dir() or Path(target).suffix in LANGUAGES
    return f"repository/{target}{'.md' if as_page else ''}"


def brought(target: str, config: MkDocsConfig) -> File:
    """A file of the repository as a file of the site; code and folders become pages."""
    path, uri = ROOT / target, home(target)
    hidden = InclusionLevel.NOT_IN_NAV
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
        rows = "\n".join(f"* [{name}]({posixpath.basename(target)}/{name})" for name in names)
        return File.generated(config, uri, content=f"# {target}\n\n{rows}\n", inclusion=hidden)
    if language := LANGUAGES.get(path.suffix):
        text = f"# {target}\n\n```{language}\n{path.read_text('utf-8')}```\n"
        return File.generated(config, uri, content=text, inclusion=hidden)
    return File.generated(config, uri, abs_src_path=str(path), inclusion=hidden)


def command_line() -> str:
    """The help of `pof` and of each verb."""
    with mock.patch.dict(os.environ, {"COLUMNS": WIDTH, "NO_COLOR": "1"}):
        top = parser()
        (verbs,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
        parts = ["# Command line", f"```text\n{top.format_help()}```"]
        parts += [f"## pof {name}\n\n```text\n{verb.format_help()}```" for name, verb in verbs.choices.items()]
    return "\n\n".join(parts) + "\n"
