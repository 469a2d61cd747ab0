"""Small payloads of the page of `headwise explore` whose answers are known."""

from collections.abc import Sequence

import numpy as np

from headwise.heads.system import Words
from headwise.report.explorer.payload import (
    Ablation,
    Attention,
    Blob,
    Candidate,
    Made,
    Output,
    Payload,
    Place,
    Prediction,
    Run,
    Stack,
)

SENTENCE = [" The", " cat", " sle", "eps", " <b>", "<eos>"]
# The unit that leads at each of these tokens, by layer; in layer 1 nothing leads at the last.
LEADERS = [[0, 1, 1, 1, 2, 0], [2, 2, 2, 0, 0, None]]


def text_stack(tokens: Sequence[str] = SENTENCE, given: int | None = None) -> Stack:
    return Stack(kind="text", tokens=list(tokens), special=[len(tokens) - 1], given=given)


def weights_of(leaders: Sequence[int | None], units: int) -> np.ndarray:
    """Weights of which the leader's is 0.7, or all alike where there is none."""
    weights = np.full((len(leaders), units), 0.3 / (units - 1))
    for row, leader in enumerate(leaders):
        if leader is None:
            weights[row] = 1 / units
        else:
            weights[row, leader] = 0.7
    return weights


def reads_the_one_before(queries: int, keys: int, back: int) -> np.ndarray:
    """A head that reads nothing but the position so far back, or the first."""
    read = np.zeros((queries, keys))
    read[np.arange(queries), np.clip(np.arange(queries) - back, 0, keys - 1)] = 1
    return read


def place(
    layer: int,
    leaders: Sequence[int | None],
    *,
    units: int = 3,
    heads: int = 3,
    site: str = "encoder_self",
) -> Place:
    """A system whose head h reads the token h + 1 before."""
    stack = site.partition("_")[0]
    size = len(leaders)
    attention = Attention(
        name="",
        queries=stack,
        keys="encoder" if site == "decoder_cross" else stack,
        heads=[
            Blob.of(reads_the_one_before(size, size, back + 1), power=2) for back in range(heads)
        ],
    )
    return Place(
        path=f"{site}.{layer}",
        site=site,
        layer=layer,
        system="own",
        whole_layer=False,
        stack=stack,
        decides="position",
        units=units,
        unit_names=[f"expert {unit}" for unit in range(units)],
        weights=Blob.of(weights_of(leaders, units)),
        attentions=[attention],
    )


def run(name: str = "one", **changes: object) -> Run:
    values: dict[str, object] = {
        "name": name,
        "task": "classification",
        "words": {"own": Words()},
        "stacks": {"encoder": text_stack()},
        "places": [place(layer, leaders) for layer, leaders in enumerate(LEADERS)],
        "output": Output(
            classes=[
                Candidate(text="sleepy", probability=0.75),
                Candidate(text="awake", probability=0.25),
            ]
        ),
    }
    return Run.model_validate({**values, **changes})


def payload(*runs: Run, **changes: object) -> Payload:
    values: dict[str, object] = {
        "title": "Explore",
        "served": False,
        "text": "The cat sleeps <b>",
        "takes_text": True,
        "runs": list(runs) or [run()],
    }
    return Payload.model_validate({**values, **changes})


def removals(path: str, units: int) -> list[Ablation]:
    return [
        Ablation(
            path=path,
            label=f"without expert {unit}",
            name="without-expert",
            options={"expert": unit},
            unit=unit,
        )
        for unit in range(units)
    ]


def translation(text: str, **changes: object) -> Run:
    """A run with two stacks and all sites, which has written a text."""
    written = ["<bos>", *(f" {word}" for word in text.split()), "<eos>"]
    sites = ("encoder_self", "decoder_self", "decoder_cross")
    places = [place(0, [0, 1, 2, 0, 1, 2], site=site) for site in sites]
    first = Prediction(
        stack="decoder",
        position=1,
        best=[Candidate(text=written[1], probability=0.5)],
        probability=0.5,
    )
    return run(
        **{
            "task": "translation",
            "stacks": {"encoder": text_stack(), "decoder": text_stack(written, given=1)},
            "places": places,
            "ablations": removals("encoder_self.0", 3),
            "output": Output(
                made=[Made(label="translation", by_model=True, text=text)], predictions=[first]
            ),
            **changes,
        }
    )


def image() -> Run:
    """Four pixels by two behind a start, of which each row has a unit."""
    tokens = ["<start>", *["#102030"] * 4, *["#f0e0d0"] * 4]
    stack = Stack(kind="image", tokens=tokens, special=[0], width=4, height=2, offset=1)
    where = place(0, [2, 0, 0, 0, 0, 1, 1, 1, 1], site="decoder_self")
    return run(task="images", stacks={"decoder": stack}, places=[where], output=Output())


def speech() -> Run:
    """Six frames; mechanisms take turns."""
    stack = Stack(
        kind="speech",
        tokens=[f"{frame * 0.016:.2f} s" for frame in range(6)],
        frame_seconds=0.016,
        rate=8000,
        spectrogram=Blob.of(np.linspace(0, 1, 6 * 5).reshape(6, 5), scale=1.0),
    )
    where = place(0, [0, 1, 0, 1, 0, 1], units=2, site="decoder_self")
    return run(task="speech-enhancement", stacks={"decoder": stack}, places=[where])
