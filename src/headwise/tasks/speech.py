"""Speech enhancement: noisy speech, a causal model of its spectrogram, PESQ of what comes out.

As in the TIM paper (Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent
Mechanisms*, https://arxiv.org/abs/2103.00336, section 4.2 and appendix A.2): magnitudes of a
short-time Fourier transform in, log magnitudes of clean speech out, learned by squared error; the
waveform gets the phase of the noisy one.

Its pieces are in files of their own: sound files (`sound.audio`), data (`sound.speech_settings`,
`sound.speech_sources`, `sound.speech_corpora`,
`sound.recordings`, `sound.utterances`, `sound.mixing`, `sound.voices`), the transform
(`sound.spectrum`), sounds of any length (`sound.enhancing`), scores (`sound.speech_scores`) and
pictures (`sound.spectrograms`).
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from headwise.models.base import HeadwiseModel
from headwise.models.decisions import decisions_by_position
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.recipe.settings import EvaluationSettings, ModelSettings, Recipe
from headwise.tasks.outcome import Outcome, Picture, Score, spread
from headwise.tasks.parts import PARTS
from headwise.tasks.sound.audio import AudioError, Waveform
from headwise.tasks.sound.enhancing import enhance
from headwise.tasks.sound.spectrograms import draw_spectrograms
from headwise.tasks.sound.spectrum import Spectrum
from headwise.tasks.sound.speech_corpora import SpeechCorpus, load_speech
from headwise.tasks.sound.speech_scores import (
    LOWEST_PESQ,
    has_pesq,
    pesq_rate,
    pesq_score,
    si_sdr,
)
from headwise.tasks.sound.speech_settings import GeneratedSpeech, SpeechSettings
from headwise.tasks.sound.utterances import Frames, Utterances, collate
from headwise.tasks.task import Advance, Items, Task


class SpeechModel(ModelSettings):
    """Sizes of the speech enhancement model; defaults are those of the TIM paper's baseline."""

    embed_dim: int = Field(256, ge=1, description="width of the model")
    num_heads: int = Field(16, ge=1, description="heads of each attention")
    ffn_dim: int = Field(256, ge=1, description="width of the feed-forward's hidden layer")
    layers: int = Field(8, ge=1, description="layers of the model")
    front_channels: list[int] = Field(
        [1024, 512, 128],
        description="channels of the convolutions in front; one more, as wide as the model, "
        "follows them",
    )
    lookahead: int = Field(
        2, ge=0, description="frames of 16 ms that the model hears ahead; one per convolution"
    )
    floor: float = Field(
        0.1, gt=0, description="added to magnitudes before the logarithm, of input and output"
    )
    predicts: Literal["magnitude", "gain"] = Field(
        "magnitude",
        description="log magnitudes of clean speech as such, or as what is added to the noisy ones",
    )

    def config(self, **encoding: Any) -> SpeechEnhancerConfig:
        """The configuration; the data say the sampling rate and the frames of an item."""
        return SpeechEnhancerConfig(**self.model_dump(), **encoding)


class SpeechEvaluation(EvaluationSettings):
    """How sound is enhanced that is longer than the items trained on, and what is shown."""

    context: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of a window of data.seconds that serves the rest of it as past, in "
        "sounds longer than that",
    )
    pictures: int = Field(2, ge=0, description="test utterances whose spectrograms are shown")


class SpeechRecipe(Recipe):
    """What speech to free from what noise, and with what."""

    task: Literal["speech-enhancement"] = Field("speech-enhancement", description="what is learned")
    data: SpeechSettings = Field(
        default_factory=lambda: GeneratedSpeech(), description="speech and noise"
    )
    model: SpeechModel = Field(
        default_factory=lambda: SpeechModel(), description="sizes and attention"
    )
    evaluation: SpeechEvaluation = Field(
        default_factory=lambda: SpeechEvaluation(), description="windows and pictures"
    )


class SpeechEnhancement(Task):
    """Noisy utterances, and the clean speech in them.

    Args:
        corpus: utterances in three parts.
    """

    recipe_class = SpeechRecipe
    model_class = SpeechEnhancer
    loss_name = "squared error of log magnitudes"
    item_name = "utterances"
    saved = ()
    macs_lengths = {"decoder": 626}  # noqa: RUF012 - ten seconds, as the DNS test set's

    def __init__(self, corpus: SpeechCorpus) -> None:
        self.corpus = corpus
        self.train, self.validation, self.test = corpus.train, corpus.validation, corpus.test
        self.notes = dict(corpus.notes)
        if not has_pesq():
            self.notes["PESQ"] = (
                'left out: the package pesq is not installed (pip install "headwise[speech]"; it '
                "needs a C compiler)"
            )

    @classmethod
    def prepare(cls, recipe: SpeechRecipe, folder: Path | None = None) -> Self:
        return cls(load_speech(recipe.data, recipe.model.floor))

    def save(self, folder: Path) -> None:
        """Nothing: no encoding is learned, and the model's configuration says the rest."""

    def digest(self) -> str:
        digest = hashlib.sha256()
        for part in PARTS:
            digest.update(getattr(self.corpus, part).digest().encode())
        for name, utterances in self.corpus.transfer.items():
            digest.update(f"{name}\0{utterances.digest()}".encode())
        return digest.hexdigest()

    @classmethod
    def nominal_config(cls, recipe: SpeechRecipe) -> SpeechEnhancerConfig:
        spectrum = Spectrum(recipe.data.rate)
        window = spectrum.num_frames(spectrum.num_samples(recipe.data.seconds))
        return recipe.model.config(sampling_rate=spectrum.rate, window=window)

    def model_config(self, settings: SpeechModel) -> SpeechEnhancerConfig:
        spectrum = self.corpus.train.spectrum
        window = spectrum.num_frames(self.corpus.train.samples)
        return settings.config(sampling_rate=spectrum.rate, window=window)

    def collate(self, items: list[Frames]) -> dict[str, Tensor]:
        return collate(items)

    def evaluate(
        self, model: HeadwiseModel, part: Items, evaluation: SpeechEvaluation, advance: Advance
    ) -> Outcome:
        """PESQ and SI-SDR before and after, and spectrograms."""
        assert isinstance(model, SpeechEnhancer) and isinstance(part, Utterances)
        table, unread = _score_part(model, part, evaluation, advance)
        scores = _summarise(table, unread, part.spectrum.rate, self.statistic)
        if part is self.test:
            for name, utterances in self.corpus.transfer.items():
                further = _score_part(model, utterances, evaluation, lambda _: None)
                for score in _summarise(*further, part.spectrum.rate, self.statistic):
                    scores.append(score.model_copy(update={"name": f"{score.name}, {name}"}))
        return Outcome(
            scores=scores,
            items=[[value] for value in next(iter(table.values()))],
            pictures=_draw(model, part, table, unread, evaluation),
        )

    def statistic(self, items: np.ndarray) -> float:
        """The mean over utterances; one without speech counts for none."""
        return _mean(np.asarray(items)[:, 0])


Table = dict[str, list[float]]  # score to values, one per utterance
Unread = dict[int, str]  # index of an utterance that cannot be read, to the reason


def _score_part(
    model: SpeechEnhancer, part: Utterances, evaluation: SpeechEvaluation, advance: Advance
) -> tuple[Table, Unread]:
    """Every utterance's scores; first the one that systems are ranked by."""
    names = ["PESQ", "PESQ noisy"] if has_pesq() else []
    table: Table = {name: [] for name in [*names, "SI-SDR", "SI-SDR noisy"]}
    unread: Unread = {}
    number = len(part.pieces)
    for index in range(number):
        try:
            noisy, clean = part.whole(index)
        except AudioError as error:
            figures = {}
            unread[index] = str(error).partition(";")[0]
        else:
            figures = _score(model, noisy, clean, part.spectrum.rate, evaluation)
        for name, column in table.items():
            column.append(figures.get(name, float("nan")))
        # Of the part to train on there are not as many pieces as items, which the bar counts.
        advance((index + 1) * len(part) // number - index * len(part) // number)
    return table, unread


def _score(
    model: SpeechEnhancer,
    noisy: Waveform,
    clean: Waveform,
    rate: int,
    evaluation: SpeechEvaluation,
) -> dict[str, float]:
    """The scores of one utterance."""
    enhanced = _enhance(model, noisy, evaluation)
    figures = {"SI-SDR": si_sdr(clean, enhanced), "SI-SDR noisy": si_sdr(clean, noisy)}
    if has_pesq():
        before, after = pesq_score(clean, noisy, rate), pesq_score(clean, enhanced, rate)
        # Where the noisy sound has speech and the enhanced one has none left, that is as bad
        # as can be; where neither has, there is nothing to score.
        if np.isnan(before):
            after = before
        elif np.isnan(after):
            after = LOWEST_PESQ
        figures |= {"PESQ": after, "PESQ noisy": before}
    return figures


def _enhance(model: SpeechEnhancer, noisy: Waveform, evaluation: SpeechEvaluation) -> Waveform:
    sound = torch.from_numpy(noisy).unsqueeze(0).to(model.device)
    return enhance(model, sound, context=evaluation.context)[0].cpu().numpy()


def _summarise(table: Table, unread: Unread, rate: int, statistic: Any) -> list[Score]:
    """A score for each column, and how far the enhanced sound is from the noisy one."""
    band = "wide band, P.862.2" if pesq_rate(rate) == 16_000 else "narrow band, P.862.1"
    columns: dict[str, np.ndarray] = {}
    for name in ("PESQ", "SI-SDR"):
        if name in table:
            after, before = np.array(table[name]), np.array(table[f"{name} noisy"])
            columns |= {name: after, f"{name} gain": after - before, f"{name} noisy": before}
    scores = []
    for name, values in columns.items():
        silent = int(np.isnan(values).sum()) - len(unread)
        notes = [f"{band}, MOS-LQO" if name.startswith("PESQ") else "dB"]
        if silent:
            notes.append(f"{silent} of {len(values)} utterances left out: no speech found")
        if unread:
            first = next(iter(unread.values()))
            notes.append(f"{len(unread)} of {len(values)} left out: not readable, first {first}")
        scores.append(
            Score.of(
                name,
                values[:, None],
                statistic,
                digits=2 if name.startswith("PESQ") else 1,
                note="; ".join(notes),
            )
        )
    return scores


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _draw(
    model: SpeechEnhancer,
    part: Utterances,
    table: Table,
    unread: Unread,
    evaluation: SpeechEvaluation,
) -> list[Picture]:
    """Spectrograms of some utterances, from the noisiest on, with what the heads did below."""
    noisiness = np.nan_to_num(np.array(table["SI-SDR noisy"]), nan=np.inf)
    order = [i for i in np.argsort(noisiness, kind="stable").tolist() if i not in unread]
    return [
        _draw_one(model, part, index, table, evaluation)
        for index in spread(order, evaluation.pictures)
    ]


def _draw_one(
    model: SpeechEnhancer, part: Utterances, index: int, table: Table, evaluation: SpeechEvaluation
) -> Picture:
    noisy, clean = (wave[: part.samples] for wave in part.whole(index))
    spectrum = part.spectrum
    waves = {"noisy": noisy, "clean": clean, "enhanced": _enhance(model, noisy, evaluation)}
    sounds = [
        (label, spectrum.analyse(torch.from_numpy(wave)).abs()) for label, wave in waves.items()
    ]
    maps, kinds = _maps(model, sounds[0][1])
    figures = ", ".join(
        f"{name} {table[f'{name} noisy'][index]:.2f} → {table[name][index]:.2f}"
        for name in ("PESQ", "SI-SDR")
        if name in table
    )
    caption = f"{figures}."
    if maps:
        caption += f" Below: {' and '.join(kinds)} over the frames, by layer."
    png = draw_spectrograms(sounds, maps, spectrum.rate)
    return Picture.of(part.name(index), png, caption)


def _maps(
    model: SpeechEnhancer, magnitudes: Tensor
) -> tuple[list[tuple[str, Tensor]], Sequence[str]]:
    """What each layer's system decided for each frame, where it decides for frames."""
    decided = decisions_by_position(model, inputs=magnitudes.unsqueeze(0).to(model.device))
    maps = [(f"layer {place.layer}", made.weights[0]) for place, made in decided.items()]
    return maps, sorted({place.module.words.decision for place in decided})
