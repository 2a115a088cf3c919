"""Command line of the adversary; see the package."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from . import __doc__ as words
from . import attack, name_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.adversary", description=words)
    parser.add_argument("cases", type=int, nargs="?", default=200)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    start, wrong, by_kind = time.perf_counter(), 0, Counter()
    for number in range(options.first, options.first + options.cases):
        description = ""
        try:
            case, faults = attack(number)
            description = case.words
        except Exception as error:  # a fit that raises is not silent, but it is told here
            faults = [f"{type(error).__name__}: {error}"]
        if faults:
            wrong += 1
            by_kind[name_of(number)] += 1
            print(f"{number}, {name_of(number)}: {description}\n    {'; '.join(faults)}", flush=True)
    seconds = time.perf_counter() - start
    print(f"{wrong} of {options.cases} fits silently wrong, in {seconds:.0f} s; by kind {dict(by_kind)}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
