"""The task of images: batches, scores, pictures, the measure of specialisation."""

import hashlib
import io
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import noise, write_folder
from PIL import Image

from headwise.data.images.corpus import ImageCorpus, ImagePart
from headwise.data.images.palette import Raster
from headwise.data.sources import CorpusError
from headwise.models.plan import SYSTEMS
from headwise.recipes import load_recipe
from headwise.tasks.drawing import sample_images, sheet
from headwise.tasks.images import ImageEvaluation, ImageModel, ImageRecipe, Images
from headwise.tasks.task import Wish

SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1, "dropout": 0.0}
PLANS = {
    **{name: name for name in SYSTEMS},
    "tim": {"system": "tim", "layers": "all"},
    "moa": {"system": "moa", "size": "2K4E4D"},
}
NOTHING = {"samples": 0, "completions": 0, "maps": 0}


def quiet(number):
    return None


def make_task(height=4, width=6, channels=3, *, has_halves=True, colors=5, number=9):
    """Images of noise; of two sources as far as the task knows."""
    draw = np.random.default_rng(0)
    raster = Raster(height, width, draw.integers(0, 256, (colors, channels), np.uint8))
    parts = [
        raster.colors[draw.integers(0, colors, (n, height, width))] for n in (number, 4, number)
    ]
    found = (ImagePart(part, hashlib.sha256(part.data).hexdigest()) for part in parts)
    corpus = ImageCorpus(*found, notes={"images": "noise"}, digest="noise")
    return Images(corpus, raster, has_halves=has_halves)


def make_model(task, plan="standard"):
    torch.manual_seed(0)
    model = task.build_model(ImageModel(**SIZES, attention=plan))
    for parameter in model.parameters():  # gates and routers that start at zero decide something
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def evaluate(task, model, **settings):
    return task.evaluate(model, task.test, ImageEvaluation(**settings), quiet)


# --- data -------------------------------------------------------------------------------------


def test_a_batch_predicts_every_pixel_once():
    task = make_task()
    batch = task.collate([task.train[0], task.train[3]])
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 25)
    assert (batch["input_ids"][:, 0] == task.raster.bos_token_id).all()
    assert (batch["labels"][:, 0] == -100).all()
    assert torch.equal(batch["labels"][:, 1:], batch["input_ids"][:, 1:])
    assert task.train.lengths.tolist() == [25] * 9
    packed = pickle.dumps(task.train)  # as it is sent to a worker
    assert len(packed) < 1_000 and torch.equal(pickle.loads(packed).ids, task.train.ids)


def test_a_run_keeps_its_palette(tmp_path):
    recipe = ImageRecipe(training={"max_steps": 1}, palette={"colors": 9})
    task = Images.prepare(recipe)
    task.save(tmp_path)
    other = recipe.model_copy(update={"palette": recipe.palette.model_copy(update={"colors": 4})})
    again = Images.prepare(other, tmp_path)
    assert np.array_equal(again.raster.colors, task.raster.colors)
    assert torch.equal(again.test.ids, task.test.ids)
    assert len(Images.prepare(other, tmp_path / "elsewhere").raster.colors) <= 4
    assert "9 colours, mean squared error" in task.notes["palette"]
    (tmp_path / "palette.json").write_text("{")
    with pytest.raises(CorpusError, match="has no palette"):
        Images.prepare(recipe, tmp_path)


def test_data_that_changed_have_another_digest(tmp_path):
    write_folder(tmp_path, noise(20))
    recipe = ImageRecipe(
        data={"corpus": "folder", "train": tmp_path, "size": 4}, training={"max_steps": 1}
    )
    before, again = Images.prepare(recipe).digest(), Images.prepare(recipe).digest()
    write_folder(tmp_path, noise(20, seed=1)[:1])
    assert before == again != Images.prepare(recipe).digest()


# --- scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("system", PLANS)
def test_bits_per_dimension_are_the_loss_in_bits(system):
    task = make_task()
    model = make_model(task, PLANS[system])
    batch = task.collate(list(task.test))
    with torch.no_grad():
        loss = model(**batch).token_loss.item()
    score, left, right, sub_pixel = evaluate(task, model, **NOTHING).scores
    assert score.name == "bits per dimension" and not score.higher_is_better
    assert score.value == pytest.approx(loss / math.log(2), rel=1e-5)
    assert score.low < score.value < score.high
    assert (left.value + right.value) / 2 == pytest.approx(score.value)
    assert sub_pixel.value == pytest.approx(score.value / 3)


def test_a_model_that_knows_nothing_has_the_bits_of_its_vocabulary():
    task = make_task(has_halves=False, channels=1)
    model = make_model(task)
    torch.nn.init.zeros_(model.lm_head.weight)
    scores = evaluate(task, model, **NOTHING).scores
    assert [score.name for score in scores] == ["bits per dimension"]
    assert scores[0].value == pytest.approx(math.log2(6))
    assert "if all colours were equally likely, it would be 2.32" in scores[0].note


def test_the_bar_goes_on_by_images(monkeypatch):
    monkeypatch.setattr("headwise.tasks.images._BATCH_TOKENS", 60)
    task = make_task()
    model = make_model(task)
    steps = []
    outcome = task.evaluate(model, task.test, ImageEvaluation(**NOTHING), steps.append)
    assert steps == [2, 2, 2, 2, 1]
    monkeypatch.undo()
    for name, rows in evaluate(task, model, **NOTHING).items.items():
        assert np.allclose(outcome.items[name], rows)


# --- pictures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("system", PLANS)
def test_what_is_drawn_of_each_system(system):
    task = make_task()
    outcome = evaluate(task, make_model(task, PLANS[system]), samples=2, completions=2, maps=2)
    expected = ["Samples", "Completions"]
    if system not in ("standard", "weighted"):  # neither weighs anything anew at each pixel
        expected.append("Map of layer 0")
    assert [picture.title for picture in outcome.pictures] == expected
    for picture in outcome.pictures:
        assert Image.open(io.BytesIO(picture.bytes)).format == "PNG" and picture.caption


@pytest.mark.parametrize(("height", "width"), [(1, 2), (2, 1), (1, 4)])
def test_the_smallest_images_are_drawn(height, width):
    task = make_task(height, width, has_halves=width > 1)
    titles = [picture.title for picture in evaluate(task, make_model(task)).pictures]
    assert titles == (["Samples", "Completions"] if height > 1 else ["Samples"])


# --- generating -------------------------------------------------------------------------------


def wish(**options):
    said = []
    return Wish(said.append, **options), said


def test_a_run_draws_images_into_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = make_task()
    model = make_model(task)
    run = tmp_path / "runs" / "standard"
    run.mkdir(parents=True)
    task.save(run)
    recipe = ImageRecipe(
        training={"max_steps": 1}, evaluation={"temperature": 0.5, "top_k": 3, "seed": 7}
    )

    asked, said = wish()
    Images.predict(run, recipe, model, asked)
    assert said == ["written: standard.png"]
    assert (tmp_path / "standard.png").read_bytes() == drawn(task, model, 16)

    asked, said = wish(number=2, output=tmp_path / "new" / "two.PNG")
    Images.predict(run, recipe, model, asked)
    assert said == [f"written: {tmp_path}/new/two.PNG"]
    assert (tmp_path / "new" / "two.PNG").read_bytes() == drawn(task, model, 2)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["two.PNG"]


def drawn(task, model, number):
    ids = sample_images(model, task.raster, number, temperature=0.5, top_k=3, seed=7)
    return sheet([("", task.raster.decode(ids))])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": ["a"]}, "--text is not for a run of images"),
        ({"output": Path("images.jpg")}, r"--output is images\.jpg, expected a name that ends in"),
    ],
)
def test_what_images_cannot_be_asked_for(tmp_path, options, message):
    task = make_task()
    task.save(tmp_path)
    saved = sorted(tmp_path.iterdir())
    recipe = ImageRecipe(training={"max_steps": 1})
    asked, said = wish(**options)
    with pytest.raises(ValueError, match=message):
        Images.predict(tmp_path, recipe, make_model(task), asked)
    assert said == [] and sorted(tmp_path.iterdir()) == saved


# --- specialisation ---------------------------------------------------------------------------


def test_what_is_measured_is_where_pixels_are_read(monkeypatch):
    """Weights made by hand: mechanism 0 has the left pixels, which stand behind the first id."""
    task = make_task()
    model = make_model(task, PLANS["tim"])
    layer = model.decoder.layers[0].system
    columns = torch.arange(24) % 6
    # The position that reads no pixel is no pixel: whatever its weights are, they do not count.
    c = torch.cat([torch.tensor([0.5]), (columns < 3).float()])
    monkeypatch.setattr(
        layer, "_compete", lambda h: torch.stack([c, 1 - c], -1).expand(len(h), -1, -1)
    )
    measured = task.measure(model)
    assert measured["specialisation"] == measured["specialisation, layer 0"] == pytest.approx(1.0)
    read, predicted = (torch.arange(24)[:-1] % 6 >= 3), (torch.arange(24)[1:] % 6 >= 3)
    sides = torch.stack([read, predicted]).double()
    predicted = pytest.approx(float(torch.corrcoef(sides)[0, 1] ** 2))
    assert measured["specialisation, predicted"] == predicted
    assert measured["specialisation, predicted, layer 0"] == predicted
    (picture,) = evaluate(task, model, **{**NOTHING, "maps": 1}).pictures
    shown = np.asarray(Image.open(io.BytesIO(picture.bytes)).convert("RGB")).astype(int)
    # The map stands below label, image and label; each pixel is 96 // 6 wide.
    top = 6 + 22 + (4 * 16 + 6) + 22
    drawn = shown[top : top + 64 : 16, 6 : 6 + 96 : 16]
    assert len(np.unique(drawn[:, :3].reshape(-1, 3), axis=0)) == 1
    assert len(np.unique(drawn[:, 3:].reshape(-1, 3), axis=0)) == 1
    assert not np.array_equal(drawn[0, 0], drawn[0, 5])


def test_it_is_measured_of_pairs_and_of_systems_that_weigh_pixels():
    pairs, plain = make_task(), make_task(has_halves=False)
    model = make_model(pairs, PLANS["tim"])
    assert 0 < pairs.measure(model)["specialisation"] < 1
    assert plain.measure(model) == {}
    assert pairs.measure(make_model(pairs)) == {}
    assert pairs.measure(make_model(pairs, "weighted")) == {}
    assert not model.training
    pairs.measure(model.train())
    assert model.training


# --- recipes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["images-pair", "images-digits"])
def test_offline_recipes_fit_the_data(name):
    file = load_recipe(name)
    task = Images.prepare(file.recipe)
    assert file.system_names[:2] == ["standard", "tim-comp"]
    items = [task.train[0], task.train[1]]
    assert len(task.train[0]) * 16 <= file.recipe.training.batch_tokens
    for system in file.system_names:
        model = task.build_model(file.system(system).model)
        assert torch.isfinite(model(**task.collate(items)).loss)


@pytest.mark.parametrize("name", ["tim-cifar10", "tim-mnist-cifar10"])
def test_the_papers_sizes(name):
    """Appendix A.1: 8 heads and 184, against 10 heads and 200 for about as many parameters."""
    file = load_recipe(name)
    sizes = {}
    for system in file.system_names:
        config = Images.nominal_config(file.system(system))
        with torch.device("meta"):
            model = Images.model_class(config)
        assert not file.system(system).model.share_embeddings  # minGPT has a matrix for each
        sizes[system] = sum(parameter.numel() for parameter in model.parameters())
        specs = [spec["system"] for spec in config.systems()["decoder_self"]]
        middle = "standard" if system == "standard" else "tim"
        assert specs == ["standard", "standard", middle, middle, middle, "standard"]
        # 24 images a batch.
        assert file.recipe.training.batch_tokens // config.max_length == 24
    assert sizes["tim-comp"] / sizes["standard"] == pytest.approx(1, abs=0.06)
    assert sizes["tim-comp"] - sizes["tim-nocomp"] == 3 * 200  # W^c of three layers
