import os
from collections.abc import Callable, Iterator
from pathlib import Path

import chromium
import pytest
from exploring_runs import write_run
from saved_models import save_model


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes runs when they are asked for: task and system, and changes of the model, to folder."""
    found: dict[str, Path] = {}

    def made(task: str, system: str = "moa", **model: object) -> Path:
        key = f"{task} {system} {model}"
        if key not in found:
            found[key] = write_run(tmp_path_factory.mktemp(task), task, system, **model)
        return found[key]

    return made


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes folders of models of transformers when they are asked for, by their names."""
    found: dict[str, Path] = {}

    def made(name: str) -> Path:
        if name not in found:
            found[name] = save_model(tmp_path_factory.mktemp("saved") / name, name)
        return found[name]

    return made


@pytest.fixture(scope="session")
def tab() -> Iterator[chromium.Tab]:
    """A tab of a browser. Where there is none, the test is skipped, or fails if it must not be."""
    if chromium.EXECUTABLE is None:
        if os.environ.get("HEADWISE_BROWSER") == "required":
            pytest.fail("HEADWISE_BROWSER is required, and no Chromium is installed", pytrace=False)
        pytest.skip("no Chromium is installed")
    with chromium.browser() as opened:
        yield opened
