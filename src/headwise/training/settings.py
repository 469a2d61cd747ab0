"""Settings of training, as recipes give them.

PyTorch is not imported before a rule of training is looked up, so that the name of a key is checked
at once.
"""

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from headwise.settings import LARGEST_SEED, Settings

if TYPE_CHECKING:
    from headwise.heads.rules import RuleSettings

Count = Annotated[int, Field(ge=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Logger = Literal[
    "tensorboard", "wandb", "mlflow", "comet_ml", "trackio", "clearml", "dvclive", "swanlab"
]


class PlateauSettings(Settings):
    """When the learning rate falls because validation has stalled (Lamb et al. 2021, A.2)."""

    patience: Count = 5
    """Number of validations in a row without a new best loss after which it falls."""
    factor: float = Field(0.5, gt=0, lt=1)
    """Factor by which the learning rate is multiplied when it falls."""


class TrainingSettings(Settings):
    """What a run does with its data; the defaults are those of the base Transformer."""

    max_steps: Count | None = None
    """Number of optimizer steps of the run. Give either this or epochs."""
    epochs: float | None = Field(None, gt=0)
    """Number of passes over the training data."""
    trainable: Literal["all", "gates+output", "gates", "nothing"] = "all"
    """Which parameters learn. `gates`: those by which systems decide how heads are combined (FTG of
    Peng et al. 2020); `gates+output`: these and the output projections of all attentions (FTG+);
    `all` (FTALL); `nothing`: the model is evaluated as it starts (NOFT)."""
    batch_tokens: Count = 4096
    """Largest size of a batch in tokens: its number of sequences times the longest of them."""
    gradient_accumulation: Count = 1
    """Number of batches whose gradients are summed for one optimizer step."""
    learning_rate: float = Field(7e-4, gt=0)
    """Learning rate at the end of the warm-up."""
    schedule: Literal["inverse-sqrt", "linear", "cosine", "constant", "plateau"] = "inverse-sqrt"
    """How the learning rate moves after the warm-up; plateau lowers it when validation stalls."""
    plateau: PlateauSettings = Field(default_factory=PlateauSettings)
    """Settings of `schedule: plateau`: when and how far the learning rate falls."""
    warmup_steps: int = Field(4000, ge=0)
    """How many steps the learning rate rises from zero."""
    warmup_fraction: float | None = Field(None, ge=0, lt=1)
    """Share of the run's steps in which the learning rate rises. It replaces warmup_steps."""
    optimizer: Literal["adam", "nesterov"] = "adam"
    """The optimizer: Adam with decoupled weight decay (AdamW), or SGD with Nesterov's momentum."""
    momentum: float = Field(0.99, ge=0, lt=1, description="Momentum, for optimizer: nesterov.")
    adam_betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Decay rates of Adam's two averages."""
    adam_epsilon: float = Field(1e-9, gt=0)
    """The small number that Adam adds to its denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of matrices and embeddings; biases, norms, scalars and parameters that
    a system excludes are not decayed. With `nesterov` it is not decoupled, but added to the
    gradients."""
    clip_norm: float = Field(0.0, ge=0)
    """Largest norm of the gradients; 0 does not clip them. Parameters to which a rule gives a rate
    of their own (MAE's gates, κ and α of the Weighted Transformer) are not clipped, nor in the
    norm."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Precision of matrix products. `auto`: bf16 where the GPU has it, else float32. With `bf16`
    (autocast) weights stay in float32."""
    compile: bool = False
    """Whether training runs the model as torch.compile makes it: faster on a GPU, after minutes of
    compiling. Losses are the same up to rounding. Validation runs it as it is written."""
    gradient_checkpointing: bool = False
    """Whether layers are computed again in the backward pass in place of being remembered, which
    takes less memory and more time. Losses and gradients are the same."""
    fsdp: bool = False
    """Whether the processes that train a model divide it (FSDP2), with its gradients and the state
    of the optimizer, for models that are too large for one device. Losses are the same. One process
    alone trains as without it."""
    loader_workers: int = Field(0, ge=0)
    """Number of processes that prepare batches while the model computes, for items that take long
    to make, such as noisy speech. The batches are the same with any number."""
    seed: int = Field(1, ge=0, le=LARGEST_SEED)
    """Seed of the initial weights, the batches, dropout and other draws."""
    evaluate_every: Count = 500
    """The run validates and saves a checkpoint every this many steps."""
    log_every: Count = 10
    """The mean training loss of the last steps is recorded every this many steps."""
    report_to: list[Logger] = []
    """Loggers that are given the losses, the learning rate and what is measured at each validation,
    as `[tensorboard]`. TensorBoard's files are in the folder `logs` of the run; the others get a
    project `headwise`."""
    record_decisions: bool = True
    """Whether each validation, and the start of the run, also records what the systems of heads
    decide on a few sequences: entropy, shares, and what explains the decisions."""
    patience: Count | None = None
    """Number of validations in a row without a new best loss after which the run stops early. By
    default it never does. Schedules still follow max_steps or epochs."""
    keep_checkpoints: Count = 2
    """How many of the latest checkpoints stay, beside the best one."""
    final_model: Literal["best", "last", "average"] = "best"
    """Which weights are evaluated and kept: those of the best validation loss, the last ones, or
    the average of the `keep_checkpoints` latest checkpoints, or of all if there are fewer."""
    rules: dict[str, Any] = Field(default={}, validate_default=True)
    """Settings of what systems do in training beyond gradient descent: the name of a system, or
    `module:Class` of your own, then its settings: `{mae: {unit: steps, period: 2}}`. `headwise
    recipes --keys SYSTEM` lists them."""

    @field_validator("rules")
    @classmethod
    def _complete_rules(cls, given: dict[str, Any]) -> "dict[str, RuleSettings]":
        """Those not given too: the recipe of a run has all values, whatever defaults become."""
        from headwise.heads.rules import rule_settings
        from headwise.models.plan import rules_by_name, system_class

        rules = {n: rule for n, rule in rules_by_name().items() if rule.settings_class.model_fields}
        for name in given.keys() - rules.keys():
            rule = system_class(name).rule
            if rule is None or not rule.settings_class.model_fields:
                raise ValueError(
                    f"{name} has no rule of training with settings, expected some of "
                    f"{', '.join(rules)}, or module:Class of your own system that has one"
                )
            rules[name] = rule
        return {n: rule_settings(n, rule, given.get(n, {})) for n, rule in rules.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.max_steps is None) == (self.epochs is None):
            raise ValueError("expected exactly one of max_steps and epochs")
        for name, settings in self.rules.items() if self.max_steps else ():
            try:
                settings.check(self.max_steps)
            except ValueError as error:
                raise ValueError(f"rules.{name}.{error}") from None
        return self

    def warmup(self, total: int) -> int:
        """Returns how many steps the learning rate rises in a run of `total` steps."""
        if self.warmup_fraction is None:
            return self.warmup_steps
        return round(self.warmup_fraction * total)

    def lr_factor(self, step: int, total: int) -> float:
        """Returns the factor of the learning rate at a step, from 0, of a run of `total` steps.

        It grows linearly, from above 0. Then it is √(warmup/step), or falls to 0 at `total` along a
        straight line or half a cosine wave (Loshchilov & Hutter 2017, *SGDR*,
        https://arxiv.org/abs/1608.03983), or stays 1.

        >>> settings = TrainingSettings(max_steps=100, warmup_steps=4)
        >>> [round(settings.lr_factor(step, 100), 2) for step in (0, 1, 4, 16)]
        [0.25, 0.5, 0.89, 0.49]
        """
        step, warmup = step + 1, self.warmup(total)
        if step < warmup:
            return step / warmup
        remaining = max(0.0, (total - step + 1) / max(1, total - warmup + 1))
        return {
            "inverse-sqrt": math.sqrt(max(warmup, 1) / step),
            "linear": remaining,
            "cosine": (1 - math.cos(math.pi * min(1.0, remaining))) / 2,
        }.get(self.schedule, 1.0)
