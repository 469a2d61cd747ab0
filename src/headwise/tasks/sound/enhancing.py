"""From noisy to clean sound of any length, in constant memory.

Attention over all that was heard would take more memory the longer a sound is. So a sound is read
in windows of as many frames as the model was trained on, and each window but the first begins
with frames, its `context`, that the one before it has already enhanced: what comes behind them is
then heard with at least that much of the past. A sound that fits into one window is enhanced at
once, exactly as the model itself would do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headwise.models.speech import SpeechEnhancer
from headwise.tasks.sound.audio import (
    SUFFIXES,
    AudioError,
    audio_info,
    check_finite,
    speech_package,
)
from headwise.tasks.sound.spectrum import Spectrum, magnitude, with_phase

BLOCK_SECONDS = 5  # of a file that are in memory at a time, beside the window
Array = np.ndarray


@torch.no_grad()
def enhance(model: SpeechEnhancer, noisy: Tensor, *, context: float = 0.5) -> Tensor:
    """Noisy waveforms to those of the speech in them.

    Args:
        model: in evaluation.
        noisy: `(channels, samples)` at the model's rate; each channel is enhanced by itself.
        context: share of a window that only serves the rest of it as past; in [0, 1).

    Returns:
        `(channels, samples)`.
    """
    return torch.cat([noisy[:, :0], *enhance_blocks(model, [noisy], context=context)], dim=1)


@torch.no_grad()
def enhance_blocks(
    model: SpeechEnhancer, blocks: Iterable[Tensor], *, context: float = 0.5
) -> Iterator[Tensor]:
    """Likewise, piece by piece: blocks that follow each other in, blocks of other lengths out.

    Args:
        model: in evaluation.
        blocks: `(channels, samples)` each, of any length.
        context: as in `enhance`.
    """
    spectrum = Spectrum(model.config.sampling_rate)
    hop, ahead = spectrum.hop, model.config.lookahead
    window = max(model.config.window, ahead + 2)
    past = min(int(context * window), window - ahead - 1)
    step = window - ahead - past

    buffer: Tensor | None = None  # what the next window begins with: whole hops, then the rest
    tail: Tensor | None = None  # the second half of the last frame that was finished
    known = 0  # frames at the beginning of the buffer that are finished
    heard = given = 0  # samples

    def give(spectra: Tensor) -> Tensor:
        """The samples that finished frames `(channels, time, bins)` complete."""
        nonlocal tail, given
        signal = spectrum.synthesise_inner(spectra)
        if tail is not None:
            signal[:, :hop] += tail
            signal, tail = signal[:, :-hop], signal[:, -hop:]
        else:  # the first hop is the silence in front
            signal, tail = signal[:, hop:-hop], signal[:, -hop:]
        given += signal.size(1)
        return signal

    for block in blocks:
        if buffer is None:
            buffer = block.new_zeros(block.size(0), hop)
        heard += block.size(1)
        buffer = torch.cat([buffer, block], dim=1)
        while buffer.size(1) >= (window + 1) * hop:
            spectra = _enhance_frames(model, spectrum, buffer[:, : (window + 1) * hop])
            yield give(spectra[:, known : window - ahead])
            buffer, known = buffer[:, step * hop :], past
    if buffer is None or not heard:
        return
    # The end: silence behind it, until each sample is in two frames.
    begun = -(-buffer.size(1) // hop) * hop
    buffer = torch.nn.functional.pad(buffer, (0, begun + hop - buffer.size(1)))
    if buffer.size(1) > (window + 1) * hop:
        spectra = _enhance_frames(model, spectrum, buffer[:, : (window + 1) * hop])
        yield give(spectra[:, known : window - ahead])
        buffer, known = buffer[:, step * hop :], past
    last = give(_enhance_frames(model, spectrum, buffer)[:, known:])
    yield last[:, : last.size(1) - (given - heard)]


def enhance_file(
    model: SpeechEnhancer,
    context: float,
    source: Path,
    target: Path,
    advance: Callable[[int], None] | None = None,
) -> None:
    """Write the speech in a sound file to another one.

    The file written has as many samples and channels as the one read, at its rate, and in its
    encoding where the format of the new one has it. It appears under its name when it is whole.

    Args:
        model: the model; put into evaluation.
        context: as in `enhance`; a recipe's `evaluation.context`.
        source: WAV or FLAC, of any length, at any rate.
        target: WAV or FLAC, as its name says; another file than the source.
        advance: called with the number of samples that are done, of `audio_info(source).samples`.

    Raises:
        AudioError: the source cannot be read, to its end, or is the target; nothing is written
            then.
    """
    soundfile, soxr = speech_package("soundfile"), speech_package("soxr")
    info = audio_info(source)
    if target.suffix.lower() not in SUFFIXES:
        raise AudioError(
            f"{target} would be no sound file: expected a name that ends in {' or '.join(SUFFIXES)}"
        )
    if not target.parent.is_dir():
        raise AudioError(f"{target.parent} does not exist; create it, or write somewhere else")
    if target.exists() and target.samefile(source):
        raise AudioError(
            f"{target} is the recording itself, which would be lost; write to another file"
        )
    kind = target.suffix[1:].upper()
    encoding = soundfile.info(str(source)).subtype
    if not soundfile.check_format(kind, encoding):
        encoding = soundfile.default_subtype(kind)
    rate, model_rate = info.rate, model.config.sampling_rate
    model.eval()

    read = 0

    def blocks() -> Iterator[Array]:
        """`(samples, channels)` of the file."""
        nonlocal read
        with soundfile.SoundFile(str(source)) as file:
            for block in file.blocks(BLOCK_SECONDS * rate, dtype="float32", always_2d=True):
                check_finite(block, str(source), first=read)
                read += len(block)
                yield block
                if advance is not None:
                    advance(len(block))

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

    partial = target.with_name(f".partial-{target.name}")
    written = 0
    try:
        with soundfile.SoundFile(
            str(partial), "w", rate, info.channels, subtype=encoding, format=kind
        ) as file:
            for piece in resampled(enhanced(), model_rate, rate):
                piece = piece[: read - written]  # resampling there and back may add one
                file.write(piece)
                written += len(piece)
            file.write(np.zeros((read - written, info.channels), np.float32))
        partial.replace(target)
    except soundfile.SoundFileError as error:
        reason = str(error).strip().split("\n")[0]
        raise AudioError(
            f"{source} cannot be enhanced ({reason}); convert it to WAV or FLAC, or copy it again. "
            f"Nothing was written to {target}"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _enhance_frames(model: SpeechEnhancer, spectrum: Spectrum, signal: Tensor) -> Tensor:
    """Whole hops `(channels, samples)` to the spectra of speech `(channels, time, bins)`."""
    spectra = spectrum.analyse_inner(signal)
    predicted = model(inputs=spectra.abs()).logits.to(spectra.real.dtype)
    return with_phase(magnitude(predicted, model.config.floor), spectra)
