"""What the recipes of all tasks have in common; each task adds the keys that are its own."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from headwise.models.ablation import check_ablations
from headwise.models.config import TransformerConfig
from headwise.training.settings import TrainingSettings

# A name becomes part of a folder's name, and is chosen by commas.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")]


class ModelSettings(BaseModel, ABC):
    """Sizes that all models have; defaults are those of the base Transformer."""

    model_config = ConfigDict(extra="forbid")

    embed_dim: int = Field(512, ge=1, description="width of the model")
    num_heads: int = Field(8, ge=1, description="heads of each attention")
    ffn_dim: int = Field(2048, ge=1, description="width of the feed-forward's hidden layer")
    attention: str | dict[str, Any] = Field(
        "standard", description="a system's name, or per site (and layer) a system with options"
    )
    norm: Literal["post", "pre"] = Field(
        "post", description="layer norm behind each residual sum, or before each sub-layer"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="of embeddings and sub-layers")
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="of attention weights")
    ffn_dropout: float = Field(0.0, ge=0, lt=1, description="inside the feed-forward")

    def model_post_init(self, context: Any) -> None:
        # Sizes and systems that do not fit are found before any data is read.
        self.config()

    @abstractmethod
    def config(self, **encoding: Any) -> TransformerConfig:
        """The configuration of the model.

        Args:
            encoding: what only the data tells, such as the size of a vocabulary and the ids of
                special tokens; without it, the class's defaults.
        """


class LanguageModelSettings(ModelSettings):
    """Sizes of one stack that predicts tokens of the vocabulary that it reads."""

    layers: int = Field(6, ge=1, description="depth")
    share_embeddings: bool = Field(
        True, description="whether the weights that read a token also predict it"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="of the training loss")


class EvaluationSettings(BaseModel):
    """How a finished model is evaluated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ablation: dict[str, str | dict[str, Any]] = Field(
        default_factory=dict,
        description="How the systems compute otherwise than they were trained: the name of a "
        "system to the name of one of its ablations, or to a mapping with `name` and its options. "
        "`headwise keys ablations` lists them.",
    )

    @field_validator("ablation")
    @classmethod
    def _check_ablation(cls, ablation: dict[str, Any]) -> dict[str, Any]:
        check_ablations(ablation)
        return ablation


class SystemSettings(BaseModel):
    """One system of a comparison: what it changes in the recipe."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field("", description="one line for lists and the report")
    model: dict[str, Any] = Field(default_factory=dict, description="changes to model")
    training: dict[str, Any] = Field(default_factory=dict, description="changes to training")


class Recipe(BaseModel):
    """One experiment. A task's recipe adds `task`, `data`, `model` and `evaluation`."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field("", description="one line for the list of recipes")
    task: str = Field(description="what is learned")
    data: Any = Field(description="what is learned from")
    model: Any = Field(description="sizes and attention")
    training: TrainingSettings = Field(description="steps, rates, checkpoints")
    evaluation: Any = Field(description="how the finished model is scored")
    systems: dict[Name, SystemSettings] = Field(
        default_factory=dict, description="name to changes; the first is the baseline"
    )
    datasets: dict[Name, dict[str, Any]] = Field(
        default_factory=dict,
        description="name to changes of data; a comparison goes through all of them, one by one",
    )
    seeds: list[int] = Field(
        default_factory=list, description="of a comparison's runs; default: training.seed alone"
    )
