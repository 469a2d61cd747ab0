"""Settings of training, as recipes give them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class GateSettings(BaseModel):
    """How MAE's gates and experts take turns (section 3 of the MAE paper)."""

    model_config = ConfigDict(extra="forbid")

    method: Literal["block-coordinate-descent", "joint"] = Field(
        "block-coordinate-descent",
        description="G and F steps in turn, or everything together (the paper's NOBCD)",
    )
    period: int = Field(5, ge=1, description="a G step before each F step in every period-th unit")
    unit: Literal["epochs", "steps"] = Field("epochs", description="what the period counts")
    learning_rate: float = Field(1.0, gt=0, description="of the gates' SGD, without momentum")


class BranchSettings(BaseModel):
    """How the Weighted Transformer's κ and α learn (section 4.1 of its paper)."""

    model_config = ConfigDict(extra="forbid")

    learning_rate: float | None = Field(
        None, gt=0, description="at the end of the warm-up; default: (d/N)^-0.5 · warmup_steps^-0.5"
    )
    warmup_steps: int = Field(
        400, ge=1, description="steps of linear growth from zero; then inverse square root"
    )
    freeze_last: int | None = Field(
        None, ge=0, description="steps at the end without learning; default: a sixth of the run"
    )


class PlateauSettings(BaseModel):
    """When the learning rate falls because validation has stalled (appendix A.2 of TIM's paper)."""

    model_config = ConfigDict(extra="forbid")

    patience: int = Field(
        5, ge=1, description="validations in a row without a new best loss before the rate falls"
    )
    factor: float = Field(0.5, gt=0, lt=1, description="what the rate is multiplied by")


class TrainingSettings(BaseModel):
    """What a run does with its data; defaults are those of the base Transformer."""

    model_config = ConfigDict(extra="forbid")

    max_steps: int | None = Field(None, ge=1, description="optimizer steps; or give epochs")
    epochs: float | None = Field(None, gt=0, description="passes over the training data")
    batch_tokens: int = Field(
        4096, ge=1, description="sequences × longest side, padding included, of one batch"
    )
    gradient_accumulation: int = Field(1, ge=1, description="batches per optimizer step")
    learning_rate: float = Field(7e-4, gt=0, description="at the end of the warm-up")
    schedule: Literal["inverse-sqrt", "linear", "cosine", "constant", "plateau"] = Field(
        "inverse-sqrt",
        description="of the learning rate after the warm-up; plateau lowers it when the validation "
        "loss stalls",
    )
    plateau: PlateauSettings = Field(
        default_factory=PlateauSettings, description="for schedule: plateau, when it falls"
    )
    warmup_steps: int = Field(4000, ge=0, description="steps of linear growth from zero")
    warmup_fraction: float | None = Field(
        None, ge=0, lt=1, description="share of the run in place of warmup_steps"
    )
    optimizer: Literal["adam", "nesterov"] = Field(
        "adam", description="Adam, or SGD with Nesterov's momentum"
    )
    momentum: float = Field(0.99, ge=0, lt=1, description="of nesterov")
    adam_betas: tuple[float, float] = Field((0.9, 0.98), description="Adam's decay rates")
    adam_epsilon: float = Field(1e-9, gt=0, description="Adam's epsilon")
    weight_decay: float = Field(0.0, ge=0, description="decoupled; not of biases, norms, gates")
    clip_norm: float = Field(0.0, ge=0, description="largest gradient norm; 0 for no clipping")
    precision: Literal["float32", "bf16"] = Field(
        "float32", description="of matrix products (autocast); weights stay float32"
    )
    seed: int = Field(1, ge=0, description="of weights, batches, dropout and draws")
    evaluate_every: int = Field(500, ge=1, description="steps between validations and savings")
    log_every: int = Field(10, ge=1, description="steps between records of the training loss")
    keep_checkpoints: int = Field(2, ge=1, description="how many of the latest stay on disk")
    average_last: int = Field(
        0, ge=0, description="for final_model: average, how many of the last checkpoints"
    )
    final_model: Literal["best", "last", "average"] = Field(
        "best", description="which weights are evaluated and kept as the run's model"
    )
    gates: GateSettings = Field(default_factory=GateSettings, description="how MAE's gates learn")
    branches: BranchSettings = Field(
        default_factory=BranchSettings, description="how the Weighted Transformer's κ and α learn"
    )

    @model_validator(mode="after")
    def _check(self) -> "TrainingSettings":
        if (self.max_steps is None) == (self.epochs is None):
            raise ValueError("give one of max_steps and epochs")
        if self.final_model == "average" and self.average_last < 2:
            raise ValueError("final_model: average needs average_last of at least 2")
        if self.average_last and self.final_model != "average":
            raise ValueError(
                f"average_last is {self.average_last}, but final_model is {self.final_model!r}: "
                f"set final_model: average, or leave average_last out"
            )
        if self.average_last > self.keep_checkpoints:
            raise ValueError(
                f"average_last is {self.average_last}, but keep_checkpoints is "
                f"{self.keep_checkpoints}: only checkpoints that are kept can be averaged"
            )
        freeze_last = self.branches.freeze_last
        if freeze_last and self.max_steps and freeze_last > self.max_steps:
            raise ValueError(
                f"branches.freeze_last is {freeze_last}, but max_steps is {self.max_steps}: give "
                f"at most that, or leave it out for a sixth of the run"
            )
        return self

    def warmup(self, num_training_steps: int) -> int:
        """Steps of linear growth from zero, in a run of so many.

        >>> TrainingSettings(epochs=3, warmup_fraction=0.06).warmup(500)
        30
        """
        if self.warmup_fraction is None:
            return self.warmup_steps
        return round(self.warmup_fraction * num_training_steps)
