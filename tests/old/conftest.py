import atexit
import gc
import os
import shutil
import signal
import tempfile

import numerals
import pytest
import torch

torch.set_num_threads(1)  # the tests are small, and pytest-xdist runs several of them at once


# `make test &` and nohup have it ignored, while tests send it to see what happens.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A test need not outlast a power cut, and to wait for the disk takes longer than tiny trainings do.
os.fsync = lambda descriptor: None


if "PYTEST_XDIST_WORKER" not in os.environ:
    # What tests prepare of data goes into a cache of its own, which the workers of pytest-xdist
    # share.
    os.environ["HEADWISE_CACHE"] = tempfile.mkdtemp(prefix="headwise-tests-")
    atexit.register(shutil.rmtree, os.environ["HEADWISE_CACHE"], ignore_errors=True)


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "slow: takes seconds; `make test` leaves it to `make test-slow`",
    )
    config.addinivalue_line(
        "markers",
        "cluster: trains on a Ray cluster; `make test-slow` leaves it to `make test-cluster`",
    )


def collect(*generation, collect=gc.collect):
    """Collects garbage; what is left is not looked at again."""
    found = collect(*generation)
    gc.freeze()
    return found


# Every training ends with a collection, which would go through all that the libraries and earlier
# tests hold: a tenth of a second, as long as the training of a tiny model.
gc.collect = collect


def pytest_collection_finish(session):
    gc.freeze()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a corpus and its recipe, numerals.yaml."""
    folder = tmp_path_factory.mktemp("world")
    numerals.write_recipe(folder)
    return folder


@pytest.fixture(scope="session")
def few_rounds():
    """Comparisons measure times as briefly as they can."""
    from headwise.analysis.speed import Rounds  # here, since not every session needs it

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headwise.runs.comparing.ROUNDS", Rounds(1, 1))
        yield


@pytest.fixture(autouse=True)
def _seed():
    """Every test draws the same random numbers, alone or in a run of all."""
    # Not torch.manual_seed, which keeps a traceback for each kind of device that is not there.
    torch.default_generator.manual_seed(0)
