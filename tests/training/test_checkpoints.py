"""Checkpoints: damaged ones are named, the right ones stay, the right weights are kept."""

import json
import shutil
import signal

import pytest
import torch
import toy
from safetensors.torch import load_file, save_file

from headwise.heads.mae.rule import GateSettings
from headwise.training.checkpoints import (
    CheckpointError,
    average_checkpoints,
    check_checkpoint,
    checkpoints,
)
from headwise.training.run import Interrupted, run_training

FILES = ("trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped behind its second checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")

    def stop(items):
        if (folder / "checkpoint-8").is_dir():
            raise KeyboardInterrupt
        return toy.join(items)

    with pytest.raises(KeyboardInterrupt):
        toy.train(folder, toy.model(), toy.settings(), stop)
    assert names(folder) == ["checkpoint-4", "checkpoint-8"]
    return folder


@pytest.fixture
def damaged(stopped, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(stopped, tmp_path / "run")


def names(folder):
    return [path.name for path in checkpoints(folder)]


# Damage


def test_a_whole_checkpoint_passes(stopped):
    for checkpoint in checkpoints(stopped):
        check_checkpoint(checkpoint)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_with_the_way_out(damaged, name):
    last = damaged / "checkpoint-8"
    (last / name).unlink()
    with pytest.raises(CheckpointError) as caught:
        toy.train(damaged, toy.model(), toy.settings())
    assert f"{name} is missing" in str(caught.value)
    assert f"delete {last} to continue from the one before it" in str(caught.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_file_cut_short_is_named_with_the_way_out(damaged, name, share):
    last = damaged / "checkpoint-8"
    whole = (last / name).read_bytes()
    (last / name).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError) as caught:
        toy.train(damaged, toy.model(), toy.settings())
    assert str(last / name) in str(caught.value)
    assert f"delete {last} to continue from the one before it" in str(caught.value)


def test_the_way_out_leads_on(damaged, tmp_path):
    last = damaged / "checkpoint-8"
    (last / "optimizer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError):
        toy.train(damaged, toy.model(), toy.settings())
    shutil.rmtree(last)
    run = toy.train(damaged, toy.model(), toy.settings())
    whole = toy.train(tmp_path / "whole", toy.model(), toy.settings())
    assert toy.curve(run) == toy.curve(whole)


def test_half_written_checkpoints_are_none(stopped, tmp_path):
    for name in (".partial-checkpoint-12", "checkpoint-12.old", "checkpoint-", "model"):
        (tmp_path / name).mkdir()
    for step in (4, 30, 8):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-8", "checkpoint-30"]
    assert checkpoints(tmp_path / "nowhere") == []


# What stays


@pytest.mark.parametrize("keep", [1, 2])
def test_the_latest_and_the_best_stay(tmp_path, keep):
    run, best = train_beyond_the_best(tmp_path, keep_checkpoints=keep)
    assert best == 2
    latest = [f"checkpoint-{step}" for step in (8, 10, 12)][-keep:]
    assert names(tmp_path) == ["checkpoint-2", *latest]
    assert run.steps == 12


def train_beyond_the_best(folder, collate=toy.join, **options):
    """A run whose validation loss is lowest early: what it learns later is another task."""
    how = toy.settings(
        evaluate_every=2, warmup_steps=0, schedule="constant", learning_rate=0.02, **options
    )
    data = toy.Reversals(40)
    for item in data.items:
        item["labels"] = [3] * (len(item["labels"]) - 1) + [2]
    run = run_training(
        toy.model(), data, toy.Reversals(8), collate, how, folder, console=toy.quiet()
    )
    losses = {step: loss for step, kind, loss in toy.curve(run) if kind == "eval_loss"}
    return run, min(losses, key=losses.get)


# Which weights are kept


def test_the_final_model_is_the_best_or_the_last(tmp_path):
    kept = {}
    for choice in ("best", "last"):
        run, best = train_beyond_the_best(tmp_path / choice, final_model=choice)
        assert best != run.steps
        step = best if choice == "best" else run.steps
        kept[choice] = load_file(tmp_path / choice / "model" / "model.safetensors")
        assert_equal(kept[choice], weights(tmp_path / choice, step))
        assert_equal(kept[choice], run.model.state_dict())
    assert not torch.equal(
        kept["best"]["encoder.embedding.weight"], kept["last"]["encoder.embedding.weight"]
    )


def test_the_best_stays_the_best_after_a_stop(tmp_path):
    whole, best = train_beyond_the_best(tmp_path / "whole", final_model="best")

    def stop(items):
        if (tmp_path / "stopped" / "checkpoint-6").is_dir():
            signal.raise_signal(signal.SIGINT)
        return toy.join(items)

    with pytest.raises(Interrupted, match="stopped at step 7"):
        train_beyond_the_best(tmp_path / "stopped", collate=stop)
    run, again = train_beyond_the_best(tmp_path / "stopped")
    assert best == again
    assert toy.curve(run) == toy.curve(whole)
    assert_equal(run.model.state_dict(), whole.model.state_dict())


def test_the_final_model_is_the_average_of_the_last(tmp_path):
    how = toy.settings(
        evaluate_every=3,
        final_model="average",
        average_last=3,
        keep_checkpoints=3,
        mae=GateSettings(period=1),
    )
    run = toy.train(tmp_path, toy.model("mae"), how)
    parts = [weights(tmp_path, step) for step in (6, 9, 12)]
    kept = load_file(tmp_path / "model" / "model.safetensors")
    assert kept.keys() == parts[0].keys()
    for name, tensor in kept.items():
        if tensor.is_floating_point():
            mean = torch.stack([part[name].double() for part in parts]).mean(0)
            torch.testing.assert_close(tensor, mean.float(), rtol=0, atol=0)
        else:
            assert torch.equal(tensor, parts[-1][name])
    weight = "encoder.embedding.weight"
    assert not torch.equal(kept[weight], parts[-1][weight])
    assert_equal(kept, run.model.state_dict())


def test_integers_are_those_of_the_last_checkpoint(tmp_path):
    for step, value in ((1, 1.0), (2, 4.0)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        tensors = {"weight": torch.full((2,), value), "count": torch.tensor(step)}
        save_file(tensors, folder / "model.safetensors")
    mean = average_checkpoints(checkpoints(tmp_path))
    assert mean["weight"].tolist() == [2.5, 2.5]
    assert mean["weight"].dtype == torch.float32
    assert mean["count"] == 2


def test_an_average_names_the_checkpoint_that_is_cut_short(damaged):
    cut = damaged / "checkpoint-4" / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"checkpoint-4.*cannot be read"):
        average_checkpoints(checkpoints(damaged))


def test_the_best_checkpoint_cut_short_is_named(tmp_path):
    _, best = train_beyond_the_best(tmp_path)
    cut = tmp_path / f"checkpoint-{best}" / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=rf"checkpoint-{best}.*cannot be read"):
        train_beyond_the_best(tmp_path)
    shutil.rmtree(cut.parent)
    run, _ = train_beyond_the_best(tmp_path)
    assert_equal(run.model.state_dict(), weights(tmp_path, run.steps))


def weights(folder, step):
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


def assert_equal(state, other):
    """Where both have a tensor (a checkpoint has tied ones once), it is the same."""
    shared = state.keys() & other.keys()
    assert len(shared) > 30
    assert [name for name in shared if not torch.equal(state[name], other[name])] == []


def test_nothing_half_written_is_left(stopped, damaged):
    run = toy.train(damaged, toy.model(), toy.settings())
    assert not list(damaged.rglob(".partial-*"))
    assert (damaged / "model" / "config.json").is_file()
    state = json.loads((checkpoints(damaged)[-1] / "trainer_state.json").read_text())
    assert state["global_step"] == run.steps == 12


def test_stopped_while_the_final_model_is_written_it_is_written_in_the_end(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    how = toy.settings(evaluate_every=6, final_model="average", average_last=2)
    with monkeypatch.context() as patched:
        patched.setattr("headwise.training.run.save_file", stop)
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path, toy.model(), how)
    names = ["checkpoint-12", "checkpoint-6"]
    assert sorted(path.name for path in tmp_path.glob("*")) == names
    run = toy.train(tmp_path, toy.model(), how)
    assert sorted(path.name for path in tmp_path.glob("*")) == [*names, "model"]
    assert run.steps == 12
