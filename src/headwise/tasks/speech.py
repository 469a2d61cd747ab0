"""The speech enhancement task: a causal model of spectrograms takes the noise out of speech.

It follows section 4.2 and appendix A.2 of Lamb et al. 2021, *Transformers with Competitive
Ensembles of Independent Mechanisms*, https://arxiv.org/abs/2103.00336. The model reads the
magnitudes of a short-time Fourier transform of noisy speech and predicts the log magnitudes of the
clean speech, with squared error as the loss. The enhanced waveform gets the phase of the noisy one.

`data.sound` has the sounds and their spectra, `tasks.enhancing` enhances sounds of any length,
`tasks.metrics` scores them and `tasks.drawing` draws their spectrograms.
"""

import hashlib
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from headwise.data.division import PARTS
from headwise.data.sound.audio import Waveform, audio_info
from headwise.data.sound.corpus import SpeechCorpus, load_speech
from headwise.data.sound.dataset import Frames, Utterances, collate
from headwise.data.sound.settings import GeneratedSpeech, SpeechSettings
from headwise.data.sound.spectrum import Spectrum
from headwise.models.config import SpeechEnhancerConfig
from headwise.models.modeling import HeadwiseModel
from headwise.models.speech import SpeechEnhancer
from headwise.recipes.pretrained import pretrained_config
from headwise.recipes.settings import EvaluationSettings, ModelSettings, Recipe
from headwise.tasks.drawing import draw_spectrograms
from headwise.tasks.enhancing import enhance, enhance_file
from headwise.tasks.metrics import LOWEST_PESQ, has_pesq, pesq_rate, pesq_score, si_sdr
from headwise.tasks.outcome import Outcome, Picture, Score, spread
from headwise.tasks.positions import Positions, decisions_by_position, frame_positions
from headwise.tasks.significance import Statistic, of_totals
from headwise.tasks.task import ONE_EACH, Advance, Items, Task, Wish
from headwise.training.processes import divided


class SpeechModel(ModelSettings):
    """Sizes of the model; the defaults are those of the baseline of Lamb et al. 2021."""

    config_class = SpeechEnhancerConfig

    embed_dim: int = Field(256, ge=1, description="Width of the model.")
    num_heads: int = Field(16, ge=1, description="Number of heads of each attention.")
    ffn_dim: int = Field(256, ge=1)
    """Width of the hidden layer of each feed-forward block."""
    layers: int = Field(8, ge=1, description="Number of layers.")
    front_channels: list[Annotated[int, Field(ge=1)]] = Field([1024, 512, 128], max_length=100)
    """Channels of the convolutions in front of the layers. One more convolution, as wide as the
    model, follows them."""
    lookahead: int = Field(2, ge=0, le=101)
    """How many later frames of 16 ms the model sees. Each convolution can see one."""
    floor: float = Field(0.1, gt=0, le=1000)
    """A number that is added to the magnitudes of input and output before their logarithm is
    taken."""
    predicts: Literal["magnitude", "gain"] = "magnitude"
    """What the layers predict: `magnitude`, the log magnitudes of the clean speech, or `gain`, the
    difference that is added to the log magnitudes of the noisy speech."""


class SpeechEvaluation(EvaluationSettings):
    """How sounds longer than a window are enhanced, and how many spectrograms are drawn."""

    context: float = Field(0.5, ge=0, lt=1)
    """The share of a window of data.seconds that only serves as past for the rest of it, in sounds
    that are longer than a window."""
    pictures: int = Field(2, ge=0, le=1_000_000)
    """How many test utterances get spectrograms."""


class SpeechRecipe(Recipe):
    """A recipe of the speech enhancement task."""

    task: Literal["speech-enhancement"] = "speech-enhancement"
    """The task of the recipe."""
    data: SpeechSettings = Field(default_factory=lambda: GeneratedSpeech())
    """Which speech and which noise the model learns from."""
    model: SpeechModel = Field(default_factory=lambda: SpeechModel())
    """Sizes and attention of the model."""
    evaluation: SpeechEvaluation = Field(default_factory=lambda: SpeechEvaluation())
    """How sounds that are longer than a window are enhanced, and how many spectrograms are
    drawn."""


class SpeechEnhancement(Task):
    """Noisy utterances and the clean speech in them."""

    recipe_class = SpeechRecipe
    model_class = SpeechEnhancer
    loss_name = "squared error of log magnitudes"
    loss_has_perplexity = False
    item_name = "utterances"
    saved = ()
    encoding_name = "sampling rate"
    pipeline = "audio-to-audio"
    macs_lengths = {"decoder": 626}  # noqa: RUF012
    macs_lengths_from = "ten seconds, as the sounds of DNS's test set"

    def __init__(self, corpus: SpeechCorpus) -> None:
        self.corpus = corpus
        self.train, self.validation, self.test = corpus.train, corpus.validation, corpus.test
        self.tests = dict(corpus.tests)
        self.notes = dict(corpus.notes)
        if not has_pesq():
            self.notes["PESQ"] = (
                'not computed: the package pesq is not installed (pip install "headwise[speech]"; '
                "this needs a C compiler)"
            )

    @classmethod
    def prepare(cls, recipe: SpeechRecipe, folder: Path | None = None) -> Self:
        return cls(load_speech(recipe.data, recipe.model.floor))

    def save(self, folder: Path) -> None:
        """Writes nothing: no encoding is learned, and the model's configuration has the rest."""

    def encoding(self) -> str:
        return str(self.corpus.train.spectrum.rate)

    @classmethod
    def encoding_of(cls, run: Path) -> str:
        config = pretrained_config(run, SpeechEnhancerConfig)
        assert isinstance(config, SpeechEnhancerConfig)
        return str(config.sampling_rate)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for part in PARTS:
            digest.update(getattr(self.corpus, part).digest().encode())
        return digest.hexdigest()

    def digest_of(self, part: str) -> str:
        utterances = self.part(part)
        assert isinstance(utterances, Utterances)
        return utterances.items_digest()

    @classmethod
    def nominal_config(cls, recipe: SpeechRecipe) -> SpeechEnhancerConfig:
        spectrum = Spectrum(recipe.data.rate)
        return _config(recipe.model, spectrum, spectrum.num_samples(recipe.data.seconds))

    def model_config(self, settings: SpeechModel) -> SpeechEnhancerConfig:
        return _config(settings, self.corpus.train.spectrum, self.corpus.train.samples)

    def collate(self, items: list[Frames]) -> dict[str, Tensor]:
        return collate(items)

    def positions(self, batch: Mapping[str, Tensor]) -> dict[str, Positions]:
        """The convolutions in front of the layers leave the number of frames as it is."""
        floor = self.corpus.train.floor
        return {"decoder": frame_positions(batch["inputs"], batch["labels"], floor)}

    def evaluate(
        self, model: HeadwiseModel, part: Items, evaluation: SpeechEvaluation, advance: Advance
    ) -> Outcome:
        """Returns PESQ and SI-SDR of the noisy and the enhanced speech, and spectrograms."""
        assert isinstance(model, SpeechEnhancer) and isinstance(part, Utterances)
        table = _score_part(model, part, evaluation, advance)
        return Outcome.of(
            _summarise(table, part.spectrum.rate), pictures=_draw(model, part, table, evaluation)
        )

    @classmethod
    def statistic(cls, name: str, evaluation: SpeechEvaluation) -> Statistic:
        return _MEAN

    @classmethod
    def predict(cls, run: Path, recipe: SpeechRecipe, model: HeadwiseModel, wish: Wish) -> None:
        """Removes the noise from a sound file of any length and writes the result to another."""
        assert isinstance(model, SpeechEnhancer)
        wish.refuse(recipe.task, texts="it reads a sound", number=ONE_EACH)
        files = [Path(each) for each in wish.inputs] + ([wish.output] if wish.output else [])
        if len(files) != 2:
            raise ValueError(
                f"INPUT and --output name {len(files)} files, expected two: the noisy sound and "
                f"the file to write, as in `headwise predict RUN noisy.wav clean.wav`"
            )
        source, target = files
        samples = audio_info(source).frames
        with Progress(console=Console(stderr=True), transient=True) as progress:
            advance = partial(progress.advance, progress.add_task("", total=samples))
            enhance_file(model, recipe.evaluation.context, source, target, advance)
        wish.echo(f"written: {target}", written=target)


def _config(settings: SpeechModel, spectrum: Spectrum, samples: int) -> SpeechEnhancerConfig:
    return settings.config(sampling_rate=spectrum.rate, window=spectrum.num_frames(samples))


Table = dict[str, np.ndarray]  # from the name of a score to its value for each utterance


def _score_part(
    model: SpeechEnhancer, part: Utterances, evaluation: SpeechEvaluation, advance: Advance
) -> Table:
    """Returns the scores of every utterance; the first is the score that systems are ranked by."""
    number = len(part.pieces)

    def score(index: int) -> dict[str, float]:
        noisy, clean = part.whole(index)
        return _score(noisy, clean, _enhance(model, noisy, evaluation), part.spectrum.rate)

    def done(index: int) -> None:
        # The bar counts items, and the training part may have more items than pieces.
        advance((index + 1) * len(part) // number - index * len(part) // number)

    rows = divided(range(number), score, done)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _score(noisy: Waveform, clean: Waveform, enhanced: Waveform, rate: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    if has_pesq():
        before, after = pesq_score(clean, noisy, rate), pesq_score(clean, enhanced, rate)
        # If PESQ finds no speech in the noisy sound, there is nothing to score. If it finds speech
        # there and none in the enhanced sound, that is the worst result.
        if np.isnan(before):
            after = before
        elif np.isnan(after):
            after = LOWEST_PESQ
        figures = {"PESQ": after, "PESQ noisy": before}
    return {**figures, "SI-SDR": si_sdr(clean, enhanced), "SI-SDR noisy": si_sdr(clean, noisy)}


def _enhance(model: SpeechEnhancer, noisy: Waveform, evaluation: SpeechEvaluation) -> Waveform:
    sound = torch.from_numpy(noisy).unsqueeze(0).to(model.device)
    return enhance(model, sound, context=evaluation.context)[0].cpu().numpy()


def _summarise(table: Table, rate: int) -> list[tuple[Score, np.ndarray]]:
    """Returns the scores of the enhanced speech, its gain, and of the noisy speech, and items."""
    band = "wide band, P.862.2" if pesq_rate(rate) == 16_000 else "narrow band, P.862.1"
    units = {"PESQ": (f"{band}, MOS-LQO", 2), "SI-SDR": ("dB", 1)}
    scored = []
    for name, (unit, digits) in units.items():
        if name not in table:
            continue
        after, before = table[name], table[f"{name} noisy"]
        columns = {name: after, f"{name} gain": after - before, f"{name} noisy": before}
        for column, values in columns.items():
            note, rows = unit, values[:, None]
            if silent := int(np.isnan(values).sum()):
                note += f"; {silent} of {len(values)} utterances left out: no speech found"
            scored.append((Score.of(column, rows, _MEAN, digits=digits, note=note), rows))
    return scored


def _known(values: np.ndarray) -> np.ndarray:
    """Returns each value and 1; or 0 and 0 for a value that is NaN."""
    return np.hstack([np.nan_to_num(values, nan=0.0), ~np.isnan(values)])


# Over the utterances that have a score.
_MEAN = of_totals(lambda totals: totals[0] / totals[1] if totals[1] else math.nan, _known)


def _draw(
    model: SpeechEnhancer, part: Utterances, table: Table, evaluation: SpeechEvaluation
) -> list[Picture]:
    """Draws utterances of all degrees of noise, with what the heads did below the spectrograms."""
    noisiness = np.nan_to_num(table["SI-SDR noisy"], nan=np.inf)
    order = np.argsort(noisiness, kind="stable").tolist()
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
    # What each layer's system decided for each frame, where it decides for frames.
    decided = decisions_by_position(model, inputs=sounds[0][1].unsqueeze(0).to(model.device))
    maps = [(f"layer {system.layer}", weights[0]) for system, weights in decided]
    units = sorted({system.unit for system, _ in decided})
    figures = ", ".join(
        f"{name} {table[f'{name} noisy'][index]:.2f} → {table[name][index]:.2f}"
        for name in ("PESQ", "SI-SDR")
        if name in table
    )
    caption = f"{figures}."
    if maps:
        caption += f" Below: the weight of each {' and '.join(units)} over the frames, by layer."
    png = draw_spectrograms(sounds, maps, spectrum.rate)
    return Picture.of(part.name(index), png, caption)
