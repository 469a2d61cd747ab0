"""Images, pixel by pixel: a causal model of palette colours in raster order.

Section 4.1 of Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent
Mechanisms*, https://arxiv.org/abs/2103.00336. Its pieces are in files of their own: sources of
images (`image.pictures`), colours (`image.palette`), samples and maps (`image.drawing`), and the
measure of figure 2 (`image.specialisation`).
"""

import hashlib
import math
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import Self

from headwise.models.base import HeadwiseModel
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.decisions import decisions_by_position
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipe.settings import EvaluationSettings, LanguageModelSettings, Recipe
from headwise.tasks.image.drawing import sample_images, sheet, winner_map
from headwise.tasks.image.palette import FILE_NAME, PaletteSettings, Raster
from headwise.tasks.image.pictures import (
    ImageParts,
    ImageSettings,
    PairImages,
    image_shape,
    load_images,
)
from headwise.tasks.image.specialisation import specialisation
from headwise.tasks.outcome import Outcome, Picture, Score
from headwise.tasks.parts import PARTS
from headwise.tasks.task import Advance, Items, Task

_MEASURED = 16  # images; enough for a curve over training
_BATCH_TOKENS = 16_384  # of evaluation
_UNKNOWN = 225  # a light grey, for what is to be completed


class ImageModel(LanguageModelSettings):
    """Sizes of the causal model, whose tokens are colours."""

    def config(self, **encoding: Any) -> CausalLMConfig:
        return CausalLMConfig(**self.model_dump(), **encoding)


class ImageEvaluation(EvaluationSettings):
    """What is drawn beside the score."""

    samples: int = Field(16, ge=0, description="images drawn by the model")
    completions: int = Field(8, ge=0, description="images of which it draws the lower half")
    maps: int = Field(8, ge=0, description="images with a map of what counts at each pixel")
    temperature: float = Field(1.0, gt=0, description="of the draws; below 1 less varied")
    top_k: int | None = Field(None, ge=1, description="draw from so many likeliest colours")
    seed: int = Field(1, ge=0, description="of the draws")


class ImageRecipe(Recipe):
    """Which images, in which colours, with what model."""

    task: Literal["images"] = Field("images", description="what is learned")
    data: ImageSettings = Field(default_factory=lambda: PairImages(), description="the images")
    palette: PaletteSettings = Field(
        default_factory=lambda: PaletteSettings(), description="the colours"
    )
    model: ImageModel = Field(
        default_factory=lambda: ImageModel(), description="sizes and attention"
    )
    evaluation: ImageEvaluation = Field(
        default_factory=lambda: ImageEvaluation(), description="samples and maps"
    )


class ImageDataset(Dataset[Tensor]):
    """Images as ids of colours behind the one that stands before the first pixel.

    Args:
        ids: `(images, pixels)`.
        bos_token_id: stands before the first pixel.

    Attributes:
        lengths: of each image, all the same.
    """

    def __init__(self, ids: np.ndarray, bos_token_id: int) -> None:
        first = np.full((len(ids), 1), bos_token_id)
        # As int32 a quarter of the memory of what embeddings take; cast one by one.
        self.ids = torch.from_numpy(np.concatenate([first, ids], axis=1).astype(np.int32))
        self.lengths = [self.ids.size(1)] * len(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Tensor:
        return self.ids[index].long()


class Images(Task):
    """Images in the colours of a palette.

    Args:
        images: in three parts.
        raster: what makes sequences of them.
        has_halves: whether their left and right halves are of different sources.

    Example:
        >>> from headwise.tasks.image.pictures import DigitsImages
        >>> recipe = ImageRecipe(data=DigitsImages(), training={"max_steps": 1})
        >>> task = Images.prepare(recipe)
        >>> batch = task.collate([task.train[0], task.train[1]])
        >>> batch["input_ids"].shape, task.raster.bos_token_id
        (torch.Size([2, 65]), 17)
    """

    recipe_class = ImageRecipe
    model_class = CausalLM
    loss_name = "nats per pixel"
    item_name = "images"
    saved = (FILE_NAME,)

    def __init__(self, images: ImageParts, raster: Raster, *, has_halves: bool) -> None:
        self.images = images
        self.raster = raster
        self.has_halves = has_halves
        self.train, self.validation, self.test = (
            ImageDataset(raster.encode(getattr(images, part)), raster.bos_token_id)
            for part in PARTS
        )
        error = _quantisation_error(images.test, self.test, raster)
        palette = f"{len(raster.colors)} colours" + (
            f", mean squared error {error:.1f} of 255² on the test part" if error else ", exact"
        )
        self.notes = {**images.notes, "palette": palette}

    @classmethod
    def prepare(cls, recipe: ImageRecipe, folder: Path | None = None) -> Self:
        images = load_images(recipe.data)
        if folder is not None and (folder / FILE_NAME).exists():
            raster = Raster.load(folder)
        else:
            raster = Raster.learn(images.train, recipe.palette)
        return cls(images, raster, has_halves=isinstance(recipe.data, PairImages))

    def save(self, folder: Path) -> None:
        self.raster.save(folder)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for part in PARTS:
            images = getattr(self.images, part)
            digest.update(f"{part} {images.shape}".encode())
            digest.update(images.tobytes())
        return digest.hexdigest()

    @classmethod
    def nominal_config(cls, recipe: ImageRecipe) -> CausalLMConfig:
        """With all colours of the palette; images of fewer levels of grey give fewer."""
        height, width, _ = image_shape(recipe.data)
        return recipe.model.config(
            vocab_size=recipe.palette.colors + 1, max_length=height * width + 1
        )

    @classmethod
    def cost_lengths(cls, recipe: ImageRecipe) -> dict[str, int]:
        height, width, _ = image_shape(recipe.data)
        return {"decoder": height * width}

    def model_config(self, settings: ImageModel) -> CausalLMConfig:
        return settings.config(
            vocab_size=len(self.raster.colors) + 1,
            max_length=len(self.raster) + 1,
            **self.raster.token_ids(),
        )

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        input_ids = torch.stack(items)
        labels = input_ids.clone()
        labels[:, 0] = IGNORED_LABEL
        return {"input_ids": input_ids, "labels": labels}

    def measure(self, model: HeadwiseModel) -> dict[str, float]:
        """Figure 2 of the TIM paper, the mean over layers; of pairs of sources alone."""
        if not self.has_halves:
            return {}
        found = self._pixel_weights(model, _chosen(self.validation, _MEASURED))
        values = [specialisation(weights) for weights in found.values()]
        return {"specialisation": sum(values) / len(values)} if values else {}

    def evaluate(
        self, model: HeadwiseModel, part: Items, evaluation: ImageEvaluation, advance: Advance
    ) -> Outcome:
        nll = self._nll(model, part, advance)  # (images, pixels)
        items = _rows(nll)
        return Outcome(
            scores=self._scores(nll),
            items=items.tolist(),
            pictures=[
                *self._samples(cast(CausalLM, model), part, evaluation),
                *self._maps(model, part, evaluation.maps),
            ],
        )

    def statistic(self, items: np.ndarray) -> float:
        """Bits per dimension, from nats and dimensions per image."""
        nats, dimensions = items.sum(0)
        return float(nats / dimensions / math.log(2))

    def _nll(self, model: HeadwiseModel, part: Items, advance: Advance) -> np.ndarray:
        """-ln p of each pixel, `(images, pixels)`."""
        size = max(1, _BATCH_TOKENS // (len(self.raster) + 1))
        rows = []
        for start in range(0, len(part), size):
            batch = [part[index] for index in range(start, min(start + size, len(part)))]
            ids = torch.stack(batch).to(model.device)
            with torch.no_grad():
                logits = model(input_ids=ids).logits[:, :-1].float()
            found = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])
            rows.append(-found.squeeze(-1).double().cpu().numpy())
            advance(len(batch))
        return np.concatenate(rows)

    def _scores(self, nll: np.ndarray) -> list[Score]:
        """Bits per dimension; what the halves have in it; per colour channel."""
        colours = len(self.raster.colors)
        what = (
            f"a dimension is a pixel, one of {colours} colours of the palette; if all were as "
            f"likely it would be {math.log2(colours):.2f}"
        )
        scores = [self._score("bits per dimension", nll, what)]
        if self.has_halves:
            by_place = nll.reshape(len(nll), self.raster.height, self.raster.width)
            middle = self.raster.width // 2
            for side, half in (("left", by_place[..., :middle]), ("right", by_place[..., middle:])):
                scores.append(self._score(f"{side} half", half, f"of the {side} half's pixels"))
        if self.raster.colors.shape[1] == 3:
            scores.append(
                self._score(
                    "bits per sub-pixel",
                    nll,
                    "a third of bits per dimension; of palette colours, so that it does not "
                    "compare with models of all 256³",
                    per_pixel=3,
                )
            )
        return scores

    def _score(self, name: str, nll: np.ndarray, note: str, per_pixel: int = 1) -> Score:
        rows = _rows(nll, per_pixel)
        return Score.of(name, rows, self.statistic, higher_is_better=False, digits=3, note=note)

    def _samples(self, model: CausalLM, part: Items, evaluation: ImageEvaluation) -> list[Picture]:
        """What the model draws, from nothing and from the upper half of test images."""
        raster = self.raster
        how: dict[str, Any] = {
            "seed": evaluation.seed,
            "temperature": evaluation.temperature,
            "top_k": evaluation.top_k,
        }
        pictures = []
        if evaluation.samples:
            drawn = raster.decode(sample_images(model, raster, evaluation.samples, **how))
            real = raster.decode(_chosen(part, evaluation.samples)[:, 1:].numpy())
            png = sheet([("of the data", real), ("drawn by the model", drawn)])
            caption = "Images of the data in the palette's colours; images that the model draws."
            pictures.append(Picture.of("Samples", png, caption))
        given_pixels = raster.height // 2 * raster.width
        if evaluation.completions and given_pixels:
            ids = _chosen(part, evaluation.completions)[:, 1:]
            completed = sample_images(model, raster, len(ids), given=ids[:, :given_pixels], **how)
            real = raster.decode(ids.numpy())
            given = real.copy()
            given[:, raster.height // 2 :] = _UNKNOWN
            png = sheet(
                [
                    ("given", given),
                    ("completed by the model", raster.decode(completed)),
                    ("of the data", real),
                ]
            )
            caption = "The model is given the upper half of images of the data and draws the rest."
            pictures.append(Picture.of("Completions", png, caption))
        return pictures

    def _maps(self, model: HeadwiseModel, part: Items, number: int) -> list[Picture]:
        """A map of each layer whose heads are weighed anew at each pixel."""
        if not number:
            return []
        ids = _chosen(part, number)
        images = self.raster.decode(ids[:, 1:].numpy())
        pictures = []
        for layer, weights in self._pixel_weights(model, ids).items():
            drawn = winner_map(weights)
            label = "what counts most"
            if self.has_halves:
                label += f"; specialisation over the halves {specialisation(weights):.2f}"
            png = sheet([("of the data", images), (label, drawn.images)], legend=drawn.legend)
            caption = (
                "Which mechanism, expert or head counts most where a pixel is read, and of how "
                "many of these pixels. The paler, the less it stands out from the others."
            )
            pictures.append(Picture.of(f"Map of layer {layer}", png, caption))
        return pictures

    def _pixel_weights(self, model: HeadwiseModel, ids: Tensor) -> dict[int, Tensor]:
        """By layer, `(images, height, width, experts)`, where there are weights for each pixel."""
        decided = decisions_by_position(model, input_ids=ids.to(model.device))
        shape = (self.raster.height, self.raster.width)
        return {  # the first position reads no pixel
            place.layer: made.weights[:, 1:].float().cpu().unflatten(1, shape)
            for place, made in decided.items()
        }


def _chosen(part: Items, number: int) -> Tensor:
    """So many images, from everywhere in the part: it may be in the order of classes."""
    number = min(number, len(part))
    return torch.stack([part[index * len(part) // number] for index in range(number)])


def _rows(nll: np.ndarray, per_pixel: int = 1) -> np.ndarray:
    """Nats and dimensions per image."""
    nats = nll.reshape(len(nll), -1)
    return np.stack([nats.sum(1), np.full(len(nats), per_pixel * nats.shape[1], float)], axis=1)


def _quantisation_error(images: np.ndarray, encoded: ImageDataset, raster: Raster) -> float:
    """What the palette loses: mean squared difference per pixel and channel."""
    total = 0.0
    for start in range(0, len(images), 1000):
        pixels = images[start : start + 1000].astype(np.float64)
        colours = raster.colors[encoded.ids[start : start + 1000, 1:].numpy()]
        total += float(np.square(pixels - colours.reshape(pixels.shape)).sum())
    return total / images.size
