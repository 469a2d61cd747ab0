"""What a claim is: a sentence of a paper as data, and what would confirm it.

Each file in `papers/` has the claims of one paper. A claim says which quantity it is about, and one
or more tests of it: one system against another, or one system against numbers.
"""

from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import Self

from headwise.messages import did_you_mean, one_of
from headwise.plain_yaml import read_yaml

CATALOGUE = resources.files("headwise") / "claims" / "catalogue"
STRICT = ConfigDict(extra="forbid", frozen=True)
Scale = Literal["laptop", "gpu", "paper"]
SCALES: tuple[Scale, ...] = ("laptop", "gpu", "paper")

# What a claim may be about. Of these, those of the second group compare the curves of training of
# two systems, those of the third are measured without training, and `figures` is only counted.
OfRuns = Literal["score", "loss", "entropy", "largest share", "smallest share", "recorded"]
OfCurves = Literal["steps to the baseline's loss", "loss at equal training loss"]
OfTimes = Literal["time of a step", "time of a token"]


def _named(value: Any) -> Any:
    return {"system": value} if isinstance(value, str) else value


class Subject(BaseModel):
    """A system as a test means it; in YAML its name is enough where nothing else is said."""

    model_config = STRICT

    system: str = Field(description="Name of a system of the experiment.")
    dataset: str | None = Field(None, description="Name of a data set of the experiment.")
    on: str | None = Field(
        None, description="Name of a further test set, in place of the test part."
    )
    without: tuple[str, ...] = Field(
        (),
        description="Ablations, as `--ablate` takes them. The quantity is then what they cost the "
        "run, on average over them, and not the score itself.",
    )
    ablated: str | None = Field(
        None, description="An ablation under which the system is scored, as it is trained without."
    )
    layer: int | None = Field(
        None, description="The only layer that counts, of decisions; -1 is the last that decides."
    )

    def __str__(self) -> str:
        parts = [self.system]
        parts += [f"on {self.on}"] if self.on else []
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
    """

    model_config = STRICT

    of: Named
    holds: Literal["better", "not better", "not worse"] = Field(
        description="What the claim says of the system."
    )
    than: Named
    margin: float = Field(
        gt=0,
        description="The smallest difference that matters. Where nothing is significant, this "
        "decides between `no difference larger than` and `cannot be told`; `not better` and `not "
        "worse` mean by no more than this.",
    )
    printed: float | None = Field(
        None,
        description="`of` less `than` as the paper prints it, in the unit of the quantity.",
    )


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


class Quantity(BaseModel):
    """The number that a claim is about."""

    model_config = STRICT

    kind: OfRuns | OfCurves | OfTimes | Literal["figures"]
    name: str | None = Field(
        None,
        description="Of a score: its name, by default the first. Of what is recorded at "
        "validations, its name. Of figures: how the title of the paper's tables begins.",
    )
    what: str | None = Field(None, description="Of figures: which, such as params or MACs.")
    models: str = Field(
        "",
        description="Of figures: a regular expression that the names of their models begin with.",
    )
    sites: tuple[str, ...] | None = Field(None, description="Of decisions: the sites that count.")

    @property
    def is_of_curves(self) -> bool:
        return self.kind in get_args(OfCurves)

    @property
    def is_of_times(self) -> bool:
        return self.kind in get_args(OfTimes)


class AtScale(BaseModel):
    """The experiment that tests a claim at one scale, and the names of its systems there."""

    model_config = STRICT

    experiment: str
    systems: dict[str, str] = Field(
        {}, description="Name of a system in the tests to its name in this experiment."
    )
    datasets: dict[str, str] = Field({}, description="The same for data sets.")

    def named(self, subject: Subject) -> Subject:
        """Returns a subject with the names of this experiment."""
        dataset = subject.dataset
        return subject.model_copy(
            update={
                "system": self.systems.get(subject.system, subject.system),
                "dataset": dataset and self.datasets.get(dataset, dataset),
            }
        )


class Claim(BaseModel):
    """A sentence of a paper, and what would confirm it."""

    model_config = STRICT

    says: str = Field(description="The sentence in our words.")
    short: str = Field("", description="What it is about in two or three words, for pictures.")
    where: str = Field(description="Table, figure or section of the paper.")
    printed: str = Field(description="The paper's own figures.")
    confirmed_if: str = Field(description="What would confirm it here.")
    note: str = Field("", description="How the paper is read, or what the test leaves out.")
    changed: str = Field(
        "", description="What of the test was changed after its results were known."
    )
    otherwise: str = Field(
        "",
        description="What is otherwise here than in the paper, in two or three words, so that "
        "figures that speak against the claim contradict nothing.",
    )
    quantity: Quantity
    tests: tuple[Against | Within, ...] = ()
    experiment: str | None = Field(
        None, description="Name of the experiment at every scale that has one of this name."
    )
    at: dict[Scale, AtScale] = Field({}, description="The experiment at single scales.")

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
    """The claims of one paper."""

    model_config = STRICT

    paper: str = Field(description="Authors, year and title.")
    link: str
    being_mended: bool = Field(
        False, description="Whether the reading of the system is to change, and its runs with it."
    )
    left_out: str = Field("", description="What the paper claims and no claim here tests.")
    claims: dict[str, Claim] = Field(description="Id to claim.")


def papers() -> list[Paper]:
    """Returns the papers with their claims, in the order of publication."""
    files = sorted(
        (f for f in (CATALOGUE / "papers").iterdir() if f.name.endswith(".yaml")),
        key=lambda f: f.name,
    )
    return [_paper(file.read_text(encoding="utf-8")) for file in files]


@cache
def _paper(text: str) -> Paper:
    return Paper.model_validate(read_yaml(text))


def all_claims() -> dict[str, Claim]:
    """Returns all claims by their ids."""
    return {name: claim for paper in papers() for name, claim in paper.claims.items()}


def find_claims(names: list[str]) -> dict[str, Claim]:
    """Returns claims by their ids; without any, all of them.

    Raises:
        ValueError: there is no such claim.
    """
    known = all_claims()
    for name in names:
        if name not in known:
            raise ValueError(f"there is no claim {name!r}, {one_of(name, known)}")
    return {name: known[name] for name in names} if names else known


def question_names(scale: Scale) -> list[str]:
    """Returns the names of the questions why that are asked at a scale."""
    text = (CATALOGUE / "questions.yaml").read_text(encoding="utf-8")
    return list((read_yaml(text) or {}).get(scale) or {})


def check_asked(names: list[str], scale: Scale) -> None:
    """Raises `ValueError` if one of these is neither a claim nor a question of the scale."""
    claims, questions = list(all_claims()), question_names(scale)
    for name in names:
        if name not in (*claims, *questions):
            raise ValueError(
                f"there is no claim {name!r}, expected one of {', '.join(claims)}, or a question: "
                f"{', '.join(questions) or 'none'}{_hint(name, scale, [*claims, *questions])}"
            )


def check_questions(names: list[str], scale: Scale) -> None:
    """Raises `ValueError` if one of these is no question of the scale."""
    known = question_names(scale)
    for name in names:
        if name not in known:
            raise ValueError(
                f"the scale {scale} has no question {name!r}, expected one of "
                f"{', '.join(known) or 'none'}{_hint(name, scale, known)}"
            )


def _hint(name: str, scale: Scale, known: list[str]) -> str:
    others = [other for other in SCALES if other != scale and name in question_names(other)]
    return f"; --scale {others[0]} has it" if others else did_you_mean(name, known)
