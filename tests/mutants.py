"""Mistakes planted in the code, one at a time: the tests named beside each must fail.

    python tests/mutants.py                     all of them, with what each must be caught by
    python tests/mutants.py --only heads/mae    those of files below src/headwise that begin so
    python tests/mutants.py --list              whether each still stands once in the code

A mutant that survives is a hole in the suite. Whoever writes a part of headwise anew writes its
rows in mutants.yaml anew, for the new code.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
# Of the project's folder itself; src/headwise/runs is another.
LEFT_OUT = {"runs", "build", "dist"}


class Mutant(NamedTuple):
    """One exact replacement in a file below src/headwise, and the tests that must fail for it."""

    kind: str
    file: str
    old: str
    new: str
    tests: str

    def stands(self) -> int:
        return (ROOT / "src/headwise" / self.file).read_text(encoding="utf-8").count(self.old)


def is_caught(mutant: Mutant, seconds: int) -> bool:
    """Whether a test fails, or hangs, in a copy of the project that has the mistake."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "headwise"
        shutil.copytree(ROOT, copy, ignore=_left_out)
        path = copy / "src/headwise" / mutant.file
        path.write_text(path.read_text(encoding="utf-8").replace(mutant.old, mutant.new), "utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy / "src"),
            "HYPOTHESIS_STORAGE_DIRECTORY": folder,
        }
        try:
            done = subprocess.run(
                [*command, *mutant.tests.split()],
                cwd=copy,
                env=environment,
                capture_output=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return True
    if done.returncode not in (0, 1):  # no test was run, or none could be
        print(done.stdout.decode()[-500:], file=sys.stderr)
    return done.returncode == 1


def _left_out(folder: str, names: list[str]) -> set[str]:
    is_root = Path(folder) == ROOT
    return {n for n in names if (is_root and (n in LEFT_OUT or n.startswith("."))) or n == "old"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="the beginning of a path below src/headwise")
    parser.add_argument("--list", action="store_true", help="run no test")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument(
        "--seconds", type=int, default=600, help="after which tests count as failed"
    )
    given = parser.parse_args()
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    mutants = [m for m in (Mutant(**row) for row in rows) if m.file.startswith(given.only)]
    wrong = [mutant for mutant in mutants if mutant.stands() != 1]
    for mutant in wrong:
        print(f"stands {mutant.stands()} times in {mutant.file}: {mutant.old!r}")
    if wrong or given.list:
        print(f"{len(mutants)} mutants, {len(wrong)} of which do not stand once in the code")
        return bool(wrong)
    survived = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        caught = pool.map(lambda mutant: is_caught(mutant, given.seconds), mutants)
        for mutant, dies in zip(mutants, caught, strict=True):
            survived += not dies
            print(
                f"{'dies' if dies else 'SURVIVES':9} {mutant.file}: {mutant.kind} ({mutant.tests})",
                flush=True,
            )
    print(f"{survived} of {len(mutants)} survive")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main())
