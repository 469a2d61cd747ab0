r"""Images: a causal model of the colours of pixels, row by row from the top left.

Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*, section 4.1,
https://arxiv.org/abs/2103.00336. With x_i the colour of pixel i of n,

    p(x) = Π_i p(x_i | <bos>, x_1, ..., x_{i-1}),    bits per dimension = - log₂ p(x) / n.
"""

import base64
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

import datasets
import numpy as np
import torch
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from headwise.data.builtin import digits, photographs
from headwise.data.encode import Columns, EncodedDataset, cached_folder, pad
from headwise.data.images import PALETTE, Palette, read_image_files, read_pixels
from headwise.data.load import DataError, Row, from_generator
from headwise.data.settings import SPLITS, Data, Files, files_of
from headwise.data.splits import load_splits
from headwise.files import write_bytes
from headwise.models.inspect import eval_mode, find_systems
from headwise.models.modeling import HeadwiseModel
from headwise.models.text import CausalLM
from headwise.ops import IGNORED_LABEL
from headwise.pretrained.record import record
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.settings import LARGEST_SEED, FrozenSettings
from headwise.tasks.scores import Outcome, Score, spread
from headwise.tasks.task import Positions, PredictRequest, Task, Track
from headwise.training.loss import preserve_rng_state

PAIRS = "pairs"
SIDES = ("left", "right")
_BATCH_TOKENS = 16_384  # tokens of a batch in evaluation
_MEASURED = 256  # validation images for the measure of figure 2
_BATCH_SIZE = 64  # images of a batch that is sampled or measured
_SAMPLES = 16  # images that `predict` samples by default
_COLUMNS = 8  # images side by side in a picture


class ImageData(Data):
    """Images: the column `image`. Files are folders of images."""

    size: int = Field(32, ge=1)
    """Height and width in pixels, to which the largest centre square of an image is resized."""
    mode: Literal["rgb", "grey"] = "rgb"
    """`rgb` for three channels, `grey` for one."""
    options: dict[str, Any] = {}
    """Further arguments of the data that `path` names. The data `pairs` have `left` and `right`,
    each with keys of `data`, and a `seed`; both halves have the size and the mode of the pair."""

    @model_validator(mode="before")
    @classmethod
    def _complete_halves(cls, keys: Any) -> Any:
        if not isinstance(keys, Mapping) or keys.get("path") != PAIRS:
            return keys
        shared = {key: keys[key] for key in ("size", "mode") if key in keys}
        options = dict(keys.get("options") or {})
        for side in SIDES:
            half = cls.model_validate({**(options.get(side) or {}), **shared})
            options[side] = half.model_dump(exclude_defaults=True)
        return {**keys, "options": options}

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        width = self.size * (2 if self.path == PAIRS else 1)
        return self.size, width, 3 if self.mode == "rgb" else 1


class PaletteSettings(FrozenSettings):
    """How the colours are chosen; the default is minGPT's for CIFAR-10."""

    colors: int = Field(512, ge=2, le=65_536)
    """Number of colours of the palette. Images with fewer colours keep them exactly."""


class ImageEvaluation(Evaluation):
    """How images are sampled in evaluation and by `headwise predict`."""

    samples: int = Field(8, ge=0)
    """Number of images that the model generates."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the sampling."""


class ImageRecipe(Recipe):
    """A recipe of the image task."""

    data: ImageData
    """The images."""
    palette: PaletteSettings = Field(default_factory=PaletteSettings)
    """How the colours of the images are chosen."""
    evaluation: ImageEvaluation = Field(default_factory=ImageEvaluation)
    """How images are sampled."""


def pairs(
    left: dict[str, Any], right: dict[str, Any], seed: int = 1
) -> dict[str, datasets.Dataset]:
    """Returns images of two sources side by side, in random pairs.

    The images of the smaller source are used several times. The sources are split before they are
    paired, so that no half of a training image is in another split.

    Args:
        left, right: the data of a half, with keys of `data`.
        seed: seed of the pairs.
    """
    halves = [load_splits(ImageData(**half), Images)[0] for half in (left, right)]
    options = {"left": left, "right": right, "seed": seed}
    return {
        split: from_generator(
            _pair_up, split=split, sources=[half[split]._fingerprint for half in halves], **options
        )
        for split in SPLITS
    }


def _pair_up(
    left: dict[str, Any], right: dict[str, Any], seed: int, split: str, **_: object
) -> Iterator[Row]:
    shape = ImageData(**left).shape
    halves = [load_splits(ImageData(**half), Images)[0][split]["pixels"] for half in (left, right)]
    number = max(map(len, halves))
    random = np.random.default_rng((seed, SPLITS.index(split)))
    orders = [
        np.concatenate([random.permutation(len(half)) for _ in range(-(-number // len(half)))])
        for half in halves
    ]
    for indices in zip(*(order[:number].tolist() for order in orders), strict=True):
        pair = [half[index] for half, index in zip(halves, indices, strict=True)]
        pixels = [np.frombuffer(image, np.uint8).reshape(shape) for image in pair]
        yield {"image": Image.fromarray(np.concatenate(pixels, axis=1).squeeze())}


class Images(Task):
    """Images as sequences of `<bos>` and the colours of their pixels."""

    name = "images"
    recipe_class = ImageRecipe
    model_class = CausalLM
    built_in: ClassVar = {"digits": digits, "photographs": photographs, PAIRS: pairs}
    columns: ClassVar = {"image": "image"}
    key = "pixels"
    item_name = "images"
    loss_unit = "nats per pixel"
    rows_at_once = 100  # a photograph may have megabytes
    clean_keys: ClassVar = {"path", "options", "size", "mode"}
    clean_features = datasets.Features({"pixels": datasets.Value("binary")})
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})

    @staticmethod
    def read_files(files: Files, data: Data) -> datasets.Dataset:
        return read_image_files(files_of(files))

    @classmethod
    def clean(cls, columns: Columns, data: ImageData, split: str) -> Columns:
        pixels = []
        for image in columns["image"]:
            try:
                pixels.append(read_pixels(image, data.shape).tobytes())
            except DataError as error:
                warnings.warn(f"{error}: it is left out", stacklevel=2)
        return {"pixels": pixels}

    def open(self, folder: Path | None) -> None:
        data, colors = self.recipe.data, self.recipe.palette.colors

        def write_palette(folder: Path) -> None:
            images = map(self._images, self.rows_to_learn_from(data.window))
            Palette.learn(images, data.shape, colors).save(folder)

        if folder is None:
            key = [self.content_hash("train"), data.shape, colors]
            folder = cached_folder("palettes", key, write_palette)
        self.palette = Palette.load(folder)
        if self.palette.shape != data.shape:
            raise ValueError(
                f"the images have the shape {data.shape}, expected {self.palette.shape} "
                f"(height, width, channels), the shape of {folder / PALETTE}"
            )
        self.cache_key = [data.shape, self.palette.colors.tolist()]

    def encode(self, columns: Columns) -> Columns:
        return {"input_ids": self.palette.encode(self._images(columns)).astype(np.int32)}

    def _images(self, columns: Columns) -> np.ndarray:
        """Returns the images of rows, `(images, height, width, channels)`."""
        content = b"".join(columns["pixels"])
        return np.frombuffer(content, np.uint8).reshape(-1, *self.recipe.data.shape)

    def items(self, rows: datasets.Dataset, split: str) -> EncodedDataset:
        return super().items(rows.with_format("numpy"), split)

    def save(self, folder: Path) -> None:
        self.palette.save(folder)

    @classmethod
    def sizes(cls, recipe: ImageRecipe, task: Any = None) -> dict[str, Any]:
        height, width, _ = recipe.data.shape
        colors = recipe.palette.colors if task is None else len(task.palette.colors)
        special_ids = {"bos_token_id": colors, "eos_token_id": None, "pad_token_id": None}
        return {"vocab_size": colors + 1, "max_length": height * width + 1, **special_ids}

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        ids = pad(items, {})["input_ids"].long()
        labels = ids.clone()
        labels[:, 0] = IGNORED_LABEL
        return {"input_ids": ids, "labels": labels}

    # --- scores ---------------------------------------------------------------------------------

    def evaluate(self, model: Any, split: str, evaluation: Any, track: Track = iter) -> Outcome:
        @torch.no_grad()
        def total_nats(indices: list[int]) -> np.ndarray:
            """Returns -ln p of the pixels of each image, and their number, `(images, 2)`."""
            ids = self._ids(split, indices).to(model.device)
            logits = model(input_ids=ids).logits[:, :-1].float()
            nats = F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").double()
            totals = nats.sum(1).cpu().numpy()
            return np.stack([totals, np.full_like(totals, nats.size(1))], axis=1)

        # Images are equally long, so that their batches are in the order of the split.
        batches = self.batches(split, _BATCH_TOKENS)
        rows = np.concatenate([total_nats(indices) for indices in track(batches)])
        note = f"of pixels, each of one of {len(self.palette.colors)} colours"
        score = Score.from_rows(
            "bits per dimension", rows, "bits", lower_is_better=True, digits=3, note=note
        )
        if not evaluation.samples:
            return Outcome(scores=[score])
        real = self.palette.decode(self._spread_ids(split, evaluation.samples))
        sampled = sample_images(model, self.palette, evaluation, len(real))
        picture = base64.b64encode(image_grid([real, sampled])).decode("ascii")
        return Outcome(scores=[score], picture=picture)

    def monitor(self, model: HeadwiseModel) -> dict[str, float]:
        """Returns figure 2's measure on pairs: the mean over layers, and each layer."""
        if self.recipe.data.path != PAIRS:
            return {}
        layers = self._pixel_weights(model, self._spread_ids("validation", _MEASURED))
        measured: dict[str, float] = {}
        for name, predicted in (("specialisation", False), ("specialisation, predicted", True)):
            by_layer = {
                f"{name}, layer {layer}": specialisation(weights, predicted=predicted)
                for layer, weights in layers.items()
            }
            measured |= {name: fmean(by_layer.values()), **by_layer} if by_layer else {}
        return measured

    @torch.no_grad()
    def _pixel_weights(self, model: HeadwiseModel, ids: Tensor) -> dict[int, Tensor]:
        """Returns the weights of pixels by layer, `(images, height, width, experts)`."""
        weights_by_layer: dict[int, list[Tensor]] = {}
        for batch in ids.split(_BATCH_SIZE):
            with eval_mode(model), record(model) as records:
                model(input_ids=batch.to(model.device))
            for path, routings in records.items():
                weights = routings[0].weights
                if weights.shape[:-1] == batch.shape:
                    weights = weights[:, 1:].float().cpu()  # the first position reads no pixel
                    weights = weights.unflatten(1, self.palette.shape[:2])
                    weights_by_layer.setdefault(find_systems(model)[path].layer, []).append(weights)
        return {layer: torch.cat(weights) for layer, weights in weights_by_layer.items()}

    def _spread_ids(self, split: str, number: int) -> Tensor:
        """Returns images spread over a split, which may be in the order of classes."""
        return self._ids(split, spread(range(len(self.stored_items(split))), number))

    def _ids(self, split: str, indices: Sequence[int]) -> Tensor:
        return self.collate(self.stored_items(split).__getitems__(indices))["input_ids"]

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns the colours and the sides of pixels; the first position reads no pixel."""
        ids, (height, width, _) = batch["input_ids"], self.palette.shape
        pixels = torch.arange(-1, height * width, device=ids.device)
        is_right = (pixels % width >= width // 2).long().masked_fill(pixels < 0, -1)
        classes = {"side": (is_right.expand_as(ids), ["left", "right"])}
        size, names = (height, width), self.palette.names
        return {"decoder": Positions(ids.shape, ids, names, "colour", classes, size=size)}

    @classmethod
    def predict(
        cls, folder: Path, recipe: ImageRecipe, model: Any, request: PredictRequest
    ) -> Iterator[str]:
        """Samples images and writes them into a PNG file."""
        request.refuse(cls.name, "inputs", "texts")
        output = request.output or Path(f"{folder.resolve().parent.name}.png")
        palette, number = Palette.load(folder), request.number or _SAMPLES
        write_bytes(output, image_grid([sample_images(model, palette, recipe.evaluation, number)]))
        yield f"written: {output}"


def sample_images(
    model: Any, palette: Palette, evaluation: ImageEvaluation, number: int
) -> np.ndarray:
    """Samples images pixel by pixel, as RGB images `(number, height, width, 3)`."""
    start = torch.full((number, 1), palette.bos_token_id, device=model.device)
    with preserve_rng_state():
        torch.manual_seed(evaluation.seed)
        batches = [
            model.generate(
                batch,
                max_length=palette.height * palette.width + 1,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                suppress_tokens=[palette.bos_token_id],
                remove_invalid_values=True,  # of a model that diverged
            )
            for batch in start.split(_BATCH_SIZE)
        ]
    return palette.decode(torch.cat(batches).cpu())


def image_grid(blocks: Sequence[np.ndarray]) -> bytes:
    """Draws RGB images as one PNG, eight in a row; each block of images begins a new row.

    Args:
        blocks: arrays of the shape `(images, height, width, 3)`.
    """
    _, height, width, _ = blocks[0].shape
    columns, gap = min(_COLUMNS, max(map(len, blocks))), max(1, width // 16)
    scale = max(1, 64 // height)  # small images would be hard to see
    rows = []
    for images in blocks:
        gaps = ((0, -len(images) % columns), (0, gap), (0, gap), (0, 0))
        tiles = np.pad(images, gaps, constant_values=255)
        tiles = tiles.reshape(-1, columns, *tiles.shape[1:]).swapaxes(1, 2)  # side by side
        rows += [*tiles.reshape(len(tiles), height + gap, -1, 3)]
        rows.append(np.full_like(rows[-1][:gap], 255))
    content = io.BytesIO()
    pixels = np.concatenate(rows[:-1]).repeat(scale, 0).repeat(scale, 1)
    Image.fromarray(pixels).save(content, format="PNG")
    return content.getvalue()


def specialisation(weights: Tensor, *, predicted: bool = False) -> float:
    """Returns the share of the variance of weights over pixels that the side of a pixel explains.

    Figure 2 of the paper plots "the relative variance in the mechanism-activation over the two
    sides of the image", without an equation. We read it as the correlation ratio: with c the
    weights at a pixel, c̄ their mean over all pixels and c̄_s their mean over the pixels of side s,

        Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖²

    Args:
        weights: the weights at the position that reads a pixel, `(..., height, width, experts)`.
        predicted: whether the side is that of the next pixel, which is predicted there; the paper
            does not say.

    >>> left, right = [0.9, 0.1], [0.2, 0.8]
    >>> specialisation(torch.tensor([[left, right], [left, right]]))
    1.0
    """
    height, width = weights.shape[-3:-1]
    pixels = torch.arange(height * width, device=weights.device)[int(predicted) :]
    rows = weights.double().flatten(-3, -2)[..., : len(pixels), :]  # (..., pixels, experts)
    rows = rows - rows.flatten(0, -2).mean(0)
    right = pixels % width >= width // 2
    sides = [rows[..., mask, :].flatten(0, -2) for mask in (~right, right)]
    between = sum(len(side) * side.mean(0).square().sum() for side in sides)
    total = rows.square().sum()
    # The variance of equal weights may differ from 0 by rounding.
    rounding = 1e-12 * weights.double().square().sum()
    return float((between / total).clamp(max=1)) if total > rounding else 0.0
