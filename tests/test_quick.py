"""The tests of `make test-quick` are named in a list, which must not fall behind the tests."""

import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_name("quick.txt")


def test_every_test_of_the_list_is_there():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    collected = subprocess.run(
        [*command, f"@{LIST}"], cwd=LIST.parents[1], capture_output=True, text=True, check=False
    )
    assert collected.returncode == 0, collected.stdout[-2000:] + collected.stderr[-2000:]
    names = LIST.read_text(encoding="utf-8").splitlines()
    assert names == sorted(set(names))
    assert set(names) == set(collected.stdout.splitlines()) & set(names)
