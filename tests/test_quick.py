"""The tests of `make test-quick` are named in a list, which must not fall behind the tests."""

from pathlib import Path

import pytest

LIST = Path(__file__).with_name("quick.txt")


class Collected:
    """A plugin that notes which tests there are."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.names = {item.nodeid for item in items}


def test_every_test_of_the_list_is_there(monkeypatch, capsys):
    """Collected in this process, which has imported most of them already."""
    monkeypatch.chdir(LIST.parents[1])
    collected = Collected()
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist"]
    assert pytest.main([*options, f"@{LIST}"], [collected]) == 0, capsys.readouterr()
    names = LIST.read_text(encoding="utf-8").splitlines()
    assert names == sorted(set(names))
    assert set(names) <= collected.names
