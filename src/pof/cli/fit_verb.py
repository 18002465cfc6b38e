"""Fit a pretrained network to a folder of images, so that it prunes well.

No labels are needed. IN is a file of weights (.safetensors, .pof, or .pth that
holds only tensors). Images are cut to their middle, and normalised as for
ImageNet.

example: pof fit resnet50.pth --model resnet50 --images photos --out model.pof
"""

import argparse
import json

from pof.file.atomic_write import check_target

HELP = "fit a pretrained network to a few images"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof fit`."""
    parser.add_argument("source", metavar="IN", help="a file of weights")
    parser.add_argument("--images", metavar="FOLDER", required=True, help="images to fit to; a few hundred are enough")
    parser.add_argument("--out", metavar="OUT", required=True, help="the .pof file to write")
    parser.add_argument("--model", metavar="NAME", help="model name or MODULE:FUNCTION, if the file does not say")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long it may take (30)")
    parser.add_argument("--size", type=int, default=224, metavar="PIXELS", help="size of the images (224)")
    parser.add_argument("--batch", type=int, default=32, help="images at a time (32)")
    parser.add_argument(
        "--values", choices=("exact", "fp16", "int8"), default="exact", help="how values are stored (exact)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with a fit that was stopped")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Fit, write the file, and print the report."""
    check_target(options.out, (".pof",))
    from pof.data.unlabelled_images import UnlabelledImages
    from pof.fitting.fit_report import as_record
    from pof.terminal.progress_bars import Bars
    from pof.trainer.fitted_file import fit_file

    images = UnlabelledImages(options.images, size=options.size, batch=options.batch)
    with Bars() as bars:
        report, size = fit_file(
            options.source,
            options.out,
            images,
            model=options.model,
            minutes=options.minutes,
            values=options.values,
            resume=options.resume,
            progress=lambda stage, over, note: bars.update("fit", round(100 * over), 100, f"{stage}: {note}"),
        )
    if options.json:
        print(json.dumps({"out": options.out, "bytes": size, **as_record(report)}))
    else:
        print(report)
        print(f"{options.out}: {size:,} bytes")
    return 0
