"""The short-time Fourier transform and its inverse.

Frame t of a signal x is the discrete Fourier transform of the samples around t · hop,

    X[t, f] = Σₙ w[n] x[(t − 1) · hop + n] exp(−2πi f n / 2hop),    n = 0 … 2hop − 1,

with windows of 32 ms every 16 ms, the times of Lamb et al. 2021: at 16 kHz a window has 512 points.
The window w is the square root of Hann's. It is applied before the transform and after its
inverse. The squares of two neighbouring windows add up to one, so that a signal whose spectrum is
not changed comes back unchanged. Before and behind the signal there is silence.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Spectrum:
    """The transform at one sampling rate: frames of 32 ms, 16 ms apart.

    Args:
        rate: sampling rate in samples per second; 16 ms must be a whole number of samples.

    Example:
        >>> spectrum = Spectrum(16_000)
        >>> signal = torch.sin(torch.arange(1000) * 0.1)
        >>> frames = spectrum.analyse(signal)
        >>> frames.shape  # (time, bins)
        torch.Size([5, 257])
        >>> torch.allclose(spectrum.synthesise(frames)[:1000], signal, atol=1e-6)
        True
    """

    rate: int

    def __post_init__(self) -> None:
        if self.rate < 125 or self.rate % 125:
            raise ValueError(
                f"rate is {self.rate}, expected a multiple of 125, such as 8000, 16000 or 48000: "
                f"16 ms must be a whole number of samples"
            )

    @property
    def hop(self) -> int:
        """The number of samples from one frame to the next."""
        return self.rate * 16 // 1000

    @property
    def bins(self) -> int:
        """The number of frequencies of a frame."""
        return self.hop + 1

    def num_frames(self, samples: int) -> int:
        """Returns how many frames a signal has; each of its samples is in two of them.

        >>> [Spectrum(8_000).num_frames(samples) for samples in (1, 128, 129)]
        [2, 2, 3]
        """
        return -(-samples // self.hop) + 1

    def num_samples(self, seconds: float) -> int:
        """Returns the number of samples of `seconds`, rounded to whole hops, at least one hop."""
        return max(1, round(seconds * self.rate / self.hop)) * self.hop

    def analyse(self, signal: Tensor) -> Tensor:
        """Transforms waveforms `(..., samples)` to complex spectra `(..., time, bins)`."""
        behind = self.num_frames(signal.size(-1)) * self.hop - signal.size(-1)
        return self.analyse_piece(pad(signal, (self.hop, behind)))

    def analyse_piece(self, signal: Tensor) -> Tensor:
        """Transforms a piece of a signal, without silence around it.

        Shape:
            signal `(..., hops · hop)`; output `(..., hops - 1, bins)`.
        """
        flat = signal.reshape(-1, signal.size(-1))  # torch.stft takes at most one batch dimension
        spectra = torch.stft(
            flat,
            2 * self.hop,
            self.hop,
            window=self._window(flat),
            center=False,
            return_complex=True,
        )  # (batch, bins, time)
        return spectra.mT.reshape(*signal.shape[:-1], -1, self.bins)

    def synthesise(self, spectra: Tensor) -> Tensor:
        """Transforms complex spectra back to the waveforms between the first and the last frame.

        These are the samples that are in two frames: all of a signal that was analysed, and the
        silence behind it, up to a whole hop.

        Shape:
            spectra `(..., time, bins)`, at least two frames; output `(..., (time - 1) · hop)`.
        """
        flat = spectra.reshape(-1, *spectra.shape[-2:]).mT  # (batch, bins, time)
        signal = torch.istft(flat, 2 * self.hop, self.hop, window=self._window(spectra.real))
        return signal.reshape(*spectra.shape[:-2], -1)

    def _window(self, like: Tensor) -> Tensor:
        window = torch.hann_window(2 * self.hop, dtype=torch.float64, device=like.device).sqrt()
        return window.to(like.dtype)


def log_magnitude(magnitude: Tensor, floor: float) -> Tensor:
    """Returns log(magnitude + floor), which is finite in silence.

    >>> log_magnitude(torch.tensor([0.0, 1.0]), floor=1.0)
    tensor([0.0000, 0.6931])
    """
    return torch.log(magnitude + floor)


def magnitude(log: Tensor, floor: float) -> Tensor:
    """Returns the magnitudes, at least 0, whose logarithms `log_magnitude` returned."""
    return (torch.exp(log) - floor).clamp(min=0.0)


def with_phase(magnitude: Tensor, spectra: Tensor) -> Tensor:
    """Returns complex spectra with the given magnitudes and the phases of `spectra`.

    >>> with_phase(torch.tensor([2.0, 3.0]), torch.tensor([3 + 4j, 0]))
    tensor([1.2000+1.6000j, 3.0000+0.0000j])
    """
    return torch.polar(magnitude, spectra.angle())
