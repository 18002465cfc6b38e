"""Options that are a share of the weights."""

import argparse


def share(text: str) -> float:
    """Return the number in `text`; the library checks its range."""
    try:
        return float(text)
    except ValueError:
        hint = text.strip().removesuffix("%")
        try:
            example = f"{float(hint) / 100:g} for {hint.strip()} %"
        except ValueError:
            example = "0.7 for 70 %"
        raise argparse.ArgumentTypeError(f"{text!r} must be a share of the weights: write {example}") from None
