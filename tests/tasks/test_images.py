"""Images: what is read of files, what is scored, measured, described and drawn."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from support.data_files import png

from headwise.data.images import read_pixels
from headwise.tasks.images import ImageRecipe, Images, sample_images, specialisation
from headwise.tasks.task import PredictRequest

GREY = {"size": 4, "mode": "grey"}
SHARES = {"validation_fraction": 0.2, "test_fraction": 0.2}
SIDES = {"left": 0, "right": 1}
MODEL = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1, "dropout": 0.0}


def write_images(folder, seed=0):
    folder.mkdir(parents=True)
    for i, image in enumerate(np.random.default_rng(seed).integers(0, 256, (30, 4, 4, 3))):
        (folder / f"{i:02}.png").write_bytes(png(image.astype(np.uint8)))
    return {**SHARES, "files": {"train": str(folder)}}


def recipe_of(data, attention="standard", **evaluation):
    recipe = {"task": "images", "data": data, "training": {"max_steps": 1}}
    recipe |= {"model": {**MODEL, "attention": attention}, "palette": {"colors": 5}}
    return ImageRecipe.model_validate({**recipe, "evaluation": {"samples": 0, **evaluation}})


@pytest.fixture
def pairs(tmp_path):
    """Makes a task on images of noise of 4×8 pixels, of two folders, and a model."""
    halves = {side: write_images(tmp_path / side, seed) for side, seed in SIDES.items()}

    def make(*attention, **evaluation):
        data = {"path": "pairs", "options": halves, **GREY}
        recipe = recipe_of(data, *attention, **evaluation)
        task = Images(recipe)
        torch.manual_seed(0)
        model = task.build_model(recipe)
        for parameter in model.parameters():  # gates that start at zero decide something
            torch.nn.init.normal_(parameter, std=0.3)
        return task, model.eval()

    return make


# --- what is read -----------------------------------------------------------------------------


def test_litter_in_a_folder_is_passed_over_and_bad_files_are_named(tmp_path):
    folder = tmp_path / "my [images]"
    data = {**GREY, **write_images(folder / "cats"), "files": {"train": str(folder)}}
    for name in (".DS_Store", "cats/._01.png", "cats/Thumbs.db", "cats/notes.txt", "cats/cut.png"):
        (folder / name).write_bytes(b"\0\1")
    (folder / "cats" / "UPPER.PNG").write_bytes((folder / "cats" / "03.png").read_bytes())
    with pytest.warns(UserWarning, match=r"cut\.png cannot be read .*: it is left out$"):
        task = Images(recipe_of(data))
    assert sum(len(task.splits[part]) for part in task.splits) == 31
    assert task.facts["train"]["left out"] == 1


def test_modes_of_all_kinds_come_as_they_look(tmp_path):
    def read(picture, name="a.png", **options):
        picture.save(tmp_path / name, **options)
        return read_pixels({"bytes": None, "path": str(tmp_path / name)}, (2, 2, 3))

    assert (read(Image.fromarray(np.zeros((2, 2, 4), np.uint8))) == 255).all()  # transparent
    deep = np.full((2, 2), 200 << 8, np.uint16)
    assert (read(Image.fromarray(deep)) == 200).all()
    assert (read(Image.fromarray(deep), "a.pgm") == 200).all()
    assert (read(Image.new("1", (2, 2), 1)) == 255).all()
    upright = Image.fromarray(np.array([[0, 255], [0, 255]], np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 3  # it was photographed upside down
    assert (read(upright, exif=exif)[..., 0] == [[255, 0], [255, 0]]).all()


# --- scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["mae", {"system": "moa", "size": "2K4E4D"}])
def test_bits_per_dimension_are_those_of_a_plain_loop(pairs, attention):
    task, model = pairs(attention)
    items, bits, pixels = task.splits["test"], 0.0, 0
    for item in items:
        ids = task.collate([item])["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0].double().log_softmax(-1)
        for before, color in zip(logits, ids[0, 1:].tolist(), strict=False):
            bits, pixels = bits - float(before[color]) / math.log(2), pixels + 1
    assert pixels == 32 * len(items)
    (score,) = task.evaluate(model, "test", task.recipe.evaluation).scores
    assert score.value == pytest.approx(bits / pixels, rel=1e-4) and score.lower_is_better


@pytest.mark.parametrize("ahead", [False, True])
def test_the_specialisation_is_its_equation(ahead):
    weights = torch.rand(2, 3, 4, 5, dtype=torch.double)
    rows = [
        ((place + ahead) % 4 >= 2, c)
        for image in weights
        for place, c in enumerate(image.flatten(0, 1))
    ]
    rows = [row for place, row in enumerate(rows) if not ahead or place % 12 < 11]
    mean = sum(c for _, c in rows) / len(rows)
    sides = [[c for is_right, c in rows if is_right == right] for right in (False, True)]
    between = sum(len(cs) * ((sum(cs) / len(cs) - mean) ** 2).sum() for cs in sides)
    expected = between / sum(((c - mean) ** 2).sum() for _, c in rows)
    assert specialisation(weights, predicted=ahead) == pytest.approx(float(expected))
    assert specialisation(torch.full((2, 3, 4, 5), 0.2)) == 0


def test_figure_2_is_measured_where_pixels_are_read(pairs, monkeypatch):
    """Weights made by hand: mechanism 0 has the left pixels, which stand behind `<bos>`."""
    task, model = pairs({"system": "tim", "layers": "all"})
    is_left = torch.cat([torch.tensor([0.5]), (torch.arange(32) % 8 < 4).float()])
    weights = torch.stack([is_left, 1 - is_left], -1)
    monkeypatch.setattr(
        model.decoder.layers[0].system, "_compete", lambda h: weights.expand(len(h), -1, -1)
    )
    measured = task.monitor(model)
    assert measured["specialisation"] == measured["specialisation, layer 0"] == pytest.approx(1)
    assert measured["specialisation, predicted"] < 0.6
    side, names = task.describe(task.collate([task.splits["test"][0]]))["decoder"].classes["side"]
    assert names == ["left", "right"] and (side[0, 1:] == 1 - is_left[1:]).all() and side[0, 0] < 0


# --- drawing ----------------------------------------------------------------------------------


def test_draws_depend_on_the_seed_alone_and_are_colours(pairs, tmp_path):
    task, model = pairs(seed=3)
    drawn = sample_images(model, task.palette, task.recipe.evaluation, 5)
    torch.rand(7)
    assert (drawn == sample_images(model, task.palette, task.recipe.evaluation, 5)).all()
    other = task.recipe.evaluation.model_copy(update={"seed": 4})
    assert (drawn != sample_images(model, task.palette, other, 5)).any()
    assert drawn.shape == (5, 4, 8, 3) and np.isin(drawn, task.palette.colors).all()
    task.save(tmp_path)
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))  # of a model that diverged
    request = PredictRequest(number=3, output=tmp_path / "drawn.png")
    (line,) = Images.predict(tmp_path, task.recipe, model, request)
    assert line == f"written: {request.output}"
    assert Image.open(request.output).format == "PNG"
