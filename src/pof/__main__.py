"""`python -m pof` is `pof`; so is `accelerate launch -m pof`."""

import sys

from pof.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
