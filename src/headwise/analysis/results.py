"""What a comparison found: the record that runs leave behind and the report is made of."""

from pydantic import BaseModel, ConfigDict, Field

# A run that diverged has NaN among its numbers; the default would write them as null, which
# cannot be read back.
_CONFIG = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


class AttentionRecord(BaseModel):
    """What the experts of one attention module did on the held-out data.

    Gates (MAE) are a distribution over experts per sequence or position; choices (MoA) a few
    experts per token, with weights.
    """

    model_config = _CONFIG

    site: str = Field(description="encoder_self, decoder_self or decoder_cross")
    layer: int = Field(description="counted from 0")
    kind: str = Field(description="gates (MAE) or choices (MoA)")
    experts: int = Field(description="how many there are")
    entropy: float = Field(description="mean over tokens of -Σ g ln g, in nats")
    load: list[float] = Field(
        description="sum 1; gates: how often each expert's is the largest; choices: its share"
    )
    uniform: float | None = Field(
        default=None,
        description="entropy if all experts, or all chosen ones, counted alike: ln of their "
        "number; None is ln(experts)",
    )


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
