"""Noisy speech: the decoder reads its frames, and predicts the speech without the noise."""

import base64
import io
import wave
from typing import Any

import numpy as np
import torch

from headwise.report.explorer.blob import Blob
from headwise.report.explorer.inputs.source import (
    Input,
    Source,
    Trained,
    chosen_item,
    part_of,
    refuse_text,
)
from headwise.report.explorer.payload import Made, Output, Stack
from headwise.tasks.sound.audio import Waveform, audio_info, read_audio
from headwise.tasks.sound.dataset import Utterances
from headwise.tasks.sound.enhancing import enhance
from headwise.tasks.sound.spectrum import Spectrum
from headwise.tasks.speech import SpeechEnhancement

_RANGE = 80  # decibels from the loudest to 0
_FRAME = 0.016  # seconds from one frame to the next


def speech_input(trained: Trained, source: Source) -> Input:
    """Returns noisy speech of the data, or of a file: as much of it as the model reads at once."""
    refuse_text(source, SpeechEnhancement.name(), "a WAV or FLAC file")
    config = trained.model.config
    spectrum = Spectrum(config.sampling_rate)
    item, clean, note = None, None, ""
    if source.file is not None:
        longest = (config.window - 1) * spectrum.hop
        noisy = read_audio(source.file, spectrum.rate, samples=longest)
        whole = audio_info(source.file).samples_at(spectrum.rate)
        if whole > longest:
            note = (
                f"The first {longest / spectrum.rate:.1f} of {whole / spectrum.rate:.1f} seconds, "
                f"which the model reads at once."
            )
    else:
        part = part_of(trained.task(SpeechEnhancement), source.part)
        assert isinstance(part, Utterances)
        item = chosen_item(part, source)
        noisy, clean = part.excerpt(item.number)
    sound = torch.from_numpy(noisy).unsqueeze(0)
    frames = spectrum.analyse(sound).abs()  # (1, time, bins)
    loudest = float(frames.max()) or 1.0

    def output(out: Any) -> Output:
        enhanced = enhance(trained.model, sound.to(trained.model.device))[0].cpu().numpy()
        made = [_made("enhanced", True, enhanced, spectrum, loudest)]
        if clean is not None:
            made.append(_made("clean", False, clean, spectrum, loudest))
        return Output(made=made)

    stack = Stack(
        kind="speech",
        tokens=[f"{frame * _FRAME:.2f} s" for frame in range(frames.size(1))],
        frame_seconds=_FRAME,
        rate=spectrum.rate,
        spectrogram=_spectrogram(noisy, spectrum, loudest),
        sound=_wav(noisy, spectrum.rate),
    )
    return Input(
        arguments={"inputs": frames.to(trained.model.device)},
        stacks={"decoder": stack},
        output=output,
        item=item,
        note=note,
    )


def _made(label: str, by_model: bool, sound: Waveform, spectrum: Spectrum, loudest: float) -> Made:
    return Made(
        label=label,
        by_model=by_model,
        sound=_wav(sound, spectrum.rate),
        spectrogram=_spectrogram(sound, spectrum, loudest),
    )


def _spectrogram(sound: Waveform, spectrum: Spectrum, loudest: float) -> Blob:
    magnitudes = spectrum.analyse(torch.from_numpy(sound)).abs().numpy()
    decibels = 20 * np.log10(np.maximum(magnitudes / loudest, 10 ** (-_RANGE / 20)))
    return Blob.of(1 + decibels / _RANGE, scale=1.0)


def _wav(sound: Waveform, rate: int) -> str:
    """A WAV file of 16 bits as a data URI, quieter where it would be cut off."""
    loudest = max(1.0, float(np.abs(sound).max(initial=0.0)))
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((sound / loudest * 32767).round().astype("<i2").tobytes())
    return "data:audio/wav;base64," + base64.b64encode(content.getvalue()).decode("ascii")
