"""The image task: a causal model of the colours of pixels in raster order.

It follows section 4.1 of Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent
Mechanisms*, https://arxiv.org/abs/2103.00336. `data.images` has the images and their colours,
`tasks.drawing` draws samples and maps, and `tasks.metrics` has the measure of figure 2.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from headwise.data.division import PARTS
from headwise.data.images.corpus import ImageCorpus, ImageDataset, load_images
from headwise.data.images.palette import FILE_NAME, PaletteSettings, Raster
from headwise.data.images.settings import ImageSettings, PairImages, image_shape
from headwise.files import write_bytes
from headwise.models.config import CausalLMConfig
from headwise.models.for_tasks import CausalLM
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.settings import EvaluationSettings, LanguageModelSettings, Recipe
from headwise.settings import LARGEST_SEED
from headwise.tasks.drawing import sample_images, sheet, winner_map
from headwise.tasks.metrics import specialisation
from headwise.tasks.outcome import Outcome, Picture, Score, spread
from headwise.tasks.positions import Positions, decisions_by_position, pixel_positions
from headwise.tasks.significance import Statistic, of_totals
from headwise.tasks.task import Advance, Items, Task, Wish
from headwise.training.processes import divided

_MEASURED = 64  # images of which weights are taken at a time
_BATCH_TOKENS = 16_384  # tokens of a batch in evaluation
_UNKNOWN = 225  # a light grey for the pixels that the model completes
_DRAWN = 16  # images that `headwise predict` draws by default
_DECODED, _DECODED_PIXELS = 8, 64  # images and pixels of each that measure the speed of decoding


class ImageModel(LanguageModelSettings):
    """The sizes of an image model: a causal language model whose tokens are colours."""

    config_class = CausalLMConfig


Number = Annotated[int, Field(ge=0, le=1_000_000)]


class ImageEvaluation(EvaluationSettings):
    """How many images and maps the evaluation draws, and how."""

    samples: Number = Field(16, description="How many images the model draws.")
    completions: Number = 8
    """How many images the model completes, given their upper half."""
    maps: Number = 8
    """How many images get a map of what counts most at each pixel."""
    temperature: float = Field(1.0, ge=0.001, le=1000)
    """Temperature by which the logits are divided when pixels are drawn. Below 1, the images vary
    less."""
    top_k: int | None = Field(None, ge=1, le=1_000_000)
    """How many of the likeliest colours a pixel is drawn from. By default it is drawn from all
    colours."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED, description="Seed of the random draws.")

    def how_to_draw(self) -> dict[str, Any]:
        """Returns the arguments of `sample_images` that say how pixels are drawn."""
        return self.model_dump(include={"seed", "temperature", "top_k"})


class ImageRecipe(Recipe):
    """A recipe of the image task."""

    encoding_keys = ("palette",)

    task: Literal["images"] = Field("images", description="The task of the recipe.")
    data: ImageSettings = Field(default_factory=lambda: PairImages())
    """Which images the model learns."""
    palette: PaletteSettings = Field(default_factory=lambda: PaletteSettings())
    """How the colours of the images are chosen."""
    model: ImageModel = Field(default_factory=lambda: ImageModel())
    """Sizes and attention of the model."""
    evaluation: ImageEvaluation = Field(default_factory=lambda: ImageEvaluation())
    """How many images and maps the evaluation draws, and how."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        height, width, _ = image_shape(self.data)
        if height * width + 1 > self.training.batch_tokens:
            raise ValueError(
                f"data.size makes images of {height * width:,} pixels, expected fewer than "
                f"training.batch_tokens, {self.training.batch_tokens:,}: a batch holds at least "
                f"one image, and the token before it"
            )
        return self


class Images(Task):
    """Images in the colours of a palette.

    Args:
        images: the images in three parts.
        raster: the palette, which makes sequences of the images.
        has_halves: whether the left and the right half of each image come from different sources.

    Example:
        >>> from headwise.data.images.settings import DigitsImages
        >>> recipe = ImageRecipe(data=DigitsImages(), training={"max_steps": 1})
        >>> task = Images.prepare(recipe)
        >>> batch = task.collate([task.train[0], task.train[1]])
        >>> batch["input_ids"].shape, task.raster.bos_token_id
        (torch.Size([2, 65]), 17)
    """

    recipe_class = ImageRecipe
    model_class = CausalLM
    loss_name = "nats per pixel"
    loss_has_perplexity = False
    item_name = "images"
    saved = (FILE_NAME,)
    encoding_name = "palette"
    pipeline = "unconditional-image-generation"
    item_keys = ("palette",)

    def __init__(self, images: ImageCorpus, raster: Raster, *, has_halves: bool) -> None:
        self.images = images
        self.raster = raster
        self.has_halves = has_halves
        self.train, self.validation, self.test = (
            ImageDataset.of(getattr(images, part), raster) for part in PARTS
        )
        self.tests = {name: ImageDataset.of(found, raster) for name, found in images.tests.items()}
        error = raster.mean_squared_error(images.test.pixels, self.test.ids[:, 1:].numpy())
        palette = f"{len(raster.colors)} colours" + (
            f", mean squared error {error:.1f} of 255² on the test part" if error else ", exact"
        )
        self.notes = {**images.notes, "palette": palette}

    @classmethod
    def prepare(cls, recipe: ImageRecipe, folder: Path | None = None) -> Self:
        images = load_images(recipe.data)
        folder = cls.encoding_folder(recipe, folder)
        if folder is not None and (folder / FILE_NAME).exists():
            raster = Raster.load(folder)
        else:
            raster = Raster.learn(images.train.pixels, recipe.palette)
        return cls(images, raster, has_halves=isinstance(recipe.data, PairImages))

    def save(self, folder: Path) -> None:
        self.raster.save(folder)

    def encoding(self) -> str:
        return str(self.raster.colors.tolist())

    @classmethod
    def encoding_of(cls, run: Path) -> str:
        return str(Raster.load(run).colors.tolist())

    def digest(self) -> str:
        return self.images.digest

    def digest_of(self, part: str) -> str:
        """Returns a hash of the part's pixels and of the palette, whose colours are predicted."""
        found = self.part(part)
        assert isinstance(found, ImageDataset)
        items = f"{found.digest}\0{self.encoding()}"
        return hashlib.sha256(items.encode()).hexdigest()

    @classmethod
    def nominal_config(cls, recipe: ImageRecipe) -> CausalLMConfig:
        """The configuration for a full palette; images with few colours have a smaller one."""
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

    def positions(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        return {"decoder": pixel_positions(batch["input_ids"], self.raster)}

    def measure(self, model: HeadwiseModel) -> dict[str, float]:
        """The measure of figure 2 of Lamb et al. 2021 on the validation part; for pairs alone.

        By the side of the pixel that a position reads, and of the one that it predicts; the mean
        over layers, and each layer.
        """
        if not self.has_halves:
            return {}
        layers = self._pixel_weights(model, _chosen(self.validation, len(self.validation)))
        measured: dict[str, float] = {}
        for name, predicted in (("specialisation", False), ("specialisation, predicted", True)):
            values = {
                layer: specialisation(weights, predicted=predicted)
                for layer, weights in layers.items()
            }
            if values:
                measured[name] = fmean(values.values())
            measured |= {f"{name}, layer {layer}": value for layer, value in values.items()}
        return measured

    def evaluate(
        self, model: HeadwiseModel, part: Items, evaluation: ImageEvaluation, advance: Advance
    ) -> Outcome:
        nll = self._nll(model, part, advance)  # (images, pixels)
        return Outcome.of(
            self._scores(nll),
            pictures=[
                *self._samples(cast(CausalLM, model), part, evaluation),
                *self._maps(model, part, evaluation.maps),
            ],
        )

    def decode(self, model: HeadwiseModel, evaluation: ImageEvaluation) -> int:
        """Draws the last pixels of some test images; returns how many pixels it has drawn."""
        ids = _chosen(self.test, _DECODED)[:, 1:]
        given = ids[:, : max(0, len(self.raster) - _DECODED_PIXELS)]
        how = evaluation.how_to_draw()
        drawn = sample_images(cast(CausalLM, model), self.raster, len(ids), given=given, **how)
        return drawn.size - given.numel()

    @classmethod
    def statistic(cls, name: str, evaluation: ImageEvaluation) -> Statistic:
        return _BITS_PER_DIMENSION

    @classmethod
    def predict(cls, run: Path, recipe: ImageRecipe, model: HeadwiseModel, wish: Wish) -> None:
        """Draws images with the model of a run and writes them to a PNG file."""
        wish.refuse(recipe.task, **dict.fromkeys(("inputs", "texts"), "it draws of no input"))
        output = wish.output or Path(f"{run.resolve().name}.png")
        if output.suffix.lower() != ".png":
            raise ValueError(
                f"--output is {output}, expected a name that ends in .png: images are written as "
                "PNG"
            )
        raster, how = Raster.load(run), recipe.evaluation.how_to_draw()
        ids = sample_images(cast(CausalLM, model), raster, wish.number or _DRAWN, **how)
        write_bytes(output, sheet([("", raster.decode(ids))]))
        wish.echo(f"written: {output}", written=output)

    def _nll(self, model: HeadwiseModel, part: Items, advance: Advance) -> np.ndarray:
        """Returns -ln p of each pixel, `(images, pixels)`."""
        size = max(1, _BATCH_TOKENS // (len(self.raster) + 1))
        batches = [range(len(part))[start : start + size] for start in range(0, len(part), size)]

        def rows(batch: range) -> np.ndarray:
            ids = torch.stack([part[index] for index in batch]).to(model.device)
            with torch.no_grad():
                logits = model(input_ids=ids).logits[:, :-1].float()
            found = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])
            return -found.squeeze(-1).double().cpu().numpy()

        return np.concatenate(divided(batches, rows, lambda batch: advance(len(batch))))

    def _scores(self, nll: np.ndarray) -> list[tuple[Score, np.ndarray]]:
        """Returns bits per dimension, of all pixels and of each half, and bits per sub-pixel.

        Each score comes with its items.
        """
        height, width = self.raster.height, self.raster.width
        colours = len(self.raster.colors)
        what = (
            f"a dimension is a pixel, which has one of {colours} colours; if all colours were "
            f"equally likely, it would be {math.log2(colours):.2f}"
        )
        scores = [_score("bits per dimension", nll, what)]
        if self.has_halves:
            halves = np.split(nll.reshape(-1, height, width), [width // 2], axis=2)
            for side, half in zip(("left", "right"), halves, strict=True):
                scores.append(_score(f"{side} half", half, f"pixels of the {side} half"))
        if self.raster.colors.shape[1] == 3:
            note = (
                "a third of bits per dimension; it cannot be compared with models of all 256³ "
                "colours, because the palette has fewer"
            )
            scores.append(_score("bits per sub-pixel", nll, note, per_pixel=3))
        return scores

    def _samples(self, model: CausalLM, part: Items, evaluation: ImageEvaluation) -> list[Picture]:
        """Returns images that the model draws, and test images whose lower half it completes."""
        raster, how = self.raster, evaluation.how_to_draw()
        pictures = []
        if evaluation.samples:
            drawn = raster.decode(sample_images(model, raster, evaluation.samples, **how))
            real = raster.decode(_chosen(part, evaluation.samples)[:, 1:].numpy())
            png = sheet([("of the data", real), ("drawn by the model", drawn)])
            caption = "Images of the data in the palette's colours, and images by the model."
            pictures.append(Picture.of("Samples", png, caption))
        upper = raster.height // 2
        if evaluation.completions and upper:
            ids = _chosen(part, evaluation.completions)[:, 1:]
            known = ids[:, : upper * raster.width]
            drawn = raster.decode(sample_images(model, raster, len(ids), given=known, **how))
            real = raster.decode(ids.numpy())
            given = real.copy()
            given[:, upper:] = _UNKNOWN
            blocks = [("given", given), ("completed by the model", drawn), ("of the data", real)]
            png = sheet(blocks)
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
            colours, legend = winner_map(weights)
            label = "what counts most"
            if self.has_halves:
                label += f"; specialisation over the halves {specialisation(weights):.2f}"
            png = sheet([("of the data", images), (label, colours)], legend=legend)
            caption = (
                "Which expert or head counts most where a pixel is read, and of how many of these "
                "pixels. The paler, the less it stands out from the others."
            )
            pictures.append(Picture.of(f"Map of layer {layer}", png, caption))
        return pictures

    def _pixel_weights(self, model: HeadwiseModel, ids: Tensor) -> dict[int, Tensor]:
        """By layer, `(images, height, width, experts)`, where there are weights for each pixel."""
        shape = (self.raster.height, self.raster.width)
        found: dict[int, list[Tensor]] = {}
        for some in ids.split(_MEASURED):
            decided = decisions_by_position(model, input_ids=some.to(model.device))
            for system, weights in decided:  # the first position reads no pixel
                weights = weights[:, 1:].float().cpu().unflatten(1, shape)
                found.setdefault(system.layer, []).append(weights)
        return {layer: torch.cat(weights) for layer, weights in found.items()}


def _chosen(part: Items, number: int) -> Tensor:
    """Returns images that are spread evenly over a part, which may be in the order of classes."""
    return torch.stack([part[index] for index in spread(range(len(part)), number)])


# Of all images together, from the nats and dimensions of each.
_BITS_PER_DIMENSION = of_totals(lambda totals: totals[0] / totals[1] / math.log(2))


def _score(name: str, nll: np.ndarray, note: str, per_pixel: int = 1) -> tuple[Score, np.ndarray]:
    """Returns a score with the rows that it is made of: nats and dimensions of each image."""
    nats = nll.reshape(len(nll), -1)
    rows = np.stack([nats.sum(1), np.full(len(nats), per_pixel * nats.shape[1], float)], axis=1)
    how = _BITS_PER_DIMENSION
    return Score.of(name, rows, how, higher_is_better=False, digits=3, note=note), rows
