"""What every test stands on: one thread, one seed, no network, profiles of hypothesis, golden."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

torch.set_num_threads(1)  # the tests are small, and pytest-xdist runs several of them at once

# `make test &` and nohup have it ignored, while tests send it to see what happens.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing is looked up in a hub, and what is prepared of data is kept for this process alone.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
_CACHE = tempfile.TemporaryDirectory(prefix="headwise-tests-")
os.environ["HF_DATASETS_CACHE"] = _CACHE.name

_ANY_SPEED = {"deadline": None, "suppress_health_check": list(HealthCheck)}
# The same examples each time; to look for a smaller one that fails too would take minutes.
_SAME = {
    "derandomize": True,
    "database": None,
    "phases": [Phase.explicit, Phase.generate],
    **_ANY_SPEED,
}
settings.register_profile("quick", max_examples=2, **_SAME)
settings.register_profile("ci", max_examples=10, **_SAME)
settings.register_profile("long", max_examples=200, print_blob=True, **_ANY_SPEED)
settings.load_profile("ci")  # `--hypothesis-profile` names another

GOLDEN = Path(__file__).parent / "golden.json"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write golden.json anew")


@pytest.fixture(autouse=True)
def _seed():
    """Every test draws the same random numbers, alone or in a run of all."""
    # Not torch.manual_seed, which keeps a traceback for each kind of device that is not there.
    torch.default_generator.manual_seed(0)


@pytest.fixture
def golden(request):
    """`golden(name, numbers)` compares a list of numbers with those recorded in golden.json."""

    def compare(name: str, numbers: list[float]) -> None:
        recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        if request.config.getoption("--update-golden"):
            recorded[name] = [float(f"{number:.7g}") for number in numbers]
            GOLDEN.write_text(json.dumps(recorded, indent=0, sort_keys=True) + "\n")
            return
        # Processors round otherwise, and no change of a start or a default is as small.
        assert numbers == pytest.approx(recorded[name], rel=1e-4, abs=1e-7)

    return compare
