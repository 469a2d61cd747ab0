r"""Images: a causal model of the colours of pixels, row by row from the top left.

Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent Mechanisms*, section 4.1,
https://arxiv.org/abs/2103.00336. With x_i the colour of pixel i of n,

    p(x) = Π_i p(x_i | <bos>, x_1, ..., x_{i-1}),    bits per dimension = - log₂ p(x) / n.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal, Self, cast

import datasets
import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator
from torch import Tensor

from headwise.data.builtin import digits, image_row, photographs
from headwise.data.divide import parts_of
from headwise.data.encode import Columns, Items, cached, pad
from headwise.data.load import Row, generated
from headwise.data.palette import PALETTE, Palette, PaletteSettings
from headwise.data.pixels import image_files, pixels_of, pixels_of_file
from headwise.data.settings import PARTS, Data, Files, files_of
from headwise.files import write_bytes
from headwise.messages import shown
from headwise.models.for_tasks import CausalLM
from headwise.models.modeling import HeadwiseModel
from headwise.ops.labels import IGNORED_LABEL
from headwise.recipes.recipe import Evaluation, Recipe
from headwise.settings import LARGEST_SEED, FrozenSettings
from headwise.tasks.pictures import sheet, weights_by_position, winner_map
from headwise.tasks.scores import Outcome, Picture, Score, spread
from headwise.tasks.task import Each, Positions, Task, Wish
from headwise.training.processes import own_draws

PAIRS = "pairs"
_BATCH_TOKENS = 16_384  # tokens of a batch in evaluation
_MEASURED = 256  # validation images of which figure 2 is measured
_AT_ONCE = 64  # images that are drawn, or of which weights are taken, at a time
_DRAWN = 16  # images that `predict` draws by default
_UNKNOWN = 225  # a light grey for the pixels that the model completes
_SHADES = ["very dark", "dark", "medium", "light", "very light"]  # fifths of 0 to 255
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, as in ITU-R BT.601


class ImageData(Data):
    """Images: the column `image`. Files are folders of images, or IDX files as MNIST has them."""

    size: int = Field(32, ge=1)
    """Height and width of the images in pixels. The largest square in the middle of an image is cut
    out and resized."""
    mode: Literal["rgb", "grey"] = "rgb"
    """`rgb` for three channels, `grey` for one."""

    options: dict[str, Any] = Field({}, validate_default=True)
    """Further arguments of the data that `path` names: `patch` of `photographs`, the height and
    width of its patches; `left` and `right` of `pairs`, the data of both halves."""

    @field_validator("options", mode="before")
    @classmethod
    def _check_options(cls, options: Any, info: ValidationInfo) -> Any:
        if info.data.get("path") != PAIRS:
            return options
        return Pair.model_validate(options).model_dump(exclude_defaults=True)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the images."""
        if self.path == PAIRS:
            pair = Pair.model_validate(self.options)
            left, right = pair.left.shape, pair.right.shape
            return left[0], left[1] + right[1], max(left[2], right[2])
        return self.size, self.size, 3 if self.mode == "rgb" else 1


class Pair(FrozenSettings):
    """The options of the data `pairs`: images of two sources side by side.

    Each image of the larger source is beside a random one of the smaller, whose images are used in
    shuffled rounds. The sources are divided into parts before they are paired, so that no half of
    a training image is in another part.
    """

    left: ImageData
    """The data of the left halves."""
    right: ImageData
    """The data of the right halves."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed that decides which images stand side by side."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.left.shape[0] != self.right.shape[0]:
            raise ValueError(
                f"left.size is {self.left.size} and right.size is {self.right.size}, expected "
                f"equal sizes: the halves stand side by side"
            )
        return self


class ImageEvaluation(Evaluation):
    """How many images and maps the evaluation draws, and how."""

    samples: int = Field(16, ge=0)
    """How many images the model draws."""
    completions: int = Field(8, ge=0)
    """How many images the model completes, given their upper half."""
    maps: int = Field(8, ge=0)
    """How many images get a map of what counts most at each pixel."""
    temperature: float = Field(1.0, ge=0.001)
    """Temperature by which the logits are divided. Below 1, the images vary less."""
    top_k: int | None = Field(None, ge=1)
    """How many of the likeliest colours a pixel is drawn from; by default all."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the random draws."""


class ImageRecipe(Recipe):
    """A recipe of the image task."""

    data: ImageData
    """Which images the model learns."""
    palette: PaletteSettings = Field(default_factory=PaletteSettings)
    """How the colours of the images are chosen."""
    evaluation: ImageEvaluation = Field(default_factory=ImageEvaluation)
    """How many images and maps the evaluation draws, and how."""


def pairs(**options: Any) -> dict[str, datasets.Dataset]:
    """Returns images of two sources side by side; `Pair` has the options."""
    pair = Pair.model_validate(options)
    left, right = (parts_of(data, Images)[0] for data in (pair.left, pair.right))
    return {
        part: generated(
            _pairs,
            options=options,
            part=part,
            marks=[left[part]._fingerprint, right[part]._fingerprint],
        )
        for part in PARTS
    }


def _pairs(options: Mapping[str, Any], part: str, **_: object) -> Iterator[Row]:
    pair = Pair.model_validate(options)
    sources = (pair.left, pair.right)
    halves = [parts_of(data, Images)[0][part] for data in sources]
    number, channels = max(map(len, halves)), max(data.shape[2] for data in sources)
    draw = np.random.default_rng((pair.seed, PARTS.index(part)))
    orders = [
        np.concatenate([draw.permutation(len(half)) for _ in range(-(-number // len(half)))])
        for half in halves
    ]
    for indices in zip(*(order[:number].tolist() for order in orders), strict=True):
        both = []
        for half, data, index in zip(halves, sources, indices, strict=True):
            pixels = np.frombuffer(half[index]["pixels"], np.uint8).reshape(data.shape)
            both.append(np.broadcast_to(pixels, (*data.shape[:2], channels)))  # grey: three equal
        yield image_row(np.concatenate(both, axis=1), f"pair {indices}")


class Images(Task):
    """Images as sequences of the colours of a palette, each behind `<bos>`.

    Attributes:
        palette: the colours.
        has_halves: whether left and right half of each image come from different sources.
    """

    name = "images"
    recipe_class = ImageRecipe
    model_class = CausalLM
    built_in: ClassVar = {"digits": digits, "photographs": photographs, PAIRS: pairs}
    columns: ClassVar = {"image": "image"}
    key = "pixels"
    item_name = "images"
    loss_unit = "nats per pixel"
    pipeline = "unconditional-image-generation"
    rows_at_once = 100  # photographs of a data set may have megabytes each
    clean_keys: ClassVar = {"path", "options", "size", "mode"}
    clean_features = datasets.Features({"pixels": datasets.Value("binary")})
    features = datasets.Features({"input_ids": datasets.List(datasets.Value("int32"))})

    @staticmethod
    def read_files(files: Files, data: Data) -> datasets.Dataset:
        return image_files(files_of(files))

    @classmethod
    def clean(cls, columns: Columns, data: ImageData, part: str) -> Columns:
        shape = data.shape
        pixels, left_out = [], []
        for image in columns["image"]:
            try:
                pixels.append(pixels_of(image, shape).tobytes())
            except Exception:
                name = image["path"] if isinstance(image, Mapping) else shown(image)
                left_out.append(name or "one without a name")
        if left_out:
            warnings.warn(
                f"images of the {part} part cannot be read and are left out, {len(left_out)}: "
                f"{', '.join(left_out[:20])}{', ...' if len(left_out) > 20 else ''}",
                stacklevel=2,
            )
        return {"pixels": pixels}

    def open(self, folder: Path | None) -> None:
        data, settings = self.recipe.data, self.recipe.palette
        self.has_halves = data.path == PAIRS

        def learn(folder: Path) -> None:
            images = map(self._images, self.to_learn_from(data.window))
            Palette.learn(images, data.shape, settings).save(folder)

        if folder is None:
            made_of = [self.digest("train"), data.shape, settings.model_dump()]
            folder = cached("palettes", made_of, learn)
        self.palette = Palette.load(folder)
        if self.palette.shape != data.shape:
            raise ValueError(
                f"data make images of the shape {data.shape}, expected {self.palette.shape} "
                f"(height, width, channels), for which {folder / PALETTE} was made"
            )
        self.made_of = [data.shape, self.palette.colors.tolist()]
        self.facts["train"]["colours"] = len(self.palette.colors)

    def encode(self, columns: Columns) -> Columns:
        ids = self.palette.encode(self._images(columns))
        first = np.full((len(ids), 1), self.palette.bos_token_id)
        return {"input_ids": np.concatenate([first, ids], axis=1).astype(np.int32)}

    def _images(self, columns: Columns) -> np.ndarray:
        """Returns the images of rows, `(images, height, width, channels)`."""
        content = b"".join(columns["pixels"])
        return np.frombuffer(content, np.uint8).reshape(-1, *self.recipe.data.shape)

    def items(self, rows: datasets.Dataset, part: str) -> Items:
        return Items(rows.with_format("numpy"), np.full(len(rows), self.palette.pixels + 1))

    def save(self, folder: Path) -> None:
        self.palette.save(folder)

    @classmethod
    def sizes(cls, recipe: ImageRecipe, task: Any = None) -> dict[str, Any]:
        height, width, _ = recipe.data.shape
        colors = recipe.palette.colors if task is None else len(task.palette.colors)
        tokens = {"bos_token_id": colors, "eos_token_id": None, "pad_token_id": None}
        return {"vocab_size": colors + 1, "max_length": height * width + 1, **tokens}

    @classmethod
    def cost_lengths(cls, recipe: ImageRecipe) -> dict[str, int]:
        height, width, _ = recipe.data.shape
        return {"decoder": height * width}

    def collate(self, items: list[Any]) -> dict[str, Tensor]:
        ids = pad(items, {})["input_ids"].long()
        labels = ids.clone()
        labels[:, 0] = IGNORED_LABEL
        return {"input_ids": ids, "labels": labels}

    # --- scores ---------------------------------------------------------------------------------

    def evaluate(self, model: HeadwiseModel, part: str, evaluation: Any, each: Each) -> Outcome:
        height, width, _ = self.palette.shape

        @torch.no_grad()
        def nats(batch: list[int]) -> np.ndarray:
            """Returns -ln p of the left and of the right half of each image, `(images, 2)`."""
            ids = self._ids(part, batch).to(model.device)
            logits = model(input_ids=ids).logits[:, :-1].float()
            found = -logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).double()
            halves = found.view(-1, height, width).tensor_split([width // 2], dim=2)
            return torch.stack([half.sum((1, 2)) for half in halves], 1).cpu().numpy()

        # Images are equally long, so that their batches are in the order of the part.
        sides = np.concatenate(each(self.batches(part, _BATCH_TOKENS), nats))
        pictures = list(self._pictures(cast(CausalLM, model), part, evaluation))
        return Outcome(scores=self._scores(sides), pictures=pictures)

    def _scores(self, sides: np.ndarray) -> list[Score]:
        """Returns the scores of images of whose two halves the nats are known, `(images, 2)`."""
        height, width, _ = self.palette.shape
        pixels = np.array([height * (width // 2), height * (width - width // 2)])
        score = partial(Score.of, statistic="bits", lower_is_better=True, digits=3)

        def rows(nats: np.ndarray, dimensions: int) -> np.ndarray:
            return np.stack([nats, np.full(len(nats), dimensions)], axis=1)

        colors = len(self.palette.colors)
        note = (
            f"a dimension is a pixel, which has one of {colors} colours; if all colours were "
            f"equally likely, it would be {np.log2(colors):.2f}"
        )
        scores = [score("bits per dimension", rows(sides.sum(1), pixels.sum()), note=note)]
        for side, name in enumerate(("left half", "right half") if self.has_halves else ()):
            scores.append(score(name, rows(sides[:, side], pixels[side])))
        return scores

    def _pictures(
        self, model: CausalLM, part: str, evaluation: ImageEvaluation
    ) -> Iterator[Picture]:
        """Yields images that the model draws and completes, and maps of what counts where."""
        palette = self.palette
        if evaluation.samples:
            real = palette.decode(self._some(part, evaluation.samples)[:, 1:].numpy())
            drawn = palette.decode(draw_images(model, palette, evaluation, evaluation.samples))
            png = sheet([("of the data", real), ("drawn by the model", drawn)])
            caption = "Images of the data in the palette's colours, and images by the model."
            yield Picture.of("Samples", png, caption)
        if evaluation.completions and palette.height > 1:
            ids = self._some(part, evaluation.completions)[:, 1:]
            blocks = completions(model, palette, evaluation, ids)
            png = sheet([*blocks, ("of the data", palette.decode(ids.numpy()))])
            caption = "The model is given the upper half of images of the data and draws the rest."
            yield Picture.of("Completions", png, caption)
        if not evaluation.maps:
            return
        ids = self._some(part, evaluation.maps)
        for layer, weights in self._weights(model, ids).items():
            colours, legend = winner_map(weights)
            label = "what counts most"
            if self.has_halves:
                label += f"; specialisation over the halves {specialisation(weights):.2f}"
            real = palette.decode(ids[:, 1:].numpy())
            png = sheet([("of the data", real), (label, colours)], legend)
            caption = (
                "Which expert or head counts most where a pixel is read, and of how many of these "
                "pixels. The paler, the less it stands out from the others."
            )
            yield Picture.of(f"Map of layer {layer}", png, caption)

    def monitor(self, model: HeadwiseModel) -> dict[str, float]:
        """Returns the measure of figure 2 of some validation images, if they are pairs.

        By the side of the pixel that a position reads, and of the one that it predicts; the mean
        over layers, and each layer.
        """
        if not self.has_halves:
            return {}
        layers = self._weights(model, self._some("validation", _MEASURED))
        measured: dict[str, float] = {}
        for name, predicted in (("specialisation", False), ("specialisation, predicted", True)):
            of_layers = {
                f"{name}, layer {layer}": specialisation(weights, predicted=predicted)
                for layer, weights in layers.items()
            }
            measured |= {name: fmean(of_layers.values()), **of_layers} if of_layers else {}
        return measured

    def _weights(self, model: HeadwiseModel, ids: Tensor) -> dict[int, Tensor]:
        """By layer, `(images, height, width, experts)`, where there are weights for each pixel."""
        found: dict[int, list[Tensor]] = {}
        for some in ids.split(_AT_ONCE):
            for system, weights in weights_by_position(model, input_ids=some.to(model.device)):
                of_pixels = weights[:, 1:].float().cpu()  # the first position reads no pixel
                shape = (self.palette.height, self.palette.width)
                found.setdefault(system.layer, []).append(of_pixels.unflatten(1, shape))
        return {layer: torch.cat(weights) for layer, weights in found.items()}

    def _some(self, part: str, number: int) -> Tensor:
        """Returns images that are spread over a part, which may be in the order of classes."""
        return self._ids(part, spread(range(len(self.stored(part))), number))

    def _ids(self, part: str, indices: Sequence[int]) -> Tensor:
        return self.collate(self.stored(part).__getitems__(indices))["input_ids"]

    def describe(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """Returns the colours of pixels, and where these stand; the first position reads none.

        `predicted side` is that of the pixel behind the one that is read, which the last has not.
        """
        palette, ids = self.palette, batch["input_ids"]
        pixels = torch.arange(ids.size(1), device=ids.device) - 1
        rows, columns = pixels // palette.width, pixels % palette.width

        def label(classes: Tensor) -> Tensor:
            return classes.long().masked_fill(pixels < 0, -1).expand_as(ids)

        classes: dict[str, tuple[Tensor, list[str]]] = {}
        if palette.width > 1:
            side = label(columns >= palette.width // 2)
            predicted = torch.cat([side[:, 1:], side.new_full((len(side), 1), -1)], dim=1)
            classes["side"] = side, ["left", "right"]
            classes["predicted side"] = predicted, ["left", "right"]
        if palette.height > 1:
            classes["height"] = label(rows >= palette.height // 2), ["upper", "lower"]
        colors = np.broadcast_to(palette.colors, (len(palette.colors), 3))
        shades = (colors @ np.array(_LUMA) * len(_SHADES) / 256).astype(np.int64)
        of_ids = torch.from_numpy(np.append(shades, -1)).to(ids.device)  # bos is behind the colours
        classes["brightness"] = of_ids[ids], _SHADES
        names = {number: f"#{bytes(color).hex()}" for number, color in enumerate(colors)}
        names[palette.bos_token_id] = "<bos>"
        return {"decoder": Positions.of_tokens(ids, names, "colour", classes)}

    @classmethod
    def predict(
        cls, folder: Path, recipe: ImageRecipe, model: HeadwiseModel, wish: Wish
    ) -> Iterator[str]:
        """Draws images, or completes the upper half of images in files; writes a PNG file."""
        wish.refuse(cls.name, "texts")
        output = wish.output or Path(folder.resolve().parent.name)
        output = output if output.suffix.lower() == ".png" else Path(f"{output}.png")
        palette, evaluation = Palette.load(folder), recipe.evaluation
        if wish.inputs:
            images = np.stack([pixels_of_file(file, palette.shape) for file in wish.inputs])
            ids = torch.from_numpy(palette.encode(images)).repeat_interleave(wish.number or 1, 0)
            blocks = completions(cast(CausalLM, model), palette, evaluation, ids)
        else:
            drawn = draw_images(cast(CausalLM, model), palette, evaluation, wish.number or _DRAWN)
            blocks = [("", palette.decode(drawn))]
        write_bytes(output, sheet(blocks))
        yield f"written: {output}"


def draw_images(
    model: CausalLM,
    palette: Palette,
    evaluation: ImageEvaluation,
    number: int,
    given: Tensor | None = None,
) -> np.ndarray:
    """Draws images pixel by pixel, from the top left, each pixel from the model's prediction.

    Args:
        model: the model, in evaluation mode.
        palette: its palette.
        evaluation: seed, temperature and `top_k` of the draws.
        number: how many images to draw.
        given: colours of their first pixels, `(number, pixels)`, which the model completes.

    Returns:
        Numbers of colours, `(number, pixels)`.
    """
    start = torch.full((number, 1), palette.bos_token_id)
    if given is not None:
        start = torch.cat([start, given], dim=1)
    with torch.no_grad(), own_draws():
        torch.manual_seed(evaluation.seed)
        drawn = [
            model.generate(
                some.to(model.device),
                max_length=palette.pixels + 1,
                do_sample=True,
                temperature=evaluation.temperature,
                top_k=evaluation.top_k or 0,  # 0 stands for all colours
                top_p=1.0,
                suppress_tokens=[palette.bos_token_id],
                remove_invalid_values=True,  # of a model that diverged
            )
            for some in start.split(_AT_ONCE)
        ]
    return torch.cat(drawn)[:, 1:].cpu().numpy()


def completions(
    model: CausalLM, palette: Palette, evaluation: ImageEvaluation, ids: Tensor
) -> list[tuple[str, np.ndarray]]:
    """Returns blocks of a sheet: the upper halves of images, and how the model completes them."""
    upper = palette.height // 2
    given = ids[:, : upper * palette.width]
    drawn = draw_images(model, palette, evaluation, len(ids), given)
    halves = palette.decode(ids.numpy()).copy()
    halves[:, upper:] = _UNKNOWN
    return [("given", halves), ("completed by the model", palette.decode(drawn))]


def specialisation(weights: Tensor, *, predicted: bool = False) -> float:
    """Returns the share of the variance of weights over pixels that the side of a pixel explains.

    Figure 2 of the paper plots "the relative variance in the mechanism-activation over the two
    sides of the image", without an equation. We read it as the correlation ratio: with c the
    weights at a pixel, c̄ their mean over all pixels and c̄_s over those on side s,

        Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖²

    Nor does the paper say whether the pixel is the one that a position reads, or the one behind it,
    which it predicts. They are on different sides at the middle of a row and at its end: mechanisms
    that are perfectly divided by one of them reach 0.584 by the other in images of 8×16 pixels.

    Args:
        weights: the weight of each expert where a pixel is read, `(..., height, width, experts)`.
        predicted: whether the side is that of the pixel behind it. The last has none.

    >>> left, right = [0.9, 0.1], [0.2, 0.8]
    >>> specialisation(torch.tensor([[left, right], [left, right]]))
    1.0
    """
    height, width = weights.shape[-3:-1]
    pixels = torch.arange(height * width, device=weights.device)[int(predicted) :]
    rows = weights.double().flatten(-3, -2)[..., : len(pixels), :]  # (..., pixels, experts)
    right = pixels % width >= width // 2
    sides = [rows[..., of_side, :].flatten(0, -2) for of_side in (~right, right)]
    rows = rows.flatten(0, -2)
    mean = rows.mean(0)
    total = (rows - mean).square().sum()
    between = sum(len(side) * (side.mean(0) - mean).square().sum() for side in sides)
    # The variance of equal weights may differ from 0 by rounding.
    return float((between / total).clamp(max=1)) if total > 1e-12 * rows.square().sum() else 0.0
