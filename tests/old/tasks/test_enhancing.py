"""Sound of any length, piece by piece, and from file to file."""

import resource
import tracemalloc

import numpy as np
import pytest
import soundfile
import sounds
import torch

from headwise.data.sound.audio import AudioError
from headwise.data.sound.spectrum import Spectrum, magnitude, with_phase
from headwise.files import NoSpaceError
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.tasks.enhancing import enhance, enhance_blocks, enhance_file
from headwise.tasks.speech import SpeechEvaluation

MOA = {"system": "moa", "size": "2K5E4D"}
PLANS = {
    "standard": "standard",
    "weighted": "weighted",
    "agreement": "agreement",
    "mae": "mae",
    "tim": {"system": "tim", "layers": "all"},
    "moa": MOA,
}
HOP = 16  # at 1000 Hz
CONTEXT = SpeechEvaluation().context


def model(plan="standard", rate=1_000, window=12, **options):
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 2, "front_channels": [10, 8]}
    made = SpeechEnhancer(
        SpeechEnhancerConfig(rate, attention=plan, window=window, **sizes, **options)
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made.double().eval()


def at_once(made, noisy):
    """What the model does to all of a sound, without windows."""
    spectrum = Spectrum(made.config.sampling_rate)
    spectra = spectrum.analyse(noisy)
    with torch.no_grad():
        predicted = made(inputs=spectra.abs()).logits
    clean = with_phase(magnitude(predicted, made.config.floor), spectra)
    return spectrum.synthesise(clean)[:, : noisy.size(-1)]


def noise(channels, samples):
    return torch.randn(channels, samples, dtype=torch.float64)


@pytest.mark.parametrize("plan", PLANS)
def test_nothing_later_leaks(plan):
    """A sample is known when 3 more hops have been heard: the rest of its window, two frames."""
    made = model(PLANS[plan], window=100)
    before = noise(1, 40 * HOP)
    for changed_from in (20 * HOP, 20 * HOP + 1, 21 * HOP - 1):
        after = before.clone()
        after[:, changed_from:] = noise(1, before.size(1) - changed_from)
        difference = (enhance(made, after) - enhance(made, before)).abs()[0]
        boundary = 17 * HOP
        assert difference[:boundary].max() < 1e-9
        assert difference[boundary : boundary + HOP].max() > 1e-6


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("samples", [1, 15, 16, 17, 100, 11 * HOP])
def test_what_fits_into_a_window_is_enhanced_at_once(plan, samples):
    made, noisy = model(PLANS[plan]), noise(2, samples)
    torch.testing.assert_close(enhance(made, noisy), at_once(made, noisy))


@pytest.mark.parametrize("context", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("samples", [11 * HOP + 1, 12 * HOP, 13 * HOP, 700, 1_003])
def test_blocks_of_any_length_give_the_same(context, samples):
    made, noisy = model("mae"), noise(2, samples)
    whole = enhance(made, noisy, context=context)
    assert whole.shape == noisy.shape and torch.isfinite(whole).all()
    for sizes in ([1] * samples, [0, 300, 0, samples - 300] if samples > 300 else [samples]):
        pieces = list(enhance_blocks(made, noisy.split(sizes, dim=1), context=context))
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole)


@pytest.mark.parametrize("window", [3, 4, 30])
def test_a_model_that_looks_at_single_frames_does_not_notice_windows(window):
    # Without attention and with convolutions that see a frame each, windows cannot matter: what
    # is kept of each, and how it is joined, is right.
    made = model(window=window, lookahead=0)
    with torch.no_grad():
        for layer in made.front:
            layer.convolution.weight[:, :, :2] = 0.0
        for layer in made.decoder.layers:
            for name, parameter in layer.self_attention.named_parameters():
                if "out_proj" in name:
                    parameter.zero_()
    noisy = noise(1, 1_000)
    torch.testing.assert_close(enhance(made, noisy), at_once(made, noisy))


@pytest.mark.parametrize("rate", [8_000, 16_000, 11_025, 44_100])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("samples", [1, 300, 30_001])
def test_a_file_keeps_rate_length_and_channels(tmp_path, rate, channels, samples):
    made = model(rate=8_000, window=30).float()
    source = sounds.write(tmp_path / "in.wav", sounds.tone(samples, rate, 200, channels), rate)
    done = []
    enhance_file(made, CONTEXT, source, tmp_path / "out.flac", done.append)
    info = soundfile.info(str(tmp_path / "out.flac"))
    assert (info.samplerate, info.frames, info.channels) == (rate, samples, channels)
    assert sum(done) == samples
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.wav", "out.flac"]


@pytest.mark.parametrize("context", [0.0, 0.5, 0.8])
def test_a_file_is_enhanced_as_its_samples_are(tmp_path, context):
    made = model(rate=8_000, window=30).float()
    sound = sounds.tone(100_000, 8_000, channels=2).astype(np.float32)
    source = sounds.write(tmp_path / "a.wav", sound, 8_000, subtype="FLOAT")
    target = tmp_path / "b.wav"
    enhance_file(made, context, source, target)
    written, _ = soundfile.read(str(target), dtype="float32")
    expected = enhance(made, torch.from_numpy(sound.T.copy()), context=context).T.numpy()
    assert np.abs(written - expected).max() < 1e-4
    assert soundfile.info(str(target)).subtype == "FLOAT"


def test_a_recording_is_not_replaced(tmp_path):
    made = model(rate=8_000).float()
    source = sounds.write(tmp_path / "a.wav", sounds.tone(9_000, 8_000), 8_000)
    content = source.read_bytes()
    (tmp_path / "link.wav").symlink_to(source)
    (tmp_path / "folder").mkdir()
    for target in (source, tmp_path / "folder" / ".." / "a.wav", tmp_path / "link.wav"):
        with pytest.raises(AudioError, match="is the recording itself"):
            enhance_file(made, CONTEXT, source, target)
    assert source.read_bytes() == content


def test_resampling_there_and_back_does_not_shift_a_sound(tmp_path):
    class Same(SpeechEnhancer):
        """Predicts what it hears."""

        def forward(self, inputs, **_):
            return type("Output", (), {"logits": torch.log(inputs + self.config.floor)})

    made = Same(model(rate=8_000, window=30).config)
    sound = sounds.tone(44_100, 44_100, 500)
    source = sounds.write(tmp_path / "a.wav", sound, 44_100)
    enhance_file(made, CONTEXT, source, tmp_path / "b.wav")
    written, _ = soundfile.read(str(tmp_path / "b.wav"))
    assert np.abs(written - sound[:, 0])[2_000:-2_000].max() < 0.01


def test_what_cannot_be_read_leaves_nothing_behind(tmp_path):
    made = model(rate=8_000).float()
    sounds.break_files(tmp_path)
    (tmp_path / "before.wav").write_bytes(b"what was there")
    names = sorted(path.name for path in tmp_path.iterdir())
    for path in sorted(tmp_path.glob("*.*")):
        if path.name != "before.wav":
            with pytest.raises(AudioError, match=path.name):
                enhance_file(made, CONTEXT, path, tmp_path / "before.wav")
    assert (tmp_path / "before.wav").read_bytes() == b"what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_fault_late_in_a_file_leaves_nothing_behind(tmp_path):
    sound = sounds.tone(90_000, 8_000)
    sound[80_123] = np.inf
    source = sounds.write(tmp_path / "a.wav", sound, 8_000, subtype="FLOAT")
    with pytest.raises(AudioError, match=r"a\.wav: sample 80123 is inf"):
        enhance_file(model(rate=8_000).float(), CONTEXT, source, tmp_path / "b.wav")
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_names_that_nothing_can_be_written_to(tmp_path):
    source = sounds.write(tmp_path / "a.wav", sounds.tone(100, 8_000), 8_000)
    for name, words in (
        ("b.mp3", "that ends in .wav or .flac"),
        ("no/b.wav", "does not exist"),
    ):
        with pytest.raises(AudioError, match=words):
            enhance_file(model(rate=8_000).float(), CONTEXT, source, tmp_path / name)


def test_where_the_new_file_cannot_be_written_the_recording_is_not_blamed(tmp_path):
    made = model(rate=8_000, window=30).float()
    source = sounds.write(tmp_path / "a.wav", sounds.tone(30_000, 8_000, channels=9), 8_000)
    with pytest.raises(AudioError, match=r"b\.flac cannot be written .* other format"):
        enhance_file(made, CONTEXT, source, tmp_path / "b.flac")  # which has eight channels at most
    with pytest.raises(OSError, match="File name too long"):
        enhance_file(made, CONTEXT, source, tmp_path / f"{'b' * 250}.wav")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(NoSpaceError, match=r"no space to write .*/b\.wav"):
            enhance_file(made, CONTEXT, source, tmp_path / "b.wav")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_memory_does_not_grow_with_the_file(tmp_path):
    made = model(rate=8_000, window=30, lookahead=0).float()
    peaks = []
    for seconds in (10, 40):
        sound = np.zeros((8_000 * seconds, 1), np.float32)
        source = sounds.write(tmp_path / "a.wav", sound, 8_000)
        tracemalloc.start()
        enhance_file(made, CONTEXT, source, tmp_path / "b.wav")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
