"""The task of speech enhancement: its data, scores, pictures and training."""

import importlib.util
import json
import math
import signal

import numpy as np
import pytest
import soundfile
import sounds
import torch
from rich.console import Console
from transformers import set_seed

from headwise.data.sound.audio import AudioError
from headwise.tasks import metrics, speech
from headwise.tasks.significance import score_of
from headwise.tasks.speech import SpeechEnhancement, SpeechRecipe
from headwise.training.run import Interrupted, run_training

MODEL = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 3, "front_channels": [24]}
TRAINING = {"max_steps": 4, "batch_tokens": 256, "learning_rate": 1e-3, "warmup_steps": 0}
TRAINING |= {"evaluate_every": 2, "log_every": 1, "schedule": "constant"}
TIM = {"system": "tim", "layers": [1]}

needs_pesq = pytest.mark.skipif(
    importlib.util.find_spec("pesq") is None, reason="pesq is not installed: no C compiler built it"
)


def recipe(data=None, **changes):
    made = {"task": "speech-enhancement", "data": data or sounds.GENERATED, "model": MODEL}
    made |= {"training": TRAINING, **changes}
    return SpeechRecipe.model_validate(made)


def task(data=None, **changes):
    return SpeechEnhancement.prepare(recipe(data, **changes))


@pytest.fixture(scope="module")
def generated():
    return task()


@pytest.fixture(scope="module")
def network(generated):
    set_seed(1)
    return generated.build_model(recipe(model={**MODEL, "attention": TIM}).model).eval()


# --- data --------------------------------------------------------------------------------------


def test_another_corpus_has_another_digest(tmp_path):
    first = task(sounds.folders(sounds.write_speech(tmp_path)))
    assert task(sounds.folders(tmp_path)).digest() == first.digest()
    digests = {first.digest()}
    for hertz in (900, 800):  # under the same name and of the same length
        sounds.write(tmp_path / "9_a_0.wav", sounds.tone(hertz, 8_000), 8_000)
        digests.add(task(sounds.folders(tmp_path)).digest())
    assert len(digests) == 3


def test_other_noise_has_another_digest(tmp_path):
    sounds.write_speech(tmp_path / "speech")
    noise, digests = {"noise": ["recordings"], "noise_folder": str(tmp_path / "noise")}, set()
    for number in (4, 5):
        for index in range(number):
            sound = sounds.tone(300 + 100 * index, 8_000)
            sounds.write(tmp_path / "noise" / f"{index}.wav", sound, 8_000)
        digests.add(task(sounds.folders(tmp_path / "speech", **noise)).digest())
    assert len(digests) == 2


@pytest.mark.parametrize(
    "change", [{"snr": [40, 40]}, {"noise": ["brown"]}, {"seed": 7}, {"level": [-20, -20]}]
)
def test_another_mixture_has_other_items(change):
    same = {**sounds.GENERATED, "snr": [0, 0], "noise": ["white"]}
    digests = [task(data).digest_of("test") for data in (same, same, {**same, **change})]
    assert digests[0] == digests[1] != digests[2]


def test_a_test_set_that_was_made_anew_has_other_items_under_the_same_names(tmp_path):
    sounds.write_voicebank(tmp_path, "testset", count=2)
    of = {key: str(tmp_path / f"{key}_testset_wav") for key in ("noisy", "clean")}
    before = task({**sounds.GENERATED, "tests": {"own": of}})
    for path in (tmp_path / "noisy_testset_wav").iterdir():
        wave, rate = soundfile.read(path)
        sounds.write(path, wave / 2, rate)
    after = task({**sounds.GENERATED, "tests": {"own": of}})
    assert before.digest_of("own") != after.digest_of("own")
    assert before.digest_of("test") == after.digest_of("test")
    assert before.digest() == after.digest()


def test_the_size_of_a_model_comes_from_the_data(generated):
    made = recipe()
    config = generated.model_config(made.model)
    assert (config.sampling_rate, config.num_bins, config.window) == (8_000, 129, 63)
    assert SpeechEnhancement.nominal_config(made).to_dict() == config.to_dict()
    assert config.window == generated.train.lengths[0]


# --- scores ------------------------------------------------------------------------------------


def test_the_training_part_is_scored_without_repeats(tmp_path, network):
    made = task(sounds.folders(sounds.write_speech(tmp_path), noise=["white"], seconds=0.25))
    names = [made.train.name(index) for index in range(len(made.train.pieces))]
    assert len(set(names)) == len(names) == len(made.train.clean) < len(made.train)
    done = []
    settings = recipe(evaluation={"pictures": 0}).evaluation
    outcome = made.evaluate(network, made.train, settings, done.append)
    assert {len(rows) for rows in outcome.items.values()} == {len(names)}
    assert sum(done) == len(made.train)


@needs_pesq
def test_evaluation_gives_scores_and_pictures(generated, network):
    done = []
    settings = recipe(evaluation={"pictures": 1}).evaluation
    outcome = generated.evaluate(network, generated.test, settings, done.append)
    assert sum(done) == len(generated.test)
    names = [score.name for score in outcome.scores]
    assert names == [
        *("PESQ", "PESQ gain", "PESQ noisy", "SI-SDR", "SI-SDR gain", "SI-SDR noisy"),
    ]
    by_name = {score.name: score for score in outcome.scores}
    assert list(outcome.items) == names
    for name, score in by_name.items():
        rows = outcome.items[name]
        assert len(rows) == len(generated.test)
        assert score_of(rows, generated.statistic(name, settings)) == score.value
        assert score.value == pytest.approx(np.nanmean(rows))
    assert by_name["PESQ"].low <= by_name["PESQ"].value <= by_name["PESQ"].high
    gain = by_name["SI-SDR"].value - by_name["SI-SDR noisy"].value
    assert by_name["SI-SDR gain"].value == pytest.approx(gain)
    assert "narrow band" in by_name["PESQ"].note
    (picture,) = outcome.pictures
    assert picture.bytes.startswith(b"\x89PNG") and "competition" in picture.caption
    json.loads(outcome.model_dump_json())


def test_without_pesq_the_other_score_is_first(generated, network, monkeypatch):
    def refuse(name):
        raise AudioError(f"the package {name} is needed")

    monkeypatch.setattr(metrics, "speech_package", refuse)
    settings = recipe(evaluation={"pictures": 1}).evaluation
    outcome = generated.evaluate(network, generated.test, settings, lambda _: None)
    assert [score.name for score in outcome.scores] == ["SI-SDR", "SI-SDR gain", "SI-SDR noisy"]
    assert {len(rows) for rows in outcome.items.values()} == {len(generated.test)}
    assert "needs a C compiler" in SpeechEnhancement(generated.corpus).notes["PESQ"]


@needs_pesq
def test_utterances_without_speech_are_left_out(generated, network, monkeypatch):
    scores = iter([2.0, float("nan"), 2.5, float("nan"), float("nan"), 3.0])
    monkeypatch.setattr(speech, "pesq_score", lambda *_: next(scores, 2.0))
    monkeypatch.setattr(generated.train, "pieces", generated.train.pieces[:3])
    settings = recipe(evaluation={"pictures": 0}).evaluation
    table = speech._score_part(network, generated.train, settings, lambda _: None)
    # Before and after: heard, then silent; found in neither; found in the enhanced one alone.
    assert table["PESQ noisy"][0] == 2.0 and table["PESQ"][0] == 1.0
    assert table["PESQ noisy"][1] == 2.5 and table["PESQ"][1] == 1.0
    assert math.isnan(table["PESQ noisy"][2]) and math.isnan(table["PESQ"][2])
    score, rows = speech._summarise(table, 8_000)[0]
    assert np.isnan(rows[2]) and len(rows) == 3
    # Of a resample without any speech there is no score.
    statistic = generated.statistic(score.name, settings)
    scores = statistic(rows, np.array([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0]]))
    assert scores[0] == 1.0 and math.isnan(scores[1])
    assert score.value == 1.0 and score.note.endswith("1 of 3 utterances left out: no speech found")


def test_the_context_of_an_evaluation_is_what_sound_is_enhanced_with(generated, monkeypatch):
    heard = []

    def watch(model, noisy, *, context):
        heard.append(context)
        return noisy

    monkeypatch.setattr(speech, "enhance", watch)
    model = generated.build_model(recipe().model).eval()
    settings = recipe(evaluation={"context": 0.3, "pictures": 1}).evaluation
    generated.evaluate(model, generated.test, settings, lambda _: None)
    assert heard == [0.3] * (len(generated.test) + 1)


def test_further_test_sets_are_parts_of_their_own(tmp_path, network):
    sounds.write_voicebank(tmp_path, "testset", count=2)
    of = {key: str(tmp_path / f"{key}_testset_wav") for key in ("noisy", "clean")}
    made = task({**sounds.GENERATED, "tests": {"voicebank": of}})
    settings = recipe(evaluation={"pictures": 0}).evaluation
    outcome = made.evaluate(network, made.tests["voicebank"], settings, lambda _: None)
    assert len(outcome.items["SI-SDR"]) == 2
    assert made.notes["test voicebank"].startswith("2 items")
    assert "folders noisy_testset_wav, clean_testset_wav" in made.notes["test voicebank"]
    assert made.digest() == task().digest()


# --- training ----------------------------------------------------------------------------------


def train(folder, generated, collate=None):
    made = recipe(model={**MODEL, "attention": TIM, "predicts": "gain"})
    set_seed(1)
    return run_training(
        generated.build_model(made.model),
        generated.train,
        generated.validation,
        collate or generated.collate,
        made.training,
        folder,
        console=Console(quiet=True),
    )


def test_a_resumed_run_hears_the_same_noise(tmp_path, generated):
    whole = train(tmp_path / "whole", generated)
    calls = iter(range(100))

    def stop(items):
        if next(calls) == 4:  # in the second epoch, behind a validation
            signal.raise_signal(signal.SIGINT)
        return generated.collate(items)

    with pytest.raises(Interrupted):
        train(tmp_path / "stopped", generated, stop)
    run = train(tmp_path / "stopped", generated)
    curves = [
        [(record["step"], record.get("loss"), record.get("eval_loss")) for record in each.history]
        for each in (whole, run)
    ]
    assert curves[0] == curves[1] and run.steps == 4
    state = whole.model.state_dict()
    assert all(torch.equal(state[name], x) for name, x in run.model.state_dict().items())
