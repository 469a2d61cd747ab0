"""Packs numbers, pictures and sounds so that a page in a browser can hold them."""

import base64
import io
import zlib
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.io import wavfile

from headwise.data.sound import Waveform, analyse

_QUIET = 80  # decibels below the loudest that a spectrogram shows


def packed(array: np.ndarray, kind: str = "root") -> dict[str, Any]:
    """Packs an array for a browser: deflated and in base64, with its shape.

    Weights take a byte each, of the root of their share of the largest, so that small ones have
    finer steps; the byte of 0 is 128. Other kinds of NumPy stay as they are.

    >>> packed(np.array([[1.0, 0.0], [0.25, 0.5]]))["shape"]
    [2, 2]
    """
    scale = float(np.abs(array).max(initial=0.0)) or 1.0
    if kind == "root":
        roots = np.sign(array) * np.sqrt(np.abs(array) / scale)
        data = (128 + 127 * roots).round().astype(np.uint8)
    else:
        data = array.astype(np.dtype(kind).newbyteorder("<"))
    text = base64.b64encode(zlib.compress(data.tobytes())).decode("ascii")
    return {"shape": list(array.shape), "kind": kind, "scale": scale, "data": text}


def picture_uri(pixels: np.ndarray, mode: str = "RGB") -> str:
    """Writes an image, `(height, width, channels)`, as a PNG file."""
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels), mode).save(content, "PNG")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode('ascii')}"


def sound_shown(sound: Waveform, rate: int) -> dict[str, str]:
    """Returns a sound to hear, as a WAV file of 16 bits, and its spectrogram as a picture.

    A sound that is too loud for 16 bits is made quieter. In the picture a frame is a column, with
    low frequencies below: transparent at 80 decibels below the loudest, and black there.
    """
    loudest, content = max(1.0, float(np.abs(sound).max(initial=0.0))), io.BytesIO()
    wavfile.write(content, rate, (sound / loudest * 32767).round().astype(np.int16))
    magnitudes = analyse(torch.tensor(sound)[None], rate)[0].abs().numpy().T[::-1]
    shares = np.maximum(magnitudes / (magnitudes.max() or 1.0), 1e-9)
    opacity = (255 * np.maximum(0, 1 + 20 * np.log10(shares) / _QUIET) ** 2).round()
    black = np.stack([np.zeros_like(opacity), opacity], axis=-1).astype(np.uint8)
    wav = base64.b64encode(content.getvalue()).decode("ascii")
    return {"sound": f"data:audio/wav;base64,{wav}", "spectrogram": picture_uri(black, "LA")}
