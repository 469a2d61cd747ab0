"""Runs on a Ray cluster of two workers, both on this machine, are those of `--jobs 1`."""

import os
import signal
import socket
import time

import pytest
from support.run_folders import OWN_CODE, has_checkpoint, headwise, missing, result, runs
from support.tiny_tasks import start

pytestmark = pytest.mark.nightly


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def address(recipe, tmp_path_factory):
    """The address of a cluster of two workers with one CPU each, and a cache of their own."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    port = free_port()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # else the head may die as clients connect
        patched.setenv("CUDA_VISIBLE_DEVICES", "")
        patched.delenv("OMP_NUM_THREADS", raising=False)
        machine = {"num_cpus": 1, "object_store_memory": 10**8, "include_dashboard": False}
        head = {"ray_client_server_port": port, **machine}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(**machine)
            yield f"ray://127.0.0.1:{port}"
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def local_runs(recipe, tmp_path_factory):
    """The runs of two systems, trained in this process one by one."""
    folder = tmp_path_factory.mktemp("runs") / "here"
    headwise(*command(recipe, folder, "standard,gated"))
    return runs(folder)


def command(recipe, folder, systems, *options):
    return ("compare", recipe, "--systems", systems, "--output", folder, *OWN_CODE, *options)


def outcome(process):
    """The status of a command, and what it said."""
    output, errors = process.communicate(timeout=400)
    return process.returncode, output + errors


def wait_for_work(process, at_work, run):
    """Waits until `troubled` is in its fourth step, behind a checkpoint.

    Returns:
        The process of the run and that of its worker.
    """
    deadline = time.monotonic() + 300
    while not at_work.exists() or not has_checkpoint(run):
        if process.poll() is not None:
            pytest.fail("\n".join(process.communicate()))
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return map(int, at_work.read_text().split())


def test_runs_on_a_cluster_are_those_of_one_process_and_one_that_raises_is_told(
    recipe, address, local_runs, tmp_path, trouble
):
    trouble("raises")
    systems = "standard,gated,troubled"
    process = start(*command(recipe, tmp_path / "runs", systems, "--ray-address", address))
    status, text = outcome(process)
    assert status == 1 and "troubled" in text and "no heads today" in text
    results = {name: result(run) for name, run in runs(tmp_path / "runs").items()}
    assert results == {name: result(run) for name, run in local_runs.items()}
    assert missing(tmp_path / "runs") == ["troubled-seed1"]


@pytest.mark.parametrize("victim", ["run", "worker"])
def test_a_run_whose_process_or_worker_is_killed_goes_on_to_the_same_result(
    recipe, address, local_runs, tmp_path, trouble, victim
):
    at_work = trouble("waits")
    folder = tmp_path / "runs"
    line = command(recipe, folder, "troubled,gated", "--ray-address", address)
    process = start(*line)
    run, worker = wait_for_work(process, at_work, folder / "troubled-seed1")
    os.kill(run if victim == "run" else worker, signal.SIGKILL)
    trouble(None)
    status, text = outcome(process)
    if status != 0:  # the next command goes on, where this one says that the run was lost
        assert victim == "run" and "troubled" in text and "SIGKILL" in text
        assert outcome(start(*line))[0] == 0
    # `troubled` is the standard system, once its trouble is over.
    assert result(folder / "troubled-seed1") == result(local_runs["standard-seed1"])
    assert result(folder / "gated-seed1") == result(local_runs["gated-seed1"])


def test_ctrl_c_stops_the_cluster_and_the_same_command_goes_on(
    recipe, address, local_runs, tmp_path, trouble
):
    at_work = trouble("waits")
    folder = tmp_path / "runs"
    line = command(recipe, folder, "troubled", "--ray-address", address)
    process = start(*line, start_new_session=True)
    wait_for_work(process, at_work, folder / "troubled-seed1")
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(3)
    trouble(None)  # the step at hand is finished
    assert outcome(process)[0] == 130
    assert not runs(folder) and has_checkpoint(folder / "troubled-seed1")
    assert outcome(start(*line))[0] == 0
    assert result(folder / "troubled-seed1") == result(local_runs["standard-seed1"])
