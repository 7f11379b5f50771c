"""The command line: ``python tune.py --shape M,K,N,R``. See ``python tune.py --help``."""

from __future__ import annotations

import sys

from tuner.cli.start import start

if __name__ == "__main__":
    sys.exit(start())
