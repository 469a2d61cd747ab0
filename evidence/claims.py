"""What a claim is: a sentence of a paper as data, and what would confirm it.

Each file in `catalogue/papers/` has the claims of one paper. A claim says which quantity it is
about, and one or more tests of it: one system against another, or one system against numbers.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from headwise.plain_yaml import read_yaml

CATALOGUE = Path(__file__).parent / "catalogue"
STRICT = ConfigDict(extra="forbid", frozen=True)
Scale = Literal["laptop", "gpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

# What a claim may be about. Of these, those of the second group compare the curves of training of
# two systems, those of the third are measured without training, and `figures` is only counted.
OfRuns = Literal["score", "loss", "entropy", "largest share", "smallest share", "recorded"]
OfCurves = Literal["steps to the baseline's loss", "loss at equal training loss"]
OfTimes = Literal["time of a step", "time of a token"]


def _named(value: Any) -> Any:
    return {"system": value} if isinstance(value, str) else value


class Subject(BaseModel):
    """A system as a test means it; in YAML its name is enough where nothing else is said.

    Attributes:
        system, dataset: names of a system and of a data set of the experiment.
        without: ablations, as `--ablate` takes them. The quantity is then what they cost the run,
            on average over them, and not the score itself.
        ablated: an ablation under which the system is scored, as it is trained without.
        layer: the only layer that counts, of decisions; -1 is the last that decides.
    """

    model_config = STRICT

    system: str
    dataset: str | None = None
    without: tuple[str, ...] = ()
    ablated: str | None = None
    layer: int | None = None

    def __str__(self) -> str:
        parts = [self.system]
        parts += [f"({self.dataset})"] if self.dataset else []
        parts += [f"evaluated with {self.ablated}"] if self.ablated else []
        if self.without:
            # "SYSTEM=without-expert,expert=0" is the ablation `without-expert`.
            ablations = {text.partition("=")[2].partition(",")[0]: None for text in self.without}
            mean = ", on average" if len(self.without) > 1 else ""
            parts.append(f"(cost of {', '.join(ablations)}{mean})")
        if self.layer is not None:
            parts.append("in its last layer" if self.layer == -1 else f"in layer {self.layer}")
        return " ".join(parts)


Named = Annotated[Subject, BeforeValidator(_named)]


class Against(BaseModel):
    """One system against another.

    `better` is a larger score where larger is better; a lower loss, a lower entropy, a smaller
    share, less time, fewer steps and a smaller cost otherwise.

    Attributes:
        of, holds, than: what the claim says of a system.
        margin: the smallest difference that matters. Where nothing is significant, this decides
            between `no difference larger than` and `cannot be told`; `not better` and `not worse`
            mean by no more than this.
        printed: `of` less `than` as the paper prints it, in the unit of the quantity.
    """

    model_config = STRICT

    of: Named
    holds: Literal["better", "not better", "not worse"]
    than: Named
    margin: float = Field(gt=0)
    printed: float | None = None

    def __str__(self) -> str:
        return f"{self.of} {self.holds} than {self.than}"


class Within(BaseModel):
    """One system against numbers."""

    model_config = STRICT

    of: Named
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("expected at_least, at_most or both")
        return self

    def __str__(self) -> str:
        parts = [f"at least {self.at_least:g}"] if self.at_least is not None else []
        parts += [f"at most {self.at_most:g}"] if self.at_most is not None else []
        return f"{self.of} {' and '.join(parts)}"


class Quantity(BaseModel):
    """The number that a claim is about.

    Attributes:
        kind: which; docs/claims.md explains each.
        name: of a score, by default the first; of what is recorded at validations; of figures how
            the title of the paper's tables begins.
        what: of figures: which, such as params or MACs.
        models: of figures: a regular expression that the names of their models begin with.
        sites: of decisions: the sites that count.
    """

    model_config = STRICT

    kind: OfRuns | OfCurves | OfTimes | Literal["figures"]
    name: str | None = None
    what: str | None = None
    models: str = ""
    sites: tuple[str, ...] | None = None

    @property
    def is_of_curves(self) -> bool:
        return self.kind in get_args(OfCurves)

    @property
    def is_of_times(self) -> bool:
        return self.kind in get_args(OfTimes)


class AtScale(BaseModel):
    """The experiment that tests a claim at one scale.

    Attributes:
        experiment: its name.
        systems, datasets: name in the tests to the name in this experiment.
    """

    model_config = STRICT

    experiment: str
    systems: dict[str, str] = {}
    datasets: dict[str, str] = {}

    def named(self, subject: Subject) -> Subject:
        """Returns a subject with the names of this experiment."""
        system = self.systems.get(subject.system, subject.system)
        dataset = subject.dataset and self.datasets.get(subject.dataset, subject.dataset)
        return subject.model_copy(update={"system": system, "dataset": dataset})


class Claim(BaseModel):
    """A sentence of a paper, and what would confirm it.

    Attributes:
        says: the sentence in our words.
        short: what it is about in two or three words, for pictures.
        where, printed: table, figure or section of the paper, and the paper's own figures.
        confirmed_if: what would confirm it here.
        note: how the paper is read, or what the test leaves out.
        changed: what of the test was changed after its results were known.
        otherwise: what is otherwise here than in the paper, in two or three words, so that figures
            that speak against the claim contradict nothing.
        quantity, tests: what is told of which systems.
        experiment: name of the experiment at every scale that has one of this name.
        at: the experiment at single scales.
    """

    model_config = STRICT

    says: str
    short: str = ""
    where: str
    printed: str
    confirmed_if: str
    note: str = ""
    changed: str = ""
    otherwise: str = ""
    quantity: Quantity
    tests: tuple[Against | Within, ...] = ()
    experiment: str | None = None
    at: dict[Scale, AtScale] = {}

    @model_validator(mode="after")
    def _tested(self) -> Self:
        if (self.quantity.kind == "figures") == bool(self.tests):
            raise ValueError("expected tests, or figures that need none")
        if self.tests and self.experiment is None and not self.at:
            raise ValueError("expected an experiment")
        return self

    def experiment_at(self, scale: Scale) -> AtScale | None:
        """Returns what tests the claim at a scale; None if nothing needs to be trained."""
        if scale in self.at:
            return self.at[scale]
        return None if self.experiment is None else AtScale(experiment=self.experiment)

    def subjects(self) -> list[Subject]:
        """Returns all that the tests speak of, without repetitions."""
        named = [s for t in self.tests for s in (t.of, getattr(t, "than", None)) if s is not None]
        return list(dict.fromkeys(named))


class Paper(BaseModel):
    """The claims of one paper, by their ids.

    Attributes:
        paper, link: authors, year and title; and where it is.
        being_mended: whether the reading of the system is to change, and its runs with it.
        left_out: what the paper claims and no claim here tests.
    """

    model_config = STRICT

    paper: str
    link: str
    being_mended: bool = False
    left_out: str = ""
    claims: dict[str, Claim]


def papers() -> list[Paper]:
    """Returns the papers with their claims, in the order of publication."""
    files = sorted((CATALOGUE / "papers").glob("*.yaml"))
    return [_paper(file.read_text(encoding="utf-8")) for file in files]


@cache
def _paper(text: str) -> Paper:
    return Paper.model_validate(read_yaml(text))


def all_claims() -> dict[str, Claim]:
    """Returns all claims by their ids."""
    return {name: claim for paper in papers() for name, claim in paper.claims.items()}
