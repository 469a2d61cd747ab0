"""An image: the decoder reads its pixels row by row, and completes its upper half."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from headwise.report.explorer.inputs.source import (
    Input,
    Source,
    Trained,
    chosen_item,
    part_of,
    refuse_text,
)
from headwise.report.explorer.payload import Made, Output, Stack
from headwise.tasks.image.corpus import fitted
from headwise.tasks.image.drawing import sample_images
from headwise.tasks.image.palette import Raster
from headwise.tasks.images import Images


def image_input(trained: Trained, source: Source) -> Input:
    """Returns an image of the data, or of a file, in the colours of a model's palette."""
    refuse_text(source, Images.name(), "an image")
    raster = Raster.load(trained.folder)
    item = None
    if source.file is not None:
        shape = (raster.height, raster.width, raster.colors.shape[1])
        pixels = fitted(_opened(source.file), shape)
        ids = [raster.bos_token_id, *raster.encode(pixels[None])[0].tolist()]
    else:
        part = part_of(trained.task(Images), source.part)
        item = chosen_item(part, source)
        ids = part[item.number].tolist()
    read = torch.tensor([ids])
    (shown,) = raster.decode(read[:, 1:].numpy())
    made = [Made(label="image", by_model=False, picture=_png(shown))]
    given = raster.height // 2 * raster.width
    if given:
        drawn = sample_images(
            trained.model,
            raster,
            1,
            seed=trained.recipe.evaluation.seed,
            temperature=trained.recipe.evaluation.temperature,
            top_k=trained.recipe.evaluation.top_k,
            given=read[:, 1 : given + 1],
        )
        completed = _png(raster.decode(drawn)[0])
        made.append(Made(label="its upper half, completed", by_model=True, picture=completed))

    def output(out: Any) -> Output:
        return Output(made=made)

    colours = [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in shown.reshape(-1, 3)]
    stack = Stack(
        kind="image",
        tokens=["<start>", *colours],
        special=[0],
        width=raster.width,
        height=raster.height,
        offset=1,
    )
    return Input(
        arguments={"input_ids": read.to(trained.model.device)},
        stacks={"decoder": stack},
        output=output,
        item=item,
    )


def _opened(path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            return ImageOps.exif_transpose(picture)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist, expected an image") from None
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,
        ValueError,
    ) as error:
        raise ValueError(f"{path} cannot be read as an image ({error})") from None


def _png(image: np.ndarray) -> str:
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii")
