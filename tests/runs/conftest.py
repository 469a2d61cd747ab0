"""The small world of the tests of runs."""

import gc
import os
from pathlib import Path

import pytest
from support.small_world import write_world


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The path of a recipe; the module of its system `troubled` can be imported, also elsewhere."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        patched.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patched.chdir(folder)
        # Each training ends with a collection, which then leaves out what the libraries hold.
        gc.freeze()
        yield write_world(folder)


@pytest.fixture
def trouble(recipe):
    """`trouble(kind)` has `troubled` raise, wait or send itself a signal; None ends it."""
    file, at_work = recipe.with_name("trouble"), recipe.with_name("at-work")

    def make(kind: str | None) -> Path:
        at_work.unlink(missing_ok=True)
        file.unlink(missing_ok=True) if kind is None else file.write_text(kind)
        return at_work

    yield make
    make(None)
