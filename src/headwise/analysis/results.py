"""What a comparison found: the record that runs leave behind and the report is made of."""

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

# A run that diverged has NaN among its numbers; the default would write them as null, which
# cannot be read back.
_CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class AttentionRecord(BaseModel):
    """What the heads of one module did on the held-out data.

    "Experts" stands for whatever its decision is about: experts (gates of MAE, choices of MoA),
    heads (agreement), mechanisms (competition, TIM) or branches (Weighted Transformer).
    """

    model_config = _CONFIG

    site: str = Field(description="encoder_self, decoder_self or decoder_cross")
    layer: int = Field(description="counted from 0")
    kind: str = Field(description="gates, choices, agreement, competition or branches")
    experts: int = Field(description="how many there are")
    entropy: float = Field(description="mean over sequences or tokens of -Σ g ln g, in nats")
    load: list[float] = Field(
        description="sum 1; gates, competition: how often each one's is the largest; choices: its "
        "share of them; agreement, branches: its mean weight"
    )
    uniform: float | None = Field(
        default=None,
        description="entropy if all experts, or all chosen ones, counted alike: ln of their "
        "number; None is ln(experts)",
    )
    entropy_percentiles: dict[int, float] = Field(
        default={},
        description="of the entropies that `entropy` is the mean of: percent to nats; empty if "
        "not recorded",
    )


class BranchTrajectory(BaseModel):
    """The weights of one module's branches over training (Weighted Transformer)."""

    model_config = _CONFIG

    site: str = Field(description="encoder_self or decoder_cross")
    layer: int = Field(description="counted from 0")
    steps: list[int] = Field(description="after which steps they were recorded, ascending")
    kappa: list[list[float]] = Field(description="for each of these steps, one κ per branch")
    alpha: list[list[float]] = Field(description="for each of these steps, one α per branch")

    @model_validator(mode="after")
    def _one_row_per_step(self) -> Self:
        lengths = {len(self.steps), len(self.kappa), len(self.alpha)}
        if len(lengths) > 1 or len({len(row) for row in self.kappa + self.alpha}) > 1:
            raise ValueError("steps, kappa and alpha differ in length, expected a row per step")
        return self


class Score(BaseModel):
    """Translation quality on the test part."""

    model_config = _CONFIG

    bleu: float
    bleu_low: float = Field(description="lower end of the 95% bootstrap interval")
    bleu_high: float
    chrf: float
    bleu_signature: str
    chrf_signature: str


class RunResult(BaseModel):
    """One system trained with one seed."""

    model_config = _CONFIG

    system: str
    seed: int
    parameters: int
    macs: int = Field(description="multiply-accumulates of one forward pass, see macs_lengths")
    macs_lengths: tuple[int, int] = Field(description="source and target tokens of that pass")
    steps: int
    seconds: float = Field(description="wall-clock time of training, interruptions apart")
    validation_loss: float = Field(description="nats per token, of the final model")
    history: list[dict[str, float]] = Field(
        description="records with step and one of loss (training) and eval_loss (validation)"
    )
    score: Score
    attention: list[AttentionRecord] = Field(description="empty for standard attention")
    branches: list[BranchTrajectory] = Field(
        default=[], description="empty unless the system has branches whose weights are learned"
    )


class PairedTest(BaseModel):
    """A system against the baseline, on the same test sentences (paired bootstrap)."""

    model_config = _CONFIG

    baseline: str
    bleu_difference: float
    p_value: float


class SystemSummary(BaseModel):
    """A system over its seeds."""

    model_config = _CONFIG

    name: str
    description: str = Field(description="one line from the recipe, may be empty")
    matched: str = Field(
        default="", description="what --match parameters chose, in words; empty if it did not"
    )
    runs: list[RunResult] = Field(min_length=1)
    relative_step_time: float | None = Field(
        description="median time of forward and backward over the baseline's, side by side"
    )
    paired_test: PairedTest | None = Field(description="of the first seed; None for the baseline")


class Sample(BaseModel):
    """One test sentence and what each system makes of it (first seed)."""

    model_config = _CONFIG

    source: str
    reference: str
    translations: dict[str, str]


class Comparison(BaseModel):
    """Everything the report shows."""

    model_config = _CONFIG

    title: str
    baseline: str = Field(description="the system others are compared with")
    systems: list[SystemSummary] = Field(min_length=1)
    samples: list[Sample]
    corpus: dict[str, str] = Field(description="facts about the data, label to value")
    recipe: str = Field(description="the resolved recipe, as YAML")
    command: str = Field(description="what reproduces the comparison")
    versions: dict[str, str]
    machine: str = Field(description="class of machine, e.g. CPU, 2 cores")
