"""Metrics of the quality of speech: PESQ and SI-SDR."""

from __future__ import annotations

import warnings

import numpy as np

from headwise.data.sound.audio import AudioError, Waveform, resample, speech_package
from headwise.data.sound.mixing import SILENCE, rms

LOWEST_PESQ = 1.0  # the score of speech that nobody can hear any more
_NEVER_HEARD = float("nan")


def has_pesq() -> bool:
    """Returns whether the package pesq is installed; pip needs a C compiler to install it."""
    try:
        speech_package("pesq")
    except AudioError:
        return False
    return True


def pesq_rate(rate: int) -> int:
    """Returns the sampling rate at which PESQ scores speech: 8 kHz (narrow band) or 16 kHz (wide).

    >>> [pesq_rate(rate) for rate in (8_000, 11_000, 16_000, 48_000)]
    [8000, 8000, 16000, 16000]
    """
    return 16_000 if rate >= 16_000 else 8_000


def pesq_score(clean: Waveform, heard: Waveform, rate: int) -> float:
    """Returns the Perceptual Evaluation of Speech Quality, as MOS-LQO, from about 1 (bad) to 4.5.

    Rix et al. 2001, *Perceptual evaluation of speech quality (PESQ)*,
    https://doi.org/10.1109/ICASSP.2001.941023. It is wide band (ITU-T P.862.2) if `rate` is at
    least 16 kHz, else narrow band (P.862.1).

    Returns:
        The score, or NaN if no speech is found.
    """
    package = speech_package("pesq")
    at = pesq_rate(rate)
    waves = [resample(wave, rate, at) for wave in (clean, heard)]
    heard_at_all = all(SILENCE < rms(wave) < np.inf for wave in waves)  # false for NaN, too
    if not heard_at_all or len(waves[0]) < at // 4:  # PESQ needs a quarter of a second
        return _NEVER_HEARD
    try:
        return float(package.pesq(at, *waves, "wb" if at == 16_000 else "nb"))
    except package.PesqError:  # it finds no utterance
        return _NEVER_HEARD
    except ValueError as error:
        warnings.warn(f"PESQ cannot be computed: {error}", stacklevel=2)
        return _NEVER_HEARD


def si_sdr(clean: Waveform, heard: Waveform) -> float:
    """Returns the scale-invariant signal-to-distortion ratio in decibels.

    Le Roux et al. 2019, *SDR – half-baked or well done?*, https://arxiv.org/abs/1811.02508:
    10 log₁₀ (‖αs‖² / ‖αs − ŝ‖²) with α = ⟨ŝ, s⟩ / ‖s‖², of clean
    speech s and speech ŝ that is scored.

    Returns:
        The ratio, at most 100; -100 if ⟨ŝ, s⟩ is 0; NaN if the clean speech is silent.

    >>> clean = np.array([1.0, 0.0, -1.0, 0.0])
    >>> round(si_sdr(clean, 3 * clean + np.array([0.0, 0.3, 0.0, 0.3])), 1)
    20.0
    """
    s, estimate = clean.astype(np.float64), heard.astype(np.float64)
    if rms(s) <= SILENCE:
        return _NEVER_HEARD
    target = estimate @ s / (s @ s) * s
    wanted, distortion = target @ target, np.sum((target - estimate) ** 2)
    if wanted == 0:
        return -100.0
    return float(10 * np.log10(wanted / max(float(distortion), 1e-10 * float(wanted))))
