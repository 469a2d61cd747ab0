"""What the test items of a task are scored by: predictions, sides of images, speech."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from headwise.data.sound.audio import AudioError, Waveform, resample, speech_package
from headwise.data.sound.mixing import SILENCE, rms

LOWEST_PESQ = 1.0  # the score of speech that nobody can hear any more


# --- predictions, from rows of label and prediction -------------------------------------------


def accuracy(rows: np.ndarray) -> float:
    """Returns the percentage of rows `(label, prediction)` whose two numbers are equal."""
    return float(100 * (rows[:, 0] == rows[:, 1]).mean())


def pearson(rows: np.ndarray) -> float:
    """Returns Pearson's correlation of labels and predictions × 100; 0 if one is constant."""
    from scipy.stats import pearsonr  # imported here: it takes a second

    # A column that varies only within rounding would give the correlation of the rounding.
    if _is_constant(rows, tolerance=1e-9):
        return 0.0
    if np.isnan(rows).any():  # the predictions of a model that has diverged; scipy raises an error
        return math.nan
    return 100 * float(pearsonr(*rows.T).statistic)


def spearman(rows: np.ndarray) -> float:
    """Returns Spearman's correlation of labels and predictions × 100; 0 if one is constant."""
    from scipy.stats import spearmanr  # imported here: it takes a second

    return 0.0 if _is_constant(rows) else 100 * float(spearmanr(*rows.T).statistic)


def _is_constant(rows: np.ndarray, tolerance: float = 0.0) -> bool:
    """Returns whether the values of a column are equal, up to a share of the largest of them."""
    return any(np.ptp(column) <= tolerance * np.abs(column).max() for column in rows.T)


# --- images -----------------------------------------------------------------------------------


def specialisation(weights: Tensor, *, predicted: bool = False) -> float:
    """Returns the share of the variance of weights over pixels that the side of a pixel explains.

    Figure 2 of Lamb et al. 2021, *Transformers with Competitive Ensembles of Independent
    Mechanisms*, https://arxiv.org/abs/2103.00336, plots "the relative variance in the
    mechanism-activation over the two sides of the image" and gives no equation. We read it as the
    correlation ratio: with c the weights of all experts at a pixel, c̄ their mean over all
    pixels and c̄_s over those on side s,

        Σ_s P(s) ‖c̄_s − c̄‖² / mean ‖c − c̄‖²

    It is 1 if the weights differ between the sides and are constant on each side. It is 0 if their
    means over the sides are equal. It does not say how far the weights are from uniform.

    The paper does not say either whether the pixel is the one that a position reads, or the one
    behind it, which it predicts. The two differ at the middle of a row and at its end: mechanisms
    that are perfectly divided in one alignment reach 0.584 in the other at a width of 16 and a
    height of 8, and 0.881 at 64 and 32.

    Args:
        weights: the weight of each expert where a pixel is read, `(..., height, width, experts)`.
            The left side is the left half of the width.
        predicted: whether the side is that of the pixel behind it. The last has none.

    Returns:
        A number in [0, 1]; 0 if the weights are the same at all pixels.

    Example:
        >>> left, right = [0.9, 0.1], [0.2, 0.8]
        >>> specialisation(torch.tensor([[left, right], [left, right]]))
        1.0
        >>> specialisation(torch.tensor([[left, right], [left, right]]), predicted=True)
        1.0
    """
    height, width = weights.shape[-3:-1]
    pixels = torch.arange(height * width, device=weights.device)
    if predicted:
        pixels = pixels[1:]
    rows = weights.double().flatten(-3, -2)[..., : len(pixels), :]  # (..., pixels, experts)
    right = pixels % width >= width // 2
    sides = [rows[..., which, :].flatten(0, -2) for which in (~right, right)]
    rows = rows.flatten(0, -2)
    mean = rows.mean(0)
    total = (rows - mean).square().sum()
    between = sum(len(side) * (side.mean(0) - mean).square().sum() for side in sides)
    # The variance of equal weights may differ from 0 by rounding.
    if total <= 1e-12 * rows.square().sum():
        return 0.0
    return float((between / total).clamp(max=1.0))


# --- speech -----------------------------------------------------------------------------------


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
        return math.nan
    try:
        return float(package.pesq(at, *waves, "wb" if at == 16_000 else "nb"))
    except package.PesqError:  # it finds no utterance
        return math.nan
    except ValueError as error:
        warnings.warn(f"PESQ cannot be computed: {error}", stacklevel=2)
        return math.nan


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
        return math.nan
    target = estimate @ s / (s @ s) * s
    wanted, distortion = target @ target, np.sum((target - estimate) ** 2)
    if wanted == 0:
        return -100.0
    return float(10 * np.log10(wanted / max(float(distortion), 1e-10 * float(wanted))))
