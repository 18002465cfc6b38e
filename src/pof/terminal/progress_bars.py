"""Progress bars for long verbs; plain lines where there is no terminal."""

import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text


class _WithNotes(Progress):
    """Bars with the note of the last one below them: 80 columns leave no room beside it."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars and the note."""
        yield from super().get_renderables()
        if self.tasks:
            yield Text(self.tasks[-1].fields["note"], style="dim")


class Bars:
    """One progress bar per title, with a few figures below."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.live = console.is_terminal
        """Whether there is a terminal to draw on."""
        self._tasks: dict[str, TaskID] = {}
        self._progress = _WithNotes(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self.live,
        )

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, title: str, done: int, steps: int, note: str = "") -> None:
        """Show that `done` of `steps` are done."""
        if title not in self._tasks:
            self._tasks[title] = self._progress.add_task(title, total=steps, note="")
            if not self.live:
                print(f"{title} ({steps} steps)", file=sys.stderr)
        self._progress.update(self._tasks[title], completed=done, note=note)

    def line(self, text: str) -> None:
        """Print a line above the bars."""
        if self.live:
            self._progress.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr)
