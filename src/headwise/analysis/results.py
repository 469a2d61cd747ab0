"""What a comparison found: the record that runs leave behind and the report is made of."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, Field, model_validator
from typing_extensions import Self

from headwise.tasks.outcome import RECORD, Picture, Sample, Score

Centre = Literal["mean", "median"]


class AttentionRecord(BaseModel):
    """What the heads of one module did on the held-out data.

    "Experts" stands for whatever its decision is about: experts (gates of MAE, choices of MoA),
    heads (agreement), mechanisms (competition, TIM) or branches (Weighted Transformer).
    """

    model_config = RECORD

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

    model_config = RECORD

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


class RunResult(BaseModel):
    """One system trained with one seed."""

    model_config = RECORD

    system: str
    seed: int
    parameters: int
    macs: int = Field(description="multiply-accumulates of one forward pass, see macs_lengths")
    macs_lengths: dict[str, int] = Field(
        description="encoder, decoder: positions in that pass; one of them where there is but one"
    )
    steps: int
    seconds: float = Field(description="wall-clock time of training, interruptions apart")
    validation_loss: float = Field(description="of the final model, in the task's unit")
    history: list[dict[str, float]] = Field(
        description="records with step and loss (training), or eval_loss (validation) and the "
        "figures that a task measures there, each under its name"
    )
    scores: list[Score] = Field(min_length=1, description="systems are ranked by the first")
    attention: list[AttentionRecord] = Field(description="empty for standard attention")
    branches: list[BranchTrajectory] = Field(
        default=[], description="empty unless the system has branches whose weights are learned"
    )


class PairedTest(BaseModel):
    """A system against the baseline, on the same test items (paired bootstrap)."""

    model_config = RECORD

    baseline: str
    difference: float = Field(description="of the first score; the system's less the baseline's")
    p_value: float


class SystemSummary(BaseModel):
    """A system over its seeds."""

    model_config = RECORD

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


class ComparedSample(BaseModel):
    """Something of the test part and what each system makes of it (first seed)."""

    model_config = RECORD

    given: dict[str, str] = Field(
        description="label to text; what a system sees comes first, what is expected behind it"
    )
    made: dict[str, str] = Field(description="system to text")


class ComparedPicture(BaseModel):
    """The same picture of several systems (first seed)."""

    model_config = RECORD

    title: str
    captions: dict[str, str] = Field(default={}, description="system to words, may be missing")
    pngs: dict[str, str] = Field(description="system to base64; not all systems need have one")


class Comparison(BaseModel):
    """Everything the report shows."""

    model_config = RECORD

    title: str
    task: str = Field(description="what was learned: translation")
    loss_name: str = Field(description="the unit of the losses: nats per token")
    loss_has_perplexity: bool = Field(
        True, description="whether the exponential of the loss is a perplexity of tokens"
    )
    item_name: str = Field(description="what the paired bootstrap draws: sentences")
    centre: Centre = Field("mean", description="of figures over seeds")
    baseline: str = Field(description="the system others are compared with")
    systems: list[SystemSummary] = Field(min_length=1)
    samples: list[ComparedSample] = []
    pictures: list[ComparedPicture] = []
    facts: dict[str, str] = Field(default={}, description="about the data, label to value")
    recipe: str = Field(description="the resolved recipe, as YAML")
    command: str = Field(description="what reproduces the comparison")
    versions: dict[str, str]
    machine: str = Field(description="class of machine, e.g. CPU, 2 cores")


class Benchmark(BaseModel):
    """Comparisons of the same systems on several data sets."""

    model_config = RECORD

    title: str
    comparisons: dict[str, Comparison] = Field(min_length=1, description="by data set")


def compare_samples(samples: Mapping[str, Sequence[Sample]]) -> list[ComparedSample]:
    """The systems' samples of the same items side by side, first those that differ.

    Args:
        samples: system to its samples; an item is told by what is given.
    """
    found: dict[tuple[tuple[str, str], ...], ComparedSample] = {}
    for system, of_system in samples.items():
        for sample in of_system:
            key = tuple(sample.given.items())
            compared = found.setdefault(key, ComparedSample(given=sample.given, made={}))
            compared.made[system] = sample.made
    return sorted(found.values(), key=lambda sample: len(set(sample.made.values())) == 1)


def compare_pictures(pictures: Mapping[str, Sequence[Picture]]) -> list[ComparedPicture]:
    """The systems' pictures of the same title side by side.

    Args:
        pictures: system to its pictures; of those with one title, the first is put beside others'
            first, the second beside their second.
    """
    found: dict[tuple[str, int], ComparedPicture] = {}
    for system, of_system in pictures.items():
        titles: Counter[str] = Counter()
        for picture in of_system:
            key = (picture.title, titles[picture.title])
            titles[picture.title] += 1
            compared = found.setdefault(key, ComparedPicture(title=picture.title, pngs={}))
            compared.pngs[system] = picture.png
            compared.captions[system] = picture.caption
    return list(found.values())
