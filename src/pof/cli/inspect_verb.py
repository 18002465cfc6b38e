"""Show the contents of a .pof file: its stages, and the bytes of each.

FILE may be a URL. It is read once, to count the statistics that it keeps; with
--partial only its head is read.

example: pof inspect model.pof
"""

import argparse
import json

SHARES = ("share", "of_fp32", "of_fp16")
HELP = "show the contents of a .pof file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof inspect`."""
    parser.add_argument("source", metavar="FILE", help="a .pof file, or its URL")
    parser.add_argument("--partial", action="store_true", help="accept a file that is cut off, and use what is there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Print one row per stage."""
    from pof.file.pof_file import PofFile
    from pof.terminal.text_table import text_table

    file = PofFile(options.source, partial=options.partial)
    fp32 = 4 * file.elements
    rows = [
        {
            "chunk": stage.kind,
            "gives": None if stage.state is None else str(stage.state),
            "bytes": stage.bytes,
            "cumulative": stage.cumulative,
            "share": stage.cumulative / file.size,
            "of_fp32": stage.cumulative / fp32,
            "of_fp16": 2 * stage.cumulative / fp32,
        }
        for stage in file.stages
    ]
    if options.json:
        facts = {name: getattr(file.head, name) for name in ("values", "scope", "magnitudes", "stages", "metadata")}
        print(json.dumps({**facts, "bytes": file.size, "elements": file.elements, "chunks": rows}, indent=2))
        return 0
    header = ("chunk", "gives", "bytes", "up to here", "of file", "of fp32", "of fp16")
    cells = [
        (row["chunk"], row["gives"] or "-", row["bytes"], row["cumulative"], *(f"{row[key]:.1%}" for key in SHARES))
        for row in rows
    ]
    print(text_table(header, cells))
    head = file.head
    pruned = sum(tensor.elements for tensor in head.of_role("pruned"))
    print(
        f"{pruned:,} of {file.elements:,} numbers can be pruned; values {head.values}, ranked {head.magnitudes}", end=""
    )
    print(f" by {head.scope}" if head.scope == "layer" else " over all layers")
    left = [tensor.name for tensor in head.of_role("plain") if len(tensor.shape) > 1]
    if left:
        print(f"never pruned: {', '.join(left[:3])}{f' and {len(left) - 3} more' if len(left) > 3 else ''}")
    if not options.partial:
        print(f"BatchNorm statistics for {len(file.kept_statistics())} states")
    for name, value in file.metadata.items():
        print(f"{name}: {value}")
    return 0
