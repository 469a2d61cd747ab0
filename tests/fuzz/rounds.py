"""Fuzzes for some minutes: the tests of this folder, round after round, each with another seed.

    python tests/fuzz/rounds.py --minutes 10

A failure is shown with the example, and with the line that repeats it (`@reproduce_failure`). The
same `--seed` draws the same examples, as far as the time goes. At the end it says how many examples
each test has had. `--once` tries what the suite tries, the same in every run.
"""

import argparse
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

# How Hypothesis says how many examples there were, invalid ones aside.
TRIED = re.compile(r"(\d+) passing, (\d+) failing")


class Rounds:
    """A plugin of pytest that counts examples, and leaves tests out when the time is over."""

    def __init__(self, end: float) -> None:
        self.end = end
        self.tried: Counter[str] = Counter()

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self.end:
            pytest.skip("the time is over")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        name = item.nodeid.removeprefix("tests/fuzz/").partition("[")[0]
        for passed, failed in TRIED.findall(getattr(item, "hypothesis_statistics", "")):
            self.tried[name] += int(passed) + int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--once", action="store_true", help="try and count what the suite tries")
    given = parser.parse_args()
    os.environ["HEADWISE_FUZZ"] = "suite" if given.once else "long"
    start = time.monotonic()
    rounds = Rounds(float("inf") if given.once else start + 60 * given.minutes)
    if not given.once:
        print(f"seed {given.seed}, {given.minutes:g} minutes", flush=True)
    seed, failed = given.seed, False
    while time.monotonic() < rounds.end:
        # In another order each time, so that it is not always the same tests that come too late.
        files = sorted(Path(__file__).parent.glob("test_*.py"))
        random.Random(seed).shuffle(files)
        options = ["-p", "no:xdist", "-p", "no:cacheprovider", "--verbose", "--no-header"]
        if not given.once:
            options.append(f"--hypothesis-seed={seed}")
        code = pytest.main([*options, *map(str, files)], plugins=[rounds])
        failed |= code != pytest.ExitCode.OK
        seed += 1
        if given.once or code == pytest.ExitCode.INTERRUPTED:
            break
    print(
        f"\nexamples in {(time.monotonic() - start) / 60:.1f} minutes, {seed - given.seed} rounds"
    )
    for name, count in sorted(rounds.tried.items()):
        print(f"{count:8,}  {name}")
    ending = "there were failures" if failed else "none failed"
    print(f"{sum(rounds.tried.values()):8,}  in all; {ending}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
