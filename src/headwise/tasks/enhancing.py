"""Takes the noise out of sounds of any length with a trained model, and scores what it makes."""

import math
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from headwise.data.sound import (
    SILENCE,
    SUFFIXES,
    Waveform,
    analyse,
    read_channels,
    resampled,
    rms,
    speech_package,
    synthesise,
)
from headwise.files import written_whole
from headwise.models.speech import SpeechEnhancer
from headwise.tasks.scores import Score


@torch.no_grad()
def enhance(model: SpeechEnhancer, noisy: Waveform) -> Waveform:
    """Takes the noise out of a waveform `(samples,)`, at the sampling rate of the model.

    A sound that is longer than the items of training is read in windows of their length. The first
    half of each is enhanced already: it is the past of the other half.
    """
    config = model.config
    spectra = analyse(torch.tensor(noisy)[None], config.sampling_rate)[0]  # (time, bins)
    magnitudes = spectra.abs()
    time, window = len(magnitudes), min(config.window, len(magnitudes))
    past = max(0, min(window // 2, window - config.lookahead - 1))
    clean, done = torch.empty_like(magnitudes), 0
    while done < time:
        start = min(max(0, done - past), time - window)
        end = start + window
        logs = model(inputs=magnitudes[None, start:end].to(model.device)).logits[0].float().cpu()
        clean[done:end] = (logs.exp() - config.floor)[done - start :].clamp(min=0)
        # The last frames of a window come again, with those behind them, which the model hears.
        done = end if end == time else end - config.lookahead
    enhanced = synthesise(torch.polar(clean, spectra.angle())[None], config.sampling_rate)
    return enhanced[0, : len(noisy)].numpy()


def enhance_file(model: SpeechEnhancer, source: Path, target: Path) -> None:
    """Enhances each channel of a sound file, and writes another of the same rate and length."""
    soundfile, own = speech_package("soundfile"), model.config.sampling_rate
    if target.suffix.lower() not in SUFFIXES or target.resolve() == source.resolve():
        raise ValueError(
            f"the new file is {target}, expected another one than {source}, whose name ends in "
            f"{' or '.join(SUFFIXES)}; name it with --output"
        )
    samples, rate = read_channels({"path": str(source)})
    channels = resampled(samples, rate, own).T
    clean = resampled(np.stack([enhance(model, each) for each in channels], axis=1), own, rate)
    enhanced = np.zeros_like(samples)
    enhanced[: len(clean)] = clean[: len(samples)]
    with written_whole(target) as partial:
        soundfile.write(str(partial), enhanced, rate)


# --- scores ---------------------------------------------------------------------------------------


def si_sdr(clean: Waveform, heard: Waveform) -> float:
    """Returns the scale-invariant signal-to-distortion ratio in decibels.

    Le Roux et al. 2019, *SDR – half-baked or well done?*, https://arxiv.org/abs/1811.02508:
    10 log₁₀ (‖αs‖² / ‖αs − ŝ‖²) with α = ⟨ŝ, s⟩ / ‖s‖², of clean speech s and speech ŝ.
    It is at most 100; -100 if ⟨ŝ, s⟩ is 0; NaN if the clean speech is silent.

    >>> clean = np.array([1.0, 0.0, -1.0, 0.0])
    >>> round(si_sdr(clean, 3 * clean + np.array([0.0, 0.3, 0.0, 0.3])), 1)
    20.0
    """
    s, estimate = clean.astype(np.float64), heard.astype(np.float64)
    if rms(s) <= SILENCE:
        return math.nan
    target = estimate @ s / (s @ s) * s
    wanted, distortion = target @ target, np.sum((target - estimate) ** 2)
    if wanted == 0:
        return -100.0
    return float(10 * np.log10(wanted / max(float(distortion), 1e-10 * float(wanted))))


def pesq_score(clean: Waveform, heard: Waveform, rate: int) -> float:
    """Returns the Perceptual Evaluation of Speech Quality, as MOS-LQO, from about 1 (bad) to 4.5.

    Rix et al. 2001, *Perceptual evaluation of speech quality (PESQ)*,
    https://doi.org/10.1109/ICASSP.2001.941023. It is wide band (ITU-T P.862.2) if `rate` is at
    least 16 kHz, else narrow band (P.862.1), and NaN if no speech is found.
    """
    at, band = (16_000, "wb") if rate >= 16_000 else (8_000, "nb")
    waves, package = [resampled(wave, rate, at) for wave in (clean, heard)], speech_package("pesq")
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(package.pesq(at, *waves, band))
    except (package.PesqError, ValueError):  # no utterance; silence, or what is no number
        return math.nan


def figures(clean: Waveform, noisy: Waveform, enhanced: Waveform, rate: int) -> dict[str, float]:
    """Returns PESQ, if it is installed, and SI-SDR of an utterance, enhanced and noisy."""
    found = {}
    if find_spec("pesq") is None:
        warnings.warn("pesq is not installed: speech is scored by SI-SDR alone", stacklevel=2)
    else:
        before, after = (pesq_score(clean, wave, rate) for wave in (noisy, enhanced))
        # No speech in the noisy sound is nothing to score; none in the enhanced one is the worst.
        after = before if math.isnan(before) else float(np.nan_to_num(after, nan=1.0))
        found = {"PESQ": after, "PESQ noisy": before}
    return found | {"SI-SDR": si_sdr(clean, enhanced), "SI-SDR noisy": si_sdr(clean, noisy)}


def scores_of(table: Mapping[str, np.ndarray], rate: int) -> list[Score]:
    """Returns the means over the utterances that have a score, of the enhanced speech first."""
    band = "wide band, P.862.2" if rate >= 16_000 else "narrow band, P.862.1"
    scores = []
    for name, note, digits in (("PESQ", f"{band}, MOS-LQO", 2), ("SI-SDR", "dB", 1)):
        if name not in table:
            continue
        after, before = table[name], table[f"{name} noisy"]
        if silent := int(np.isnan(after).sum()):
            note += f"; {silent} of {len(after)} utterances left out: no speech found"
        columns = {name: after, f"{name} gain": after - before, f"{name} noisy": before}
        for column, values in columns.items():
            rows = np.stack([np.nan_to_num(values), ~np.isnan(values)], axis=1)
            scores.append(Score.of(column, rows, "ratio", digits=digits, note=note))
    return scores
