"""Enhancement of noisy sound of any length, in constant memory.

Attention over a whole sound would need more memory the longer the sound is. So the model reads a
sound in windows of as many frames as it was trained on. Each window except the first begins with
frames that the window before it has already enhanced, its context. They are not enhanced again;
they give the frames behind them a past of at least their own length. A sound that fits into one
window is enhanced at once, exactly as the model itself does it.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headwise.data.sound.audio import (
    SUFFIXES,
    AudioError,
    audio_info,
    check_samples,
    check_whole,
    opened,
    speech_package,
)
from headwise.data.sound.spectrum import Spectrum, magnitude, with_phase
from headwise.files import written_whole
from headwise.models.speech import SpeechEnhancer

BLOCK_SECONDS = 5  # seconds of a file that are read at a time
Array = np.ndarray


@torch.no_grad()
def enhance(model: SpeechEnhancer, noisy: Tensor, *, context: float = 0.5) -> Tensor:
    """Takes the noise out of waveforms of speech.

    Args:
        model: the model, in evaluation mode.
        noisy: noisy waveforms at the model's sampling rate, `(channels, samples)`; each channel is
            enhanced by itself.
        context: the share of a window that only serves as past for the rest of it, in [0, 1).

    Returns:
        The enhanced waveforms, `(channels, samples)`.
    """
    return torch.cat([noisy[:, :0], *enhance_blocks(model, [noisy], context=context)], dim=1)


@torch.no_grad()
def enhance_blocks(
    model: SpeechEnhancer, blocks: Iterable[Tensor], *, context: float = 0.5
) -> Iterator[Tensor]:
    """Takes the noise out of waveforms block by block; see `enhance`.

    Yields:
        Consecutive blocks of the enhanced waveforms, of other lengths, as many samples in all.
    """
    spectrum = Spectrum(model.config.sampling_rate)
    hop, ahead = spectrum.hop, model.config.lookahead
    window = max(model.config.window, ahead + 2)
    past = min(int(context * window), window - ahead - 1)
    step = window - ahead - past
    full = (window + 1) * hop  # samples of a window

    buffer: Tensor | None = None  # what the next window reads: whole hops, then the rest
    last: Tensor | None = None  # the last frame that is finished, `(channels, 1, bins)`
    known = 0  # frames at the beginning of the buffer that are finished
    heard = given = 0  # samples

    def give(read: Tensor, end: int | None = None) -> Tensor:
        """Returns the samples that the frames of a window complete, from those known to `end`.

        A sample is complete when both of its frames are finished. Those of the last frame are
        given with the frame behind it.
        """
        nonlocal last, given
        spectra = _enhance_frames(model, spectrum, read)[:, known:end]  # (channels, time, bins)
        signal = spectrum.synthesise(spectra if last is None else torch.cat([last, spectra], 1))
        last = spectra[:, -1:]
        given += signal.size(1)
        return signal

    for block in blocks:
        if buffer is None:
            buffer = block.new_zeros(block.size(0), hop)
        heard += block.size(1)
        buffer = torch.cat([buffer, block], dim=1)
        while buffer.size(1) >= full:
            yield give(buffer[:, :full], window - ahead)
            buffer, known = buffer[:, step * hop :], past
    if buffer is None or not heard:
        return
    # The sound ends here. Silence is put behind it, so that each sample is in two frames.
    begun = -(-buffer.size(1) // hop) * hop
    buffer = torch.nn.functional.pad(buffer, (0, begun + hop - buffer.size(1)))
    if buffer.size(1) > full:
        yield give(buffer[:, :full], window - ahead)
        buffer, known = buffer[:, step * hop :], past
    end = give(buffer)
    yield end[:, : end.size(1) - (given - heard)]


def enhance_file(
    model: SpeechEnhancer,
    context: float,
    source: Path,
    target: Path,
    advance: Callable[[int], None] | None = None,
) -> None:
    """Takes the noise out of a sound file and writes the result to another file.

    The new file has as many samples and channels as the source and the same sampling rate. It has
    the same encoding if its format supports it. It appears under its name when it is complete.

    Args:
        model: the model; it is put into evaluation mode.
        context: see `enhance`.
        source: a WAV or FLAC file, of any length, at any sampling rate.
        target: the WAV or FLAC file to write, another file than the source.
        advance: called with the number of samples that have been read since the last call.
    """
    soundfile, soxr = speech_package("soundfile"), speech_package("soxr")
    info = audio_info(source)
    _check_target(target, source)
    kind = target.suffix[1:].upper()
    encoding = info.subtype
    if not soundfile.check_format(kind, encoding):
        encoding = soundfile.default_subtype(kind)
    rate, model_rate = info.samplerate, model.config.sampling_rate
    model.eval()

    read = 0

    def blocks() -> Iterator[Array]:
        """Yields blocks of the file, `(samples, channels)`."""
        nonlocal read
        with opened(source, str(source)) as file:
            for block in file.blocks(BLOCK_SECONDS * rate, dtype="float32", always_2d=True):
                check_samples(block, str(source), first=read)
                read += len(block)
                yield block
                if advance is not None:
                    advance(len(block))
        check_whole(read, info.frames, str(source))

    def resampled(pieces: Iterable[Array], here: int, there: int) -> Iterator[Array]:
        if here == there:
            yield from pieces
            return
        stream = soxr.ResampleStream(here, there, info.channels, dtype="float32")
        for piece in pieces:
            yield stream.resample_chunk(np.ascontiguousarray(piece))
        yield stream.resample_chunk(np.zeros((0, info.channels), np.float32), last=True)

    def enhanced() -> Iterator[Array]:
        tensors = (
            torch.from_numpy(np.ascontiguousarray(block.T)).to(model.device)
            for block in resampled(blocks(), rate, model_rate)
        )
        for piece in enhance_blocks(model, tensors, context=context):
            yield piece.T.cpu().numpy()

    written = 0
    try:
        with (
            written_whole(target) as partial,
            partial.open("wb"),  # whose error says why, which libsndfile's does not
            soundfile.SoundFile(
                str(partial), "w", rate, info.channels, subtype=encoding, format=kind
            ) as file,
        ):
            for piece in resampled(enhanced(), model_rate, rate):
                piece = piece[: read - written]  # resampling there and back may add a sample
                file.write(piece)
                written += len(piece)
            file.write(np.zeros((read - written, info.channels), np.float32))
    except soundfile.SoundFileError as error:
        reason = str(error).strip().split("\n")[0]
        raise AudioError(
            f"{target} cannot be written ({reason}); write to a file of the other format, WAV or "
            f"FLAC"
        ) from error


def _check_target(target: Path, source: Path) -> None:
    problem = ""
    if target.suffix.lower() not in SUFFIXES:
        problem = f"expected a name that ends in {' or '.join(SUFFIXES)}"
    elif not target.parent.is_dir():
        problem = f"but {target.parent} does not exist: create it, or write to another folder"
    elif target.exists() and target.samefile(source):
        problem = "which is the recording itself: it would be lost; write to another file"
    if problem:
        raise AudioError(f"the new file is {target}, {problem}")


def _enhance_frames(model: SpeechEnhancer, spectrum: Spectrum, signal: Tensor) -> Tensor:
    """Returns the spectra of the speech `(channels, time, bins)` in whole hops of samples."""
    spectra = spectrum.analyse_piece(signal)
    predicted = model(inputs=spectra.abs()).logits.to(spectra.real.dtype)
    return with_phase(magnitude(predicted, model.config.floor), spectra)
