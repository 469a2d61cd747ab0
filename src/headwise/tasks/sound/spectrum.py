"""The short-time Fourier transform and the way back.

Frame t of a signal x is the discrete Fourier transform of the samples around t · hop,

    X[t, f] = Σₙ w[n] x[(t − 1) · hop + n] exp(−2πi f n / 2hop),    n = 0 … 2hop − 1,

with windows of 32 ms every 16 ms, the times of the TIM paper: at 16 kHz that is 512 points. The
window w is the square root of Hann's, before the transform and after its inverse; two
neighbouring windows squared add up to one, so that what was not changed comes back as it was. In
front of the signal and behind it there is silence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spectrum:
    """Frames of 32 ms, 16 ms apart, at one sampling rate.

    Args:
        rate: samples per second; 16 ms have to be whole samples.

    Raises:
        ValueError: they are not.

    Example:
        >>> spectrum = Spectrum(16_000)
        >>> signal = torch.sin(torch.arange(1000) * 0.1)
        >>> frames = spectrum.analyse(signal)
        >>> frames.shape  # (time, bins)
        torch.Size([5, 257])
        >>> torch.allclose(spectrum.synthesise(frames, 1000), signal, atol=1e-6)
        True
    """

    rate: int

    def __post_init__(self) -> None:
        if self.rate < 125 or self.rate % 125:
            raise ValueError(
                f"rate is {self.rate}, of which 16 ms are not a whole number of samples: expected "
                f"a multiple of 125, such as 8000, 16000 or 48000"
            )

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return self.rate * 16 // 1000

    @property
    def bins(self) -> int:
        """Frequencies of a frame."""
        return self.hop + 1

    def num_frames(self, samples: int) -> int:
        """How many frames it takes until each sample is in two of them.

        >>> [Spectrum(8_000).num_frames(samples) for samples in (1, 128, 129)]
        [2, 2, 3]
        """
        return -(-samples // self.hop) + 1

    def num_samples(self, seconds: float) -> int:
        """So many seconds in whole hops, at least one."""
        return max(1, round(seconds * self.rate / self.hop)) * self.hop

    def analyse(self, signal: Tensor) -> Tensor:
        """Waveforms `(..., samples)` to complex spectra `(..., time, bins)`."""
        behind = (self.num_frames(signal.size(-1)) * self.hop) - signal.size(-1)
        return self.analyse_inner(torch.nn.functional.pad(signal, (self.hop, behind)))

    def synthesise(self, spectra: Tensor, samples: int) -> Tensor:
        """Complex spectra `(..., time, bins)` to waveforms `(..., samples)`."""
        return self.synthesise_inner(spectra)[..., self.hop : self.hop + samples]

    def analyse_inner(self, signal: Tensor) -> Tensor:
        """Likewise for a piece of a signal, of whole hops: one frame fewer than hops."""
        frames = signal.unfold(-1, 2 * self.hop, self.hop)  # (..., time, 2 · hop)
        return torch.fft.rfft(frames * self._window(signal))

    def synthesise_inner(self, spectra: Tensor) -> Tensor:
        """Likewise: one hop more than frames, of which the first and last lack a neighbour."""
        frames = torch.fft.irfft(spectra, 2 * self.hop)
        frames = frames * self._window(frames)
        first, second = frames.split(self.hop, dim=-1)  # (..., time, hop)
        pad = torch.nn.functional.pad
        return (pad(first, (0, 0, 0, 1)) + pad(second, (0, 0, 1, 0))).flatten(-2)

    def _window(self, like: Tensor) -> Tensor:
        # The root of a sine squared: Hann's window, periodic.
        n = torch.arange(2 * self.hop, device=like.device, dtype=torch.float64)
        return torch.sin(math.pi / (2 * self.hop) * n).to(like.dtype)


def log_magnitude(magnitude: Tensor, floor: float) -> Tensor:
    """log(magnitude + floor): finite in silence, where the floor is all there is.

    >>> log_magnitude(torch.tensor([0.0, 1.0]), floor=1.0)
    tensor([0.0000, 0.6931])
    """
    return torch.log(magnitude + floor)


def magnitude(log: Tensor, floor: float) -> Tensor:
    """The way back; never negative."""
    return (torch.exp(log) - floor).clamp(min=0.0)


def with_phase(magnitude: Tensor, spectra: Tensor) -> Tensor:
    """Complex spectra of these magnitudes, with the phase of `spectra`.

    >>> with_phase(torch.tensor([2.0, 3.0]), torch.tensor([3 + 4j, 0]))
    tensor([1.2000+1.6000j, 3.0000+0.0000j])
    """
    return torch.polar(magnitude, spectra.angle())
