"""What stands at the positions of a batch, for every task: as many as its model's systems see."""

import math
from copy import copy
from functools import cache

import numpy as np
import pytest
import tiny_tasks
import torch

from headwise.data.images.palette import Raster
from headwise.models.decisions import record
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import TASKS, task_class
from headwise.tasks.positions import frame_positions, pixel_positions

LABELS = {
    "masked-language-modelling": {"mask"},
    "classification": {"class"},
    "probing": {"class"},
    "images": {"side", "predicted side", "height", "brightness"},
    "speech-enhancement": {"loudness", "speech"},
}


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """By name, a task, its recipe, items of different lengths, and what stands there."""

    @cache
    def of(name):
        folder = tmp_path_factory.mktemp(name)
        recipe = load_recipe(str(tiny_tasks.write_recipe(name, folder))).system("moa")
        task = task_class(name).prepare(recipe)
        last = len(task.train) - 1  # of running text it is a shorter block
        batch = task.collate([task.train[index] for index in (0, 1, last)])
        return task, recipe, batch, task.positions(batch)

    return of


@pytest.mark.parametrize("name", TASKS)
def test_there_are_as_many_as_the_systems_see(described, name):
    task, recipe, batch, found = described(name)
    model = task.build_model(recipe.model).eval()
    with torch.no_grad(), record(model) as decided:
        model(**batch)
    assert {place.site.partition("_")[0] for place in decided} == set(found)
    for place, (made,) in decided.items():
        positions = found[place.site.partition("_")[0]]
        assert made.weights.shape[:2] == positions.shape
        classes = (numbers for numbers, _ in positions.classes.values())
        numbers = (positions.tokens, *classes, *positions.levels.values())
        for values in (each for each in numbers if each is not None):
            assert tuple(values.shape) in {positions.shape, positions.shape[:1]}
        if made.padding is not None and positions.tokens is not None:
            pads = positions.tokens == model.config.pad_token_id
            assert torch.equal(pads, made.padding)


@pytest.mark.parametrize("name", TASKS)
def test_every_token_has_a_name_and_every_class_too(described, name):
    _, _, _, found = described(name)
    for positions in found.values():
        for classes, names in positions.classes.values():
            assert int(classes.max()) < len(names)
        if positions.tokens is not None:
            assert set(positions.tokens.unique().tolist()) <= set(positions.names)
            assert all(each and each.isprintable() for each in positions.names.values())
    labels = {label for positions in found.values() for label in positions.classes}
    assert labels == LABELS.get(name, set())


def test_a_decoder_reads_the_token_before_the_one_that_it_predicts(described):
    _, _, batch, found = described("translation")
    read, labels = found["decoder"].tokens, batch["labels"]
    assert [found["decoder"].names[number] for number in set(read[:, 0].tolist())] == ["<bos>"]
    known = labels[:, 1:] != -100
    assert torch.equal(read[:, 1:][known], labels[:, :-1][known])
    assert torch.equal(found["encoder"].tokens, batch["input_ids"])


def test_masks_are_told_from_predicted_tokens_that_are_shown(described):
    task, _, batch, found = described("masked-language-modelling")
    positions = found["encoder"]
    classes, names = positions.classes["mask"]
    for row, (tokens, labels) in enumerate(zip(batch["input_ids"], batch["labels"], strict=True)):
        for column, (token, label) in enumerate(zip(tokens, labels, strict=True)):
            expected = "not predicted"
            if label != -100:
                expected = "masked" if token == task.mask_token_id else "shown"
            assert names[classes[row, column]] == expected
    assert len(classes.unique()) > 1


def test_a_pixel_has_a_side_a_height_and_a_brightness():
    raster = Raster(3, 4, np.array([[0, 0, 0], [0, 200, 0], [255, 255, 255]], np.uint8))
    ids = torch.tensor([[3, *([0, 1, 2, 0] * 3)]])
    found = pixel_positions(ids, raster)
    assert found.names == {0: "#000000", 1: "#00c800", 2: "#ffffff", 3: "<bos>"}
    assert found.classes["side"][0].tolist() == [[-1, *([0, 0, 1, 1] * 3)]]
    assert found.classes["height"][0].tolist() == [[-1, *[0] * 4, *[1] * 8]]
    # 0.587 of 200 is 117, in the third fifth of 255.
    assert found.classes["brightness"][0].tolist() == [[-1, *([0, 2, 4, 0] * 3)]]


def test_the_loudness_of_frames_is_that_of_its_definition():
    floor = 0.1
    noisy = torch.tensor([[[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]])
    clean = torch.tensor([[[0.0, 2.0], [0.0, 0.021], [0.0, 0.0]]])
    found = frame_positions(noisy, torch.log(clean + floor), floor)
    decibels = [10 * math.log10(energy) for energy in (25, 0.25, 0.01)]
    assert found.levels["loudness of noisy speech"][0].tolist() == pytest.approx(decibels)
    assert found.classes["loudness"][0].tolist() == [[0, 3, 4]]  # 0, 20 and 34 dB below
    assert found.classes["speech"][0].tolist() == [[1, 0, 0]]


def test_padding_and_silence_are_not_speech():
    silence = torch.full((1, 2, 3), math.log(0.1))
    padding = torch.full((1, 1, 3), -100.0)
    found = frame_positions(torch.zeros(1, 3, 3), torch.cat([silence, padding], 1), 0.1)
    assert found.classes["speech"][0].tolist() == [[0, 0, 0]]
    assert found.levels["loudness of clean speech"].tolist() == [[pytest.approx(-20)] * 3]


def test_a_number_that_is_predicted_is_no_class(described):
    task, _, batch, _ = described("classification")
    regression = copy(task)
    regression.classes = None
    assert regression.positions(batch)["encoder"].classes == {}
