"""Images as colours of a palette, and sounds as spectra; oracles are NumPy, SciPy and soxr."""

import math
from collections import Counter
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal
from support.data_files import PARTS, RATE, png, row, wav
from support.road import Road, in_each_part, road, waves_of

FEW = settings(max_examples=max(2, settings.default.max_examples // 3))  # data are prepared in each

# --- images: what is read ---------------------------------------------------------------------


def pixels(dataset: Road, part: str = "train", channels: int = 1) -> np.ndarray:
    """The images of a part as bytes, of shape (images, height, width, channels)."""
    images = np.stack([np.frombuffer(image, np.uint8) for image in dataset.rows(part)])
    side = math.isqrt(images.shape[1] // channels)
    return images.reshape(len(images), side, side, channels)


@pytest.mark.parametrize("shape", [(8, 8), (8, 14), (30, 6)])
def test_the_middle_of_an_image_is_taken(shape, tmp_path):
    """The largest square; of what is around it nothing but the resampling's edge is seen."""
    side = min(shape)
    image = np.zeros((*shape, 3), np.uint8)
    top, left = ((length - side) // 2 for length in shape)
    image[top : top + side, left : left + side] = (200, 100, 50)
    (tmp_path / "a.png").write_bytes(png(image))
    data = {"size": 2, "mode": "rgb"}
    (found,) = pixels(road("images", "files", in_each_part(tmp_path), data=data), channels=3)
    np.testing.assert_allclose(found, np.broadcast_to((200, 100, 50), (2, 2, 3)), rtol=0.2)


def test_photographs_are_divided_by_regions(monkeypatch):
    """No pixel is in two parts, and but for training in two patches: each has its own colour."""
    y, x = np.indices((54, 144))
    photographs = [np.stack([x, y, np.full_like(x, n)], axis=-1).astype(np.uint8) for n in (0, 1)]
    images = SimpleNamespace(images=photographs)
    monkeypatch.setattr("sklearn.datasets.load_sample_images", lambda: images)
    data = {"path": "photographs", "options": {"patch": 6}, "size": 6, "train_fraction": 1.0}
    dataset = road("images", "built-in", data=data)
    seen = []
    for part in PARTS:
        patches = np.stack([np.frombuffer(x, np.uint8) for x in dataset.task.rows[part]["pixels"]])
        colours = Counter(map(tuple, patches.reshape(-1, 3).tolist()))
        assert part == "train" or set(colours.values()) == {1}
        seen.append(set(colours))
    assert min(map(len, seen)) >= 36 * 10
    assert not any(one & other for one, other in combinations(seen, 2))


def test_pairs_of_images_stand_side_by_side(tmp_path):
    """The parts are divided first: no half of a training image is in another part."""
    for side, shift in (("a", 0), ("b", 100)):
        (tmp_path / side).mkdir()
        for key in range(30):
            (tmp_path / side / f"{key:02}.png").write_bytes(png(row("images", key + shift)))
    half = {"validation_fraction": 0.2, "test_fraction": 0.2}
    left, right = ({**half, "files": {"train": str(tmp_path / side)}} for side in "ab")
    data = {"path": "pairs", "options": {"left": left, "right": right}, "train_fraction": 1.0}
    data |= {"size": 4, "mode": "grey"}
    dataset = road("images", "built-in", data=data)
    known = [{row("images", key + shift).tobytes() for key in range(30)} for shift in (0, 100)]
    seen: dict[str, list[set[bytes]]] = {}
    for part in PARTS:
        stack = np.stack([np.frombuffer(x, np.uint8).reshape(4, 8) for x in dataset.rows(part)])
        sides = stack[:, :, :4], stack[:, :, 4:]
        seen[part] = [{half.tobytes() for half in halves} for halves in sides]
    for side in (0, 1):
        sets = [seen[part][side] for part in PARTS]
        assert not any(one & other for one, other in combinations(sets, 2))
        assert set.union(*sets) == known[side]


# --- images: palettes -------------------------------------------------------------------------


@FEW
@given(st.integers(2, 9), st.sampled_from(["grey", "rgb"]), st.integers(0, 99))
def test_pixels_take_the_nearest_colour_of_a_palette(colors, mode, seed):
    draw = np.random.default_rng(seed)
    shape = (40, 4, 4) if mode == "grey" else (40, 4, 4, 3)
    given_images = draw.integers(0, 256, shape, np.uint8)
    data, palette = {"mode": mode}, {"colors": colors}
    rows = in_each_part(list(given_images))
    dataset = road("images", "files", rows, data=data, palette=palette)
    channels = 3 if mode == "rgb" else 1
    found = pixels(dataset, channels=channels).reshape(-1, channels).astype(int)
    true = given_images.reshape(-1, channels).astype(int)
    known = np.unique(found, axis=0)
    assert 2 <= len(known) <= colors
    distances = ((true[:, None] - known) ** 2).sum(-1)  # (pixels, colours)
    assert (((true - found) ** 2).sum(1) == distances.min(1)).all()
    # k-means: no colour at random, but the means of what they stand for.
    for color in known:
        members = true[(found == color).all(1)]
        assert np.abs(members.mean(0) - color).max() < 8


# --- sounds: what is read ---------------------------------------------------------------------


def tone(samples: int, rate: int, hertz: float = 440.0) -> np.ndarray:
    """A sine that fades in and out."""
    return 0.3 * np.sin(2 * np.pi * hertz * np.arange(samples) / rate) * np.hanning(samples)


def heard(content: bytes) -> np.ndarray:
    """The waveform that is read of a file."""
    dataset = road("speech-enhancement", "files", in_each_part([(content, content)] * 2))
    noisy, clean = waves_of(dataset, "test", 0)
    assert np.array_equal(noisy, clean)
    return clean


@pytest.mark.parametrize("rate", [8_000, 22_050, 48_000])
def test_any_rate_and_number_of_channels_becomes_mono_at_the_rate_of_the_data(rate):
    """The mean of the channels, resampled as soxr does, and as the sound itself at that rate."""
    wave = tone(rate // 4, rate)
    stereo = np.stack([wave, wave / 3], axis=1)
    found = heard(wav(stereo, rate, subtype="FLOAT"))
    assert len(found) == RATE // 4
    np.testing.assert_allclose(found, tone(RATE // 4, RATE) * 2 / 3, atol=0.01)
    expected = soxr.resample(stereo.mean(1).astype(np.float32), rate, RATE)[: len(found)]
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-4)


@FEW
@given(st.integers(256, 3_000), st.integers(0, 99))
def test_items_are_the_spectra_of_their_sounds(samples, seed):
    """Magnitudes of the noisy sound, log magnitudes of the clean one: 32 ms each 16 ms, √Hann."""
    draw = np.random.default_rng(seed)
    files = [wav(0.2 * draw.standard_normal(samples), subtype="FLOAT") for _ in range(2)]
    rows = in_each_part([tuple(files)] * 2)
    dataset = road("speech-enhancement", "files", rows, model={"floor": 0.05})
    batch, waves, hop = dataset.batch("test", [0]), waves_of(dataset, "test", 0), RATE * 16 // 1000
    window = np.sqrt(signal.windows.hann(2 * hop, sym=False))
    for name, wave in zip(("inputs", "labels"), waves, strict=True):
        padded = np.pad(wave.astype(np.float64), (hop, 3 * hop))
        frames = [window * padded[t * hop : (t + 2) * hop] for t in range(batch[name].size(1))]
        expected = np.abs(np.fft.rfft(frames))
        expected = np.log(expected + 0.05) if name == "labels" else expected
        np.testing.assert_allclose(batch[name][0], expected, rtol=1e-3, atol=1e-3)
    covered = (batch["inputs"].size(1) - 1) * hop
    assert covered >= samples  # the last frame is no longer than it must be
    assert covered - samples < 2 * hop


# --- sounds: mixing ---------------------------------------------------------------------------


def generated(**data: Any) -> Road:
    return road("speech-enhancement", "built-in", data=data)


def decibels(wave: np.ndarray) -> float:
    return 10 * np.log10(np.mean(np.square(wave, dtype=np.float64)))


@pytest.mark.parametrize("noise", ["white", "pink", "brown", "babble"])
@pytest.mark.parametrize(("snr", "level"), [(-5.0, -30.0), (20.0, -25.0)])
def test_noise_is_as_loud_as_asked_for(noise, snr, level):
    dataset = generated(noise=[noise], snr=[snr, snr], level=[level, level])
    for part in PARTS:
        noisy, clean = waves_of(dataset, part, 0)
        assert abs(decibels(clean) - decibels(noisy - clean) - snr) < 0.1
        loudest = max(np.abs(noisy).max(), np.abs(clean).max())
        assert abs(decibels(noisy) - level) < 0.1 or loudest > 0.98  # nothing is clipped


def test_noise_is_added_where_one_column_is_both_sides():
    rows = in_each_part([row("speech-enhancement", key) for key in range(3)])
    data = {"columns": {"noisy": "clean"}, "noise": ["white"], "snr": [5, 5]}
    noisy, clean = waves_of(road("speech-enhancement", "hub", rows, data=data), "test", 0)
    assert abs(decibels(clean) - decibels(noisy - clean) - 5) < 0.1


@pytest.mark.parametrize(("noise", "slope"), [("white", 0), ("pink", -3.01), ("brown", -6.02)])
def test_colours_of_noise_fall_by_decibels_an_octave(noise, slope):
    voices = {"speakers": 4, "utterances": 6, "seconds": 8}
    dataset = generated(noise=[noise], snr=[0, 0], seconds=8, options=voices)
    power = []
    for index in range(3):
        noisy, clean = waves_of(dataset, "validation", index % len(dataset.items("validation")))
        found = np.abs(np.fft.rfft(noisy - clean)) ** 2
        power.append([found[2**k : 2 ** (k + 1)].mean() for k in range(8, 15)])
    assert abs(np.diff(10 * np.log10(np.mean(power, axis=0))).mean() - slope) < 0.4


def test_items_of_training_are_drawn_by_epoch_and_index_and_others_stay():
    dataset = generated(seconds=0.25, snr=[0, 20])
    for part in PARTS:
        first, second = (dataset.rows(part, epoch) for epoch in (0, 1))
        assert len(set(first)) == len(first) and dataset.rows(part, 0) == first
        assert (set(first) & set(second) == set()) if part == "train" else first == second


def test_an_excerpt_stands_in_its_recording():
    """In training at any place, the same of the noisy and the clean sound; else at its begin."""
    draw = np.random.default_rng(0)
    clean = 0.1 * draw.standard_normal(3 * RATE)
    noise = 0.01 * draw.standard_normal(len(clean))
    files = tuple(wav(wave, subtype="FLOAT") for wave in (clean + noise, clean))
    dataset = road("speech-enhancement", "files", in_each_part([files]), data={"seconds": 0.25})
    samples = RATE // 4 // 128 * 128
    starts = set()
    for epoch in range(6):
        dataset.batch("train", [0], epoch)
        noisy, found = waves_of(dataset, "train", 0, whole=False)
        assert abs(len(found) - samples) <= 256
        start = int(np.argmax(signal.correlate(clean, found, mode="valid")))
        np.testing.assert_allclose(found, clean[start : start + len(found)], atol=1e-6)
        np.testing.assert_allclose(noisy - found, noise[start : start + len(found)], atol=1e-6)
        starts.add(start)
    assert len(starts) > 3
    noisy, found = waves_of(dataset, "test", 0, whole=False)
    np.testing.assert_allclose(found, clean[: len(found)], atol=1e-6)


def test_a_speaker_is_in_one_part(tmp_path):
    speaker_of = {}
    for key in range(36):
        for side, wave in zip(("noisy", "clean"), row("speech-enhancement", key), strict=True):
            place = tmp_path / side / f"{'abcdefghijkl'[key % 12]}_{key}.wav"
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(wav(wave, subtype="FLOAT"))
            speaker_of[wave.astype(np.float32).tobytes()] = key % 12
    data = {"split_by": "speaker", "speaker_pattern": "^([a-z])_"}
    data |= {"validation_fraction": 0.2, "test_fraction": 0.2}
    files = {"train": (tmp_path / "noisy", tmp_path / "clean")}
    dataset = road("speech-enhancement", "files", files, data=data)
    speakers = []
    for part in PARTS:
        waves = (waves_of(dataset, part, index)[1] for index in range(len(dataset.items(part))))
        speakers.append({speaker_of[wave.tobytes()] for wave in waves})
    assert all(speakers) and sum(map(len, speakers)) == len(set.union(*speakers)) == 12
