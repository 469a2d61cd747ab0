"""The recipe of the image task."""

from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from headwise.data.images.palette import PaletteSettings
from headwise.data.images.settings import ImageSettings, PairImages, image_shape
from headwise.models.causal_lm import CausalLMConfig
from headwise.recipes.settings import EvaluationSettings, LanguageModelSettings, Recipe
from headwise.settings import LARGEST_SEED


class ImageModel(LanguageModelSettings):
    """Sizes of the causal model, whose tokens are colours."""

    starts_from = CausalLMConfig

    def config(self, **encoding: Any) -> CausalLMConfig:
        return CausalLMConfig(**self.sizes(), **encoding)


class ImageEvaluation(EvaluationSettings):
    """How many images and maps the evaluation draws, and how."""

    samples: int = Field(16, ge=0, le=1_000_000, description="How many images the model draws.")
    completions: int = Field(
        8,
        ge=0,
        le=1_000_000,
        description="How many images the model completes, given their upper half.",
    )
    maps: int = Field(
        8,
        ge=0,
        le=1_000_000,
        description="How many images get a map of what counts most at each pixel.",
    )
    temperature: float = Field(
        1.0,
        ge=0.001,
        le=1000,
        description="Temperature by which the logits are divided when pixels are drawn. Below 1, "
        "the images vary less.",
    )
    top_k: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="How many of the likeliest colours a pixel is drawn from. By default it is "
        "drawn from all colours.",
    )
    seed: int = Field(1, ge=0, le=LARGEST_SEED, description="Seed of the random draws.")


class ImageRecipe(Recipe):
    """A recipe of the image task."""

    encoding_keys = ("palette",)

    task: Literal["images"] = Field("images", description="The task of the recipe.")
    data: ImageSettings = Field(
        default_factory=lambda: PairImages(), description="Which images the model learns."
    )
    palette: PaletteSettings = Field(
        default_factory=lambda: PaletteSettings(),
        description="How the colours of the images are chosen.",
    )
    model: ImageModel = Field(
        default_factory=lambda: ImageModel(), description="Sizes and attention of the model."
    )
    evaluation: ImageEvaluation = Field(
        default_factory=lambda: ImageEvaluation(),
        description="How many images and maps the evaluation draws, and how.",
    )

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        height, width, _ = image_shape(self.data)
        if height * width > self.training.batch_tokens:
            raise ValueError(
                f"data.size makes images of {height * width:,} pixels, expected at most "
                f"training.batch_tokens, {self.training.batch_tokens:,}: a batch holds at least "
                f"one image"
            )
        return self
