"""How loud the frames of a spectrogram are, and which of them hold speech."""

import torch
from torch import Tensor

from headwise.data.sound.spectrum import magnitude
from headwise.ops.labels import IGNORED_LABEL
from headwise.tasks.positions import Positions

STEP = 6.0  # decibels of a class of loudness
CLASSES = ["0 to 6", "6 to 12", "12 to 18", "18 to 24", "24 or more"]
# Frames further below the loudest hold no speech, as in the measure of intelligibility STOI:
# Taal et al. 2011, https://doi.org/10.1109/TASL.2011.2114881.
SPEECH_RANGE = 40.0


def frame_positions(inputs: Tensor, labels: Tensor, floor: float) -> Positions:
    """Returns the loudness of the frames of noisy speech, and of the clean speech in them.

    The loudness of a frame is 10 log₁₀ of the sum of its squared magnitudes, in decibels. The
    label `loudness` is how many decibels a frame of noisy speech is below the loudest of its
    sequence, in steps of 6. The label `speech` says whether the clean frame is at most 40 decibels
    below the loudest clean frame.

    Args:
        inputs: magnitudes of the noisy speech, `(batch, time, bins)`, 0 at padding.
        labels: log magnitudes of the clean speech, `(batch, time, bins)`; -100 at padding.
        floor: what was added to magnitudes before their logarithm was taken; frames are at least as
            loud as a single magnitude of it, so that silence has a loudness.
    """
    noisy = _decibels(inputs, floor)  # (batch, time)
    known = labels != IGNORED_LABEL
    clean = _decibels(magnitude(labels, floor).masked_fill(~known, 0.0), floor)
    below = noisy.amax(1, keepdim=True) - noisy
    loudness = (below / STEP).long().clamp(max=len(CLASSES) - 1)
    silence = _decibels(torch.zeros_like(inputs[:, :1]), floor)  # (batch, 1)
    least = torch.maximum(clean.amax(1, keepdim=True) - SPEECH_RANGE, silence)
    speech = ((clean >= least) & (clean > silence)).long()
    return Positions(
        shape=(inputs.size(0), inputs.size(1)),
        word="frame",
        classes={"loudness": loudness, "speech": speech},
        class_names={
            "loudness": [f"{step} dB below the loudest" for step in CLASSES],
            "speech": ["no speech", "speech"],
        },
        levels={"loudness of noisy speech": noisy, "loudness of clean speech": clean},
    )


def _decibels(magnitudes: Tensor, floor: float) -> Tensor:
    energy = magnitudes.float().square().sum(-1)
    return 10 * torch.log10(energy.clamp(min=floor**2))
