"""Runs on a Ray cluster on this machine, of two workers with one CPU each."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numerals
import pytest
from rich.console import Console
from typer.testing import CliRunner

from headwise.analysis.results import Comparison
from headwise.cli import app
from headwise.runs.cluster import connected

# While the file `trouble` is there, Slow waits in its fourth step; the third leaves a checkpoint.
SLOW = """
import os, time
from pathlib import Path

import headwise as hw

TROUBLE = Path({trouble!r})
calls = 0


class Slow(hw.MultiHeadAttention):
    def combine(self, heads, inputs, choice):
        global calls
        calls += self.training
        if calls > 10:  # there are three in each step
            while TROUBLE.exists():
                TROUBLE.with_name(f"at-work-{{os.getpid()}}").write_text(str(os.getppid()))
                time.sleep(0.1)
        return super().combine(heads, inputs, choice)
"""


def free_ports(number):
    held = [socket.socket() for _ in range(number)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a cluster whose machines have a cache of their own."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    (clients,) = free_ports(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HEADWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # else the head may die as clients connect
        patched.setenv("CUDA_VISIBLE_DEVICES", "")
        patched.delenv("OMP_NUM_THREADS", raising=False)
        machine = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
        head = {"ray_client_server_port": clients, **machine}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**machine)
            yield f"ray://127.0.0.1:{clients}"
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a recipe, a module with a slow system, and the figures of `--jobs 1`."""
    folder = tmp_path_factory.mktemp("world")
    recipe = numerals.write_recipe(folder)
    slow = SLOW.format(trouble=str(folder / "trouble"))
    (folder / "slowness.py").write_text(slow, encoding="utf-8")
    with recipe.open("a", encoding="utf-8") as systems:
        systems.write("  slow: {model: {attention: slowness:Slow}}\n")
    run(folder, "one-by-one", "--jobs", "1")
    return folder


def start(world, output, *options):
    command = ["compare", "numerals.yaml", "--systems", "standard,slow", "--seeds", "1,2"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "headwise", *command, "--trust", "--output", output, *options],
        cwd=world,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(world, output, *options):
    running = start(world, output, *options)
    said, errors = running.communicate(timeout=400)
    assert running.returncode == 0, errors
    return said, errors


def figures(folder):
    """All of a comparison's runs but what the clock measured."""
    text = (folder / "comparison.json").read_text(encoding="utf-8")
    found = Comparison.model_validate_json(text)
    runs = [run.model_dump() for system in found.systems for run in system.runs]
    for run in runs:
        for record in (run, *run["history"]):
            del record["seconds"]
    return runs


def slow_at_work(world, running, folder):
    """Waits until both slow runs are in their fourth step, and the third has come home."""
    until = time.monotonic() + 300
    while (
        len(list(world.glob("at-work-*"))) < 2
        or len(list(folder.glob("slow-seed*/checkpoint-3"))) < 2
    ):
        if running.poll() is not None:
            pytest.fail("\n".join(running.communicate()))
        assert time.monotonic() < until
        time.sleep(0.1)
    return sorted(world.glob("at-work-*"))


@pytest.fixture
def trouble(world):
    file = world / "trouble"
    file.touch()
    yield file
    file.unlink(missing_ok=True)
    for path in world.glob("at-work-*"):
        path.unlink()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_whose_worker_or_process_is_killed_goes_on(world, address, trouble):
    folder = world / "killed"
    running = start(world, folder.name, "--on", address)
    first, second = slow_at_work(world, running, folder)
    os.kill(int(first.read_text()), signal.SIGKILL)  # the actor, and with it all that it holds
    os.kill(int(second.name.removeprefix("at-work-")), signal.SIGKILL)
    trouble.unlink()
    said, errors = running.communicate(timeout=400)
    assert running.returncode == 0, errors
    assert " ".join(said.split()).count("goes on from checkpoint-3 on another") == 2
    assert "its worker was lost" in said and "SIGKILL" in said
    assert figures(folder) == figures(world / "one-by-one")
    assert not list(folder.rglob(".[!.]*"))  # locks, and what is half written


@pytest.mark.slow
@pytest.mark.cluster
def test_ctrl_c_stops_the_cluster_and_the_same_command_goes_on(world, address, trouble):
    folder = world / "stopped"
    running = start(world, folder.name, "--on", address)
    slow_at_work(world, running, folder)
    os.killpg(running.pid, signal.SIGINT)
    time.sleep(3)
    trouble.unlink()  # the step at hand is finished
    _, errors = running.communicate(timeout=200)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    errors = " ".join(errors.split())
    assert errors.count("stopped at step 4") == 2
    assert "The same command goes on from here." in errors
    assert len(list(folder.glob("slow-seed*/checkpoint-4"))) == 2
    run(world, folder.name, "--on", address)
    assert figures(folder) == figures(world / "one-by-one")


@pytest.mark.slow
@pytest.mark.cluster
def test_tries_are_trained_there_too(world, address):
    options = ("--tune", "training.learning_rate=3e-3,1e-3", "--systems", "standard")
    run(world, "tuned", "--on", address, *options, "--seeds", "1")
    run(world, "tuned-here", *options, "--seeds", "1")
    assert figures(world / "tuned") == figures(world / "tuned-here")
    tries = world / "tuned" / "tries" / "standard"
    assert len(list(tries.glob("*/try.json"))) == 2
    assert not list(tries.rglob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.cluster
def test_a_machine_with_another_version_is_named(address, monkeypatch):
    monkeypatch.setattr("headwise.runs.cluster.versions", lambda: {"torch": "1.0"})
    with (
        pytest.raises(ValueError, match=r"has torch .*, expected 1\.0 as on this machine"),
        connected(address, Console(quiet=True)),
    ):
        pass


@pytest.mark.parametrize(
    "address", ["head:10001", "ray://head", "ray://:10001", "http://head:10001", "ray://head:a"]
)
def test_an_address_is_that_of_a_head_and_its_port(address):
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match="expected ray://HOST:PORT"), connected(address, None):
        pass


def test_where_no_cluster_is_the_command_says_so_before_it_trains(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    (port,) = free_ports(1)
    monkeypatch.chdir(tmp_path)
    recipe = numerals.write_recipe(tmp_path)
    command = ["compare", str(recipe), "--on", f"ray://127.0.0.1:{port}", "--output", "runs"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 2
    assert "where nothing answers" in found.output
    assert not Path("runs").exists()


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ValueError, match=r'pip install "headwise\[cluster\]"'),
        connected("ray://head:10001", None),
    ):
        pass


def test_processes_of_one_run_do_not_share_a_cluster(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="without torchrun"), connected("ray://h:1", None):
        pass
