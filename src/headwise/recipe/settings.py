"""The settings that the recipes of all tasks have; each task adds its own."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from headwise.models.ablation_names import check_ablations
from headwise.models.config import TransformerConfig
from headwise.ops.activations import Activation
from headwise.training.settings import TrainingSettings

# A name becomes a part of a folder's name, and the command line separates names by commas.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")]


class ModelSettings(BaseModel, ABC):
    """The settings of every model; the defaults are those of the base Transformer."""

    model_config = ConfigDict(extra="forbid")

    embed_dim: int = Field(512, ge=1, description="Width of the model.")
    num_heads: int = Field(8, ge=1, description="Number of heads of each attention.")
    ffn_dim: int = Field(2048, ge=1, description="Width of the hidden layer of each feed-forward.")
    attention: str | dict[str, Any] = Field(
        "standard",
        description="Name of the system of heads, or a mapping from sites to systems with their "
        "options and layers.",
    )
    norm: Literal["post", "pre"] = Field(
        "post",
        description="Where layer norms stand: after each residual sum (`post`) or before each "
        "sub-layer (`pre`).",
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout of embeddings and sub-layers.")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of attention weights.")
    ffn_dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout of the hidden layer of each feed-forward."
    )
    ffn_activation: Activation = Field(
        "relu",
        description="Activation of each feed-forward, also of those that are parts of a system: "
        "`relu`, `gelu` or `leaky-relu`.",
    )

    def model_post_init(self, context: Any) -> None:
        # This finds sizes and systems that do not fit together before any data is read.
        self.config()

    @abstractmethod
    def config(self, **encoding: Any) -> TransformerConfig:
        """Returns the configuration of the model.

        Args:
            encoding: arguments that depend on the data, such as the size of the vocabulary and the
                ids of special tokens; without them, the defaults of the configuration.
        """


class TokenModelSettings(ModelSettings):
    """The settings of a model that reads tokens, each with its position."""

    positions: Literal["sinusoidal", "learned"] = Field(
        "sinusoidal",
        description="What tells the model where a token stands: `sinusoidal` positions, which set "
        "no limit to the length, or `learned` embeddings.",
    )
    max_positions: int | None = Field(
        None,
        ge=1,
        description="Number of learned positions: the model can read no longer sequence. Default: "
        "what the items of language modelling, masked language modelling and images need; 512 for "
        "other tasks.",
    )


class LanguageModelSettings(TokenModelSettings):
    """The settings of a model with one stack, which reads and predicts the same vocabulary."""

    layers: int = Field(6, ge=1, description="Number of layers.")
    share_embeddings: bool = Field(
        True, description="Whether the input and the output embeddings share their weights."
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Label smoothing of the training loss."
    )


class EvaluationSettings(BaseModel):
    """How a finished model is evaluated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ablation: dict[str, str | dict[str, Any]] = Field(
        default_factory=dict,
        description="Changes what trained systems compute in evaluation: the name of a system, "
        "then the name of one of its ablations, or a mapping with `name` and options. "
        "`headwise keys` lists them.",
    )

    @field_validator("ablation")
    @classmethod
    def _check_ablation(cls, ablation: dict[str, Any]) -> dict[str, Any]:
        check_ablations(ablation)
        return ablation


class SystemSettings(BaseModel):
    """One system of a comparison: its changes to the recipe."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field(
        "", description="A line that describes the system in lists and reports."
    )
    model: dict[str, Any] = Field(
        default_factory=dict, description="Keys of `model` that this system sets otherwise."
    )
    training: dict[str, Any] = Field(
        default_factory=dict, description="Keys of `training` that this system sets otherwise."
    )


class Recipe(BaseModel):
    """One experiment. The recipe of a task defines `task`, `data`, `model` and `evaluation`."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field(
        "", description="A line that describes the recipe in the list of recipes."
    )
    task: str = Field(description="Name of the task.")
    data: Any = Field(description="The data to train and evaluate on.")
    model: Any = Field(description="Sizes of the model, and its attention.")
    training: TrainingSettings = Field(description="How the model is trained.")
    evaluation: Any = Field(description="How the trained model is evaluated.")
    systems: dict[Name, SystemSettings] = Field(
        default_factory=dict,
        description="The systems to compare: each name has the system's changes to the recipe. The "
        "first is the baseline.",
    )
    datasets: dict[Name, dict[str, Any]] = Field(
        default_factory=dict,
        description="The data sets to compare on: each name has its changes to `data`. Every "
        "system is trained and evaluated on each.",
    )
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list,
        description="Seeds of a comparison, which trains every system once with each; by default "
        "`training.seed` alone.",
    )

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: list[int]) -> list[int]:
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            raise ValueError(
                f"{twice[0]} is there more than once, expected different numbers: its runs would "
                f"count as several; name it once"
            )
        return seeds
