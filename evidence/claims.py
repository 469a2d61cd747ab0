"""What a claim is: a sentence of a paper as data, and what it is tested by.

Each file in `catalogue/papers/` has the claims of one paper. A claim says which quantity it is
about, and one or more tests of it: one system against another, or one system against numbers.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headwise.yaml import read_yaml

CATALOGUE = Path(__file__).parent / "catalogue"
Scale = Literal["laptop", "gpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

# What a claim may be about. Those of the second group are measured without training, and `figures`
# is only counted.
OfRuns = Literal[
    "score",
    "loss",
    "recorded",
    "entropy",
    "entropy's fall in training",
    "largest share",
    "smallest share",
]
OfTimes = Literal["time of a step", "time of a token"]


class Declared(BaseModel):
    """What the catalogue declares: a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _named(value: Any) -> Any:
    return {"system": value} if isinstance(value, str) else value


class Subject(Declared):
    """A system as a test means it; in YAML its name is enough where nothing else is said."""

    system: str
    dataset: str | None = None
    without: tuple[str, ...] = ()  # ablations: the quantity is what they cost, on average
    ablated: str | None = None  # an ablation under which the system is scored
    layer: int | None = None  # the only one that counts, of decisions; -1 is the last

    def __str__(self) -> str:
        parts = [self.system]
        parts += [f"({self.dataset})"] if self.dataset else []
        parts += [f"evaluated with {self.ablated}"] if self.ablated else []
        if self.without:
            # "SYSTEM=without-expert,expert=0" is the ablation `without-expert`.
            ablations = {text.partition("=")[2].partition(",")[0]: None for text in self.without}
            mean = f" (mean of {len(self.without)})" if len(self.without) > 1 else ""
            parts.append(f"under {', '.join(ablations)}{mean}")
        if self.layer is not None:
            parts.append("in its last layer" if self.layer == -1 else f"in layer {self.layer}")
        return " ".join(parts)


Named = Annotated[Subject, BeforeValidator(_named)]


class Against(Declared):
    """One system against another.

    `better` is a larger score where larger is better; a lower loss, a lower entropy, a smaller
    share, less time and a smaller cost otherwise. `not better` and `not worse` mean by
    no more than the margin, the smallest difference that matters.
    """

    of: Named
    holds: Literal["better", "not better", "not worse"]
    than: Named
    margin: float = Field(gt=0)
    printed: float | None = None  # `of` less `than` as the paper prints it

    def __str__(self) -> str:
        if self.of.without:
            return f"the loss of {self.of} {_RISES[self.holds]} than that of {self.than}"
        return f"{self.of} {self.holds} than {self.than}"


# What of two losses that ablations raise is meant by the better.
_RISES = {"better": "rises less", "not better": "rises no less", "not worse": "rises no more"}


class Within(Declared):
    """One system against numbers."""

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


class Quantity(Declared):
    """The number that a claim is about; docs/claims.md explains each kind."""

    kind: OfRuns | OfTimes | Literal["figures"]
    # Of a score, or of what is recorded; of figures how the title of the paper's tables begins.
    name: str | None = None
    what: str | None = None  # of figures: which, such as params or MACs
    models: str = ""  # of figures: a regular expression for the names of models
    sites: tuple[str, ...] | None = None  # of decisions

    @property
    def is_of_times(self) -> bool:
        return self.kind in get_args(OfTimes)


class AtScale(Declared):
    """The experiment that tests a claim at one scale, and what its systems are called there."""

    experiment: str
    systems: dict[str, str] = {}
    datasets: dict[str, str] = {}

    def named(self, subject: Subject) -> Subject:
        """Returns a subject with the names of this experiment."""
        system = self.systems.get(subject.system, subject.system)
        dataset = subject.dataset and self.datasets.get(subject.dataset, subject.dataset)
        return subject.model_copy(update={"system": system, "dataset": dataset})


class Claim(Declared):
    """A sentence of a paper, and what it is tested by."""

    says: str
    short: str = ""  # for pictures
    where: str  # table, figure or section of the paper
    printed: str  # the paper's own figures
    holds_if: str
    note: str = ""  # how the paper is read, or what the test leaves out
    changed: str = ""  # of the test, after its results were known
    # Why it does not hold at `laptop`, as experiments show it.
    cause: str = ""
    # Of these one has to hold, or the claim is not testable here.
    entry: tuple[Within, ...] = ()
    # Why it is not testable, at a scale that has no experiment for it or where no entry holds.
    otherwise: str = ""
    quantity: Quantity | None = None
    tests: tuple[Against | Within, ...] = ()
    experiment: str | None = None  # at every scale that has one of this name
    at: dict[Scale, AtScale] = {}  # at single scales

    @model_validator(mode="after")
    def _tested(self) -> Self:
        if self.quantity is None:
            if self.tests or not self.otherwise:
                raise ValueError("expected a quantity, or `otherwise`: why nothing can be tested")
        elif (self.quantity.kind == "figures") == bool(self.tests):
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
        tests = (*self.entry, *self.tests)
        named = [s for t in tests for s in (t.of, getattr(t, "than", None)) if s is not None]
        return list(dict.fromkeys(named))


class Paper(Declared):
    """The claims of one paper, by their ids."""

    name: str  # that of its file
    paper: str  # authors, year and title
    link: str
    system: str  # as a sentence names it
    headline: str | None = None  # the claim that is said first of all
    caveat: str = ""  # what the headline does not tell alone
    terms: str = ""  # the systems and the terms of the claims, for who has not read the paper
    left_out: str = ""  # what the paper claims and no claim here tests
    claims: dict[str, Claim]


def papers() -> list[Paper]:
    """Returns the papers with their claims, in the order of publication."""
    files = sorted((CATALOGUE / "papers").glob("*.yaml"))
    return [_paper(file.stem.partition("-")[2], file.read_text(encoding="utf-8")) for file in files]


@cache
def _paper(name: str, text: str) -> Paper:
    return Paper.model_validate({"name": name, **read_yaml(text)})


def all_claims() -> dict[str, Claim]:
    """Returns all claims by their ids."""
    return {name: claim for paper in papers() for name, claim in paper.claims.items()}
