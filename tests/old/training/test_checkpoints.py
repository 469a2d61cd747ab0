"""Checkpoints: damaged ones are left out, the right ones stay, the right weights are kept."""

import shutil
import signal
from functools import partialmethod
from itertools import count

import pytest
import torch
import toy
from safetensors.torch import load_file

from headwise.heads.mae import GateSettings
from headwise.models.for_tasks import Seq2SeqLM
from headwise.training.checkpoints import (
    CheckpointError,
    checkpoints,
    why_unreadable,
)
from headwise.training.interrupted import Interrupted
from headwise.training.trainer import Trainer

FILES = (
    "trainer_state.json",
    "config.json",
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped behind its second checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    toy.train_until(folder, 8)
    assert names(folder) == ["checkpoint-4", "checkpoint-8"]
    return folder


@pytest.fixture
def damaged(stopped, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(stopped, tmp_path / "run")


def weights_in(folder):
    """The weights in a folder, in one file or several."""
    return {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}


def names(folder):
    return [path.name for path in checkpoints(folder)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run, not stopped."""
    return toy.train(tmp_path_factory.mktemp("whole"), toy.model(), toy.settings())


def go_on(folder):
    """Trains on; returns the run and what the console says of damage."""
    return toy.said(folder, toy.model(), toy.settings())


def missing(path):
    path.unlink()


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def zeroed(path):
    """As a file may be after a power cut."""
    path.write_bytes(b"\0" * path.stat().st_size)


# Damage


@pytest.mark.parametrize("name", FILES)
def test_what_cannot_be_read_is_found_and_the_file_named(damaged, name):
    file = damaged / "checkpoint-8" / name
    content = file.read_bytes()
    for damage, said in (
        (missing, f"{name} is missing"),
        (lambda path: path.write_bytes(b""), f"{name} cannot be read: "),
        (lambda path: cut(path, 0.99), f"{name} cannot be read: "),
        (zeroed, f"{name} cannot be read: "),
    ):
        damage(file)
        assert why_unreadable(file.parent).startswith(said)
        file.write_bytes(content)
    assert why_unreadable(file.parent) == ""


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "trainer_state.json"])
@pytest.mark.parametrize("damage", [missing, cut, zeroed])
def test_a_run_goes_on_from_the_last_whole_checkpoint(damaged, whole, name, damage):
    damage(damaged / "checkpoint-8" / name)
    run, said = go_on(damaged)
    assert f"training: checkpoint-8 cannot be used ({name} " in said
    assert f"the run goes on from checkpoint-4. What was left out is in {damaged}" in said
    assert names(damaged) == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]
    assert (damaged / "damaged-checkpoint-8").is_dir()
    toy.assert_same(run, whole)
    assert go_on(damaged)[1] == ""


def test_without_a_whole_checkpoint_it_starts_anew(damaged, whole):
    cut(damaged / "checkpoint-4" / "optimizer.pt")
    shutil.rmtree(damaged / "checkpoint-8")
    (damaged / "checkpoint-8").mkdir()
    run, said = go_on(damaged)
    assert "checkpoint-8 cannot be used (trainer_state.json is missing) and checkpoint-4" in said
    assert "cannot be used (optimizer.pt cannot be read: " in said
    assert ": the run starts anew." in said
    toy.assert_same(run, whole)


# What stays


@pytest.mark.parametrize("keep", [1, 2])
def test_the_latest_and_the_best_stay(tmp_path, keep):
    run, best = train_beyond_the_best(tmp_path, keep_checkpoints=keep)
    assert best == 2
    latest = [f"checkpoint-{step}" for step in (8, 10, 12)][-keep:]
    assert names(tmp_path) == ["checkpoint-2", *latest]
    assert run.steps == 12


def train_beyond_the_best(folder, **options):
    """The run, and the step of its best validation loss."""
    how = {"evaluate_every": 2, "warmup_steps": 0, "schedule": "constant", "learning_rate": 0.02}
    data = toy.another_task()
    run = toy.train(folder, toy.model(), toy.settings(**how | options), data=data)
    losses = {step: loss for step, kind, loss in toy.curve(run) if kind == "eval_loss"}
    return run, min(losses, key=losses.get)


def test_a_checkpoint_between_two_validations_goes_when_the_run_goes_on(tmp_path):
    """Of an average it would be one more, and another than in a run that was not stopped."""
    calls = count(1)

    def stop(items):
        if next(calls) == 8:
            signal.raise_signal(signal.SIGINT)
        return toy.join(items)

    how = toy.settings(evaluate_every=4, final_model="average", average_last=3, keep_checkpoints=3)
    with pytest.raises(Interrupted, match="stopped at step"):
        toy.train(tmp_path, toy.model(), how, stop)
    (stopped,) = set(names(tmp_path)) - {"checkpoint-4"}
    toy.train(tmp_path, toy.model(), how)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in (4, 8, 12)]
    assert stopped not in names(tmp_path)


def test_a_checkpoint_between_two_validations_goes_after_a_kill_too(tmp_path, monkeypatch):
    """The run is killed when its last checkpoint has its name, before it removes that one."""
    how = toy.settings(max_steps=10, final_model="average", average_last=2, keep_checkpoints=2)
    expected = toy.train(tmp_path / "whole", toy.model(), how)
    folder = tmp_path / "killed"

    def stop(items):
        if (folder / "checkpoint-8").is_dir():
            signal.raise_signal(signal.SIGINT)
        return toy.join(items)

    def killed(trainer, run):
        if trainer.state.global_step == 10:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="stopped at step 9"):
        toy.train(folder, toy.model(), how, stop)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "remove_stops", killed)
        with pytest.raises(KeyboardInterrupt):
            toy.train(folder, toy.model(), how)
    assert "checkpoint-9" in names(folder)
    toy.assert_same(toy.train(folder, toy.model(), how), expected)


def test_a_best_checkpoint_that_is_gone_is_missed_before_training(tmp_path, monkeypatch):
    _, best = train_beyond_the_best(tmp_path, keep_checkpoints=2)
    for name in ("model", "checkpoint-12", f"checkpoint-{best}"):
        shutil.rmtree(tmp_path / name)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train", None)
        with pytest.raises(CheckpointError, match=r"-2 is missing.* or delete checkpoint-10 too"):
            train_beyond_the_best(tmp_path, keep_checkpoints=2)
    # The best one may have made room for a better one, which was damaged.
    (tmp_path / "damaged-checkpoint-12").mkdir()
    with pytest.raises(CheckpointError, match="delete checkpoint-10, checkpoint-12 too"):
        train_beyond_the_best(tmp_path, keep_checkpoints=2)


# Which weights are kept


def test_the_final_model_is_the_best_or_the_last(tmp_path):
    kept = {}
    for choice in ("best", "last"):
        run, best = train_beyond_the_best(tmp_path / choice, final_model=choice)
        assert best != run.steps
        step = best if choice == "best" else run.steps
        kept[choice] = load_file(tmp_path / choice / "model" / "model.safetensors")
        assert_equal(kept[choice], toy.weights(tmp_path / choice, step))
        assert_equal(kept[choice], run.model.state_dict())
    assert not torch.equal(
        kept["best"]["encoder.embedding.weight"],
        kept["last"]["encoder.embedding.weight"],
    )


@pytest.mark.parametrize("max_shard_size", ["50GB", "2KB"])  # the second divides the weights
def test_the_final_model_is_the_average_of_the_last(tmp_path, monkeypatch, max_shard_size):
    save = partialmethod(Seq2SeqLM.save_pretrained, max_shard_size=max_shard_size)
    monkeypatch.setattr(Seq2SeqLM, "save_pretrained", save)
    how = toy.settings(
        evaluate_every=3,
        final_model="average",
        average_last=3,
        keep_checkpoints=3,
        mae=GateSettings(period=1),
    )
    run = toy.train(tmp_path, toy.model("mae"), how)
    parts = [weights_in(tmp_path / f"checkpoint-{step}") for step in (6, 9, 12)]
    kept = weights_in(tmp_path / "model")
    assert (len(list(tmp_path.glob("checkpoint-6/*.safetensors"))) > 1) == (max_shard_size == "2KB")
    assert not why_unreadable(tmp_path / "checkpoint-6")
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


@pytest.mark.parametrize("choice", ["best", "average"])
def test_what_the_final_model_is_made_of_is_trained_again_if_it_is_damaged(tmp_path, choice):
    how = {"final_model": choice} | ({"average_last": 2} if choice == "average" else {})
    run, best = train_beyond_the_best(tmp_path, keep_checkpoints=6, **how)
    kept = load_file(tmp_path / "model" / "model.safetensors")
    # While the model is whole, it needs no checkpoint but the last.
    source = tmp_path / f"checkpoint-{best if choice == 'best' else 10}"
    zeroed(source / "model.safetensors")
    train_beyond_the_best(tmp_path, keep_checkpoints=6, **how)
    assert not list(tmp_path.glob("damaged-*"))
    shutil.rmtree(tmp_path / "model")
    again, _ = train_beyond_the_best(tmp_path, keep_checkpoints=6, **how)
    steps = range(2, 13, 2)
    lost = [step for step in steps if step >= int(source.name.removeprefix("checkpoint-"))]
    aside = {f"damaged-checkpoint-{step}" for step in lost}
    assert {path.name for path in tmp_path.glob("damaged-*")} == aside
    assert names(tmp_path) == [f"checkpoint-{step}" for step in steps]
    assert toy.curve(again) == toy.curve(run)
    assert_equal(load_file(tmp_path / "model" / "model.safetensors"), kept)


def assert_equal(state, other):
    """Where both have a tensor (a checkpoint has tied ones once), it is the same."""
    shared = state.keys() & other.keys()
    assert len(shared) > 30
    assert [name for name in shared if not torch.equal(state[name], other[name])] == []


def test_stopped_while_the_final_model_is_written_it_is_written_in_the_end(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    how = toy.settings(evaluate_every=6, final_model="average", average_last=2)
    with monkeypatch.context() as patched:
        patched.setattr("headwise.training.run.average_checkpoints", stop)
        with pytest.raises(KeyboardInterrupt):
            toy.train(tmp_path, toy.model(), how)
    names = ["checkpoint-12", "checkpoint-6"]
    assert sorted(path.name for path in tmp_path.glob("*")) == names
    run = toy.train(tmp_path, toy.model(), how)
    assert sorted(path.name for path in tmp_path.glob("*")) == [*names, "model"]
    assert run.steps == 12
