"""Samples that a model draws, maps, and sheets of images."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from headwise.data.images.palette import Raster
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.tasks.drawing import sample_images, sheet, winner_map

RASTER = Raster(3, 4, np.arange(0, 250, 50, dtype=np.uint8)[:, None])


def tiny(attention="standard", raster=RASTER):
    torch.manual_seed(0)
    config = CausalLMConfig(
        vocab_size=len(raster.colors) + 1,
        embed_dim=16,
        num_heads=4,
        ffn_dim=16,
        layers=1,
        dropout=0.0,
        attention=attention,
        **raster.token_ids(),
    )
    return CausalLM(config)


def opened(png):
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


# --- drawing from a model ---------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["standard", "mae", {"system": "tim", "layers": "all"}])
def test_draws_depend_on_the_seed_alone(attention):
    model = tiny(attention)
    first = sample_images(model, RASTER, 5, seed=3)
    torch.rand(7)
    state = torch.get_rng_state()
    assert np.array_equal(first, sample_images(model, RASTER, 5, seed=3))
    assert torch.equal(torch.get_rng_state(), state)
    assert not np.array_equal(first, sample_images(model, RASTER, 5, seed=4))
    assert first.shape == (5, 12)


def test_every_pixel_is_a_colour_however_likely_the_first_id_is():
    model = tiny()
    with torch.no_grad():  # tied embeddings: what begins an image becomes what is likely behind it
        model.lm_head.weight[RASTER.bos_token_id] *= 100
    assert sample_images(model, RASTER, 8).max() < RASTER.bos_token_id


def test_a_model_that_diverged_draws_all_the_same():
    model = tiny()
    torch.nn.init.constant_(model.lm_head.weight, float("nan"))
    assert sample_images(model, RASTER, 8).max() < RASTER.bos_token_id


def test_draws_follow_the_model():
    """A model that has learned two images draws these two, and completes them."""
    ids = torch.tensor([[0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 0], [4, 4, 4, 0, 0, 0, 1, 1, 1, 2, 2, 2]])
    sequences = torch.cat([torch.full((2, 1), RASTER.bos_token_id), ids], dim=1)
    model = tiny()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        optimizer.zero_grad()
        model.train()(input_ids=sequences, labels=sequences).loss.backward()
        optimizer.step()
    drawn = sample_images(model, RASTER, 16, temperature=0.7)
    assert {tuple(row) for row in drawn.tolist()} == {tuple(row) for row in ids.tolist()}
    completed = sample_images(model, RASTER, 2, temperature=0.3, given=ids[:, :4])
    assert np.array_equal(completed, ids.numpy())
    sure = sample_images(model, RASTER, 12, temperature=9.0, top_k=1)
    assert len({tuple(row) for row in sure.tolist()}) == 1


# --- maps -------------------------------------------------------------------------------------


def test_the_winner_gives_the_colour_and_its_lead_how_full_it_is():
    weights = torch.tensor([[[[0.5, 0.5], [0.9, 0.1], [0.1, 0.9], [0.7, 0.3]]]])
    images, colours = winner_map(weights)
    even, first, second, unsure = images[0, 0].astype(int)
    legend = {words: colour for colour, words in colours}
    assert even.tolist() == [255, 255, 255]
    assert tuple(first) == legend["1: 75%"] and tuple(second) == legend["2: 25%"]
    assert np.abs(unsure - (255 + first) / 2).max() <= 1  # half the lead, half as full
    assert "equal weights: 0.50; full colour: 0.90" in legend


# --- sheets -----------------------------------------------------------------------------------


def test_a_sheet_shows_every_image_magnified():
    images = np.random.default_rng(0).integers(0, 256, (11, 2, 3, 3), np.uint8)
    picture = opened(sheet([("", images)]))
    scale = 96 // 3
    for index, image in enumerate(images):
        row, column = divmod(index, 8)
        top, left = 6 + row * (2 * scale + 6), 6 + column * (3 * scale + 6)
        shown = picture[top : top + 2 * scale : scale, left : left + 3 * scale : scale]
        assert np.array_equal(shown, image)


def test_labels_and_legends_take_their_own_lines():
    images = np.zeros((2, 4, 4, 3), np.uint8)
    plain = opened(sheet([("", images), ("", images)]))
    labelled = opened(sheet([("one", images), ("two", images)], legend=[((9, 99, 9), "three")]))
    assert len(labelled) == len(plain) + 3 * 22
    assert (labelled.reshape(-1, 3) == [9, 99, 9]).all(1).any()
