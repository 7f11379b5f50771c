"""``python -m kernel_space.selfcheck --capture FILE``: run the probes on this machine's card and keep their bytes."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.selfcheck.card import run_on_card
from kernel_space.selfcheck.catalogue import catalogue
from kernel_space.selfcheck.fixture import save


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kernel_space.selfcheck", description=__doc__)
    parser.add_argument(
        "--capture", type=Path, required=True, metavar="FILE", help="where the bytes go (JSON)"
    )
    args = parser.parse_args()
    probes = catalogue()
    try:
        card, results = run_on_card(probes)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    save(args.capture, card, datetime.date.today().isoformat(), probes, results)
    for name, result in results.items():
        print(f"{result.ending:<8} {name} {result.detail}")
    print(f"{card}: {len(results)} of {len(probes)} probes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
