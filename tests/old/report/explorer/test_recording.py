"""What the page is told equals what the model does, for every task and system."""

import numpy as np
import pytest
import tiny_tasks
import torch
from exploring_runs import write_run

import headwise as hw
from headwise.heads.attention import Attention
from headwise.recipes.catalogue import TASKS
from headwise.report.explorer.inputs import Source
from headwise.report.explorer.payload import Asked
from headwise.report.explorer.recording import INPUTS, Explorer

# Each system in translation, which has all three places, and each task with systems that differ.
PAIRS = [
    (task, system)
    for task in TASKS
    for system in tiny_tasks.SYSTEMS
    if task == "translation" or system in ("standard", "mae", "moa")
]
TEXT = "one two three four"


def text_of(task):
    return None if task in ("images", "speech-enhancement") else TEXT


def asked_weights(model, arguments):
    """All attention weights of a pass, asked for as a caller of the modules does."""
    found = []
    hooks = []
    for module in model.modules():
        if isinstance(module, Attention):
            ask = lambda _, args, given: (args, {**given, "need_weights": True})  # noqa: E731
            hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            hooks.append(module.register_forward_hook(lambda _, __, out: found.append(out[1][0])))
    with torch.no_grad():
        model(**arguments)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize(("task", "system"), PAIRS)
def test_decisions_and_attention_are_those_of_the_model(runs, task, system):
    explorer = Explorer([runs(task, system)], Source(text=text_of(task)))
    (run,) = explorer.record().runs
    model = explorer.trained[0].model
    given = INPUTS[task](explorer.trained[0], explorer.source)
    with hw.record(model) as decided, torch.no_grad():
        model(**given.arguments)

    made = {place.path: routings[0] for place, routings in decided.items()}
    assert {place.path for place in run.places if place.units} == set(made)
    assert bool(made) == (system != "standard")
    for place in run.places:
        positions = len(run.stacks[place.stack].tokens)
        if place.path in made:
            weights = made[place.path].weights.numpy()
            rows = {
                "position": weights[0:1].squeeze(0),
                "sequence": weights,
                "everything": weights[None],
            }
            rows = rows[place.decides]
            shown = place.weights.numbers()
            assert shown.shape == (positions if place.decides == "position" else 1, place.units)
            assert np.abs(shown - rows / rows.sum(-1, keepdims=True)).max() <= 1 / 255
            assert len(place.unit_names) == place.units
        if place.chosen is not None:
            assert place.chosen == made[place.path].indices[0].tolist()

    expected = iter(asked_weights(model, given.arguments))
    for place in run.places:
        for attention in place.attentions:
            weights = next(expected).numpy()
            shown = np.stack([head.numbers() for head in attention.heads])
            assert np.abs(shown - weights).max() <= 1 / 255
            assert np.abs(shown.sum(-1) - 1).max() <= shown.shape[-1] / 255
            queries, keys = (
                len(run.stacks[name].tokens) for name in (attention.queries, attention.keys)
            )
            assert shown.shape[1:] == (queries, keys)
            if attention.unit_of_head is not None and place.units:
                assert set(attention.unit_of_head) == set(range(place.units))
    assert next(expected, None) is None


def test_weights_that_an_ablation_leaves_at_0_are_equal(runs):
    run = runs("classification", "standard", attention="differential")
    nothing_taken = "evaluation.ablation.differential=without-subtraction"
    (shown,) = Explorer([run], Source(text=TEXT), [nothing_taken]).record().runs
    assert {place.weights.numbers().mean() for place in shown.places} == {1 / shown.places[0].units}


def test_negative_weights(runs):
    explorer = Explorer([runs("classification", "standard", attention="differential")], Source())
    (run,) = explorer.record().runs
    model = explorer.trained[0].model
    given = INPUTS["classification"](explorer.trained[0], explorer.source)
    for place, weights in zip(run.places, asked_weights(model, given.arguments), strict=True):
        shown = np.stack([head.numbers() for head in place.attentions[0].heads])
        assert shown.min() < -0.01
        assert np.abs(shown - weights.numpy()).max() <= 1 / 127


MODERN = {"positions": "rotary", "norm_kind": "rms", "ffn_activation": "swiglu", "bias": False}
GROUPED = {**MODERN, "num_key_value_heads": 2, "qk_norm": True}


@pytest.mark.parametrize("system", ["standard", "moa", "tim"])
def test_a_model_of_today(runs, system):
    """Heads that share keys are shown each; an expert of MoA has one for each head of keys."""
    explorer = Explorer([runs("translation", system, **GROUPED)], Source(text=TEXT))
    (run,) = explorer.record().runs
    model = explorer.trained[0].model
    given = INPUTS["translation"](explorer.trained[0], explorer.source)
    expected = iter(asked_weights(model, given.arguments))
    for place in run.places:
        for attention in place.attentions:
            shown = np.stack([head.numbers() for head in attention.heads])
            assert len(shown) == 4  # of MoA: two experts, each with two heads
            assert np.abs(shown - next(expected).numpy()).max() <= 1 / 255
        if system == "moa":
            assert place.unit_names == [f"expert {number}" for number in range(4)]
            assert {len(chosen) for chosen in place.chosen} == {2}
    assert next(expected, None) is None


@pytest.mark.parametrize("task", TASKS)
def test_without_an_input_it_is_the_first_item_of_the_test_part(runs, task):
    payload = Explorer([runs(task)], Source()).record()
    assert (payload.item.part, payload.item.number) == ("test", 0)
    assert payload.item.of > 0
    other = Explorer([runs(task)], Source(part="validation", item=1)).record()
    assert (other.item.part, other.item.number) == ("validation", 1)


def test_the_decoder_reads_the_translation_or_the_target(runs):
    explorer = Explorer([runs("translation"), runs("translation", "tim")], Source(text=TEXT))
    for run in explorer.record().runs:
        (made,) = run.output.made
        assert made.label == "translation" and made.by_model
        # An untrained model writes bytes that are no text.
        text = "".join(run.stacks["decoder"].tokens[1:])
        assert "\ufffd" in made.text or text.strip() == made.text.strip()
        assert run.stacks["decoder"].given == 1
        assert "".join(run.stacks["encoder"].tokens).strip() == f"{TEXT}<eos>"
        crossed = [a for p in run.places for a in p.attentions if a.keys != a.queries]
        assert [(a.queries, a.keys) for a in crossed] == [("decoder", "encoder")]
    given = Explorer([runs("translation")], Source(text=TEXT, target="un deux")).record()
    (run,) = given.runs
    assert run.stacks["decoder"].tokens[0] == "<bos>"
    assert "".join(run.stacks["decoder"].tokens[1:]) == " un deux"
    assert [made.label for made in run.output.made] == ["translation", "target"]


def test_predictions_are_the_models_probabilities(runs):
    explorer = Explorer([runs("translation")], Source(text=TEXT, target="un deux"))
    (run,) = explorer.record().runs
    given = INPUTS["translation"](explorer.trained[0], explorer.source)
    with torch.no_grad():
        shares = explorer.trained[0].model(**given.arguments).logits[0].softmax(-1)
    found = run.output.predictions
    assert [each.position for each in found] == list(range(1, len(shares) + 1))
    for row, each in zip(shares, found, strict=True):
        assert each.best[0].probability == pytest.approx(float(row.max()), abs=1e-5)
        assert each.probability <= each.best[0].probability


def test_holes_are_filled(runs):
    explorer = Explorer([runs("masked-language-modelling")], Source(text="one <mask> three"))
    (run,) = explorer.record().runs
    tokens = run.stacks["encoder"].tokens
    (hole,) = run.output.predictions
    assert tokens[hole.position] == "<mask>" and hole.probability is None
    assert hole.position in run.stacks["encoder"].special
    assert "<mask>" not in run.output.made[0].text
    (whole,) = (
        Explorer(
            [runs("masked-language-modelling")], Source(text="one two three four five six seven")
        )
        .record()
        .runs
    )
    holes = whole.output.predictions
    assert holes and all(whole.stacks["encoder"].tokens[h.position] == "<mask>" for h in holes)
    assert all(h.probability is not None for h in holes)


def test_images_are_shown_in_the_palettes_colours(runs, tmp_path):
    from PIL import Image

    path = tmp_path / "black.png"
    Image.new("L", (40, 40)).save(path)
    (run,) = Explorer([runs("images")], Source(file=path)).record().runs
    stack = run.stacks["decoder"]
    assert (stack.kind, stack.width, stack.height, stack.offset) == ("image", 4, 4, 1)
    assert stack.tokens[0] == "<start>" and len(stack.tokens) == 17
    (colour,) = set(stack.tokens[1:])
    assert colour < "#202020"  # of the four there are the darkest
    assert [made.by_model for made in run.output.made] == [False, True]
    assert all(made.picture.startswith("data:image/png;base64,") for made in run.output.made)


def test_speech_can_be_heard(runs, tmp_path):
    import base64
    import io
    import wave

    (run,) = Explorer([runs("speech-enhancement")], Source()).record().runs
    stack = run.stacks["decoder"]
    encoded = stack.sound.removeprefix("data:audio/wav;base64,")
    with wave.open(io.BytesIO(base64.b64decode(encoded))) as file:
        assert (file.getframerate(), file.getnframes()) == (8000, 3968)
    assert stack.spectrogram.shape == [len(stack.tokens), 129]
    assert stack.spectrogram.numbers().max() == pytest.approx(1)
    assert [(made.label, made.by_model) for made in run.output.made] == [
        ("enhanced", True),
        ("clean", False),
    ]
    path = tmp_path / "one.wav"
    path.write_bytes(base64.b64decode(encoded))
    (again,) = Explorer([runs("speech-enhancement")], Source(file=path)).record().runs
    assert again.stacks["decoder"].tokens == stack.tokens
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(2 * 8000))
    long = Explorer([runs("speech-enhancement")], Source(file=path)).record()
    assert long.note == "The first 0.5 of 1.0 seconds, which the model reads at once."
    assert long.runs[0].stacks["decoder"].tokens == stack.tokens


@pytest.mark.parametrize(
    ("task", "source", "message"),
    [
        ("translation", Source(text="  "), "text is empty"),
        ("translation", Source(item=9999), "item is 9999, expected 0 to"),
        ("translation", Source(part="tset"), "part is 'tset', expected one of train, validation"),
        (
            "translation",
            Source(text="one" + " one" * 2999),
            "has 3,001 tokens, expected at most 2,048",
        ),
        ("language-modelling", Source(text="a", target="b"), "target is given"),
        ("classification", Source(text="one " * 80), "tokens, expected at most 64"),
        ("images", Source(text="a cat"), "reads no text"),
        ("speech-enhancement", Source(text="hello"), "reads no text"),
    ],
)
def test_bad_input_is_refused(runs, task, source, message):
    with pytest.raises(ValueError, match=message):
        Explorer([runs(task)], source).record()


def test_files_that_cannot_be_read_are_refused(runs, tmp_path):
    noise = tmp_path / "noise.bin"
    noise.write_bytes(bytes(range(256)))
    for task in ("translation", "images", "speech-enhancement"):
        for path in (noise, tmp_path / "missing"):
            with pytest.raises(ValueError, match=path.name):
                Explorer([runs(task)], Source(file=path)).record()


def test_a_text_longer_than_the_model_takes_is_refused_with_its_length(runs):
    run = runs("translation", "standard", positions="learned", max_positions=20)
    with pytest.raises(ValueError, match="the text has 31 tokens, expected at most 20"):
        Explorer([run], Source(text="one" + " one" * 29)).record()
    # An untrained model writes until there is no room.
    fitting = Explorer([run], Source(text="one two three four five six seven")).record()
    assert len(fitting.runs[0].stacks["decoder"].tokens) == 20
    with pytest.raises(ValueError, match="the target has 30 tokens, expected at most 20"):
        Explorer([run], Source(text="one", target="un" + " un" * 28)).record()


def test_items_of_other_data_are_not_shown_side_by_side(runs, tmp_path):
    other = write_run(tmp_path, "translation", "mae")
    path = tmp_path / "train.en"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("".join(f"{line} ten\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match="of translation-mae is another text than that of"):
        Explorer([runs("translation"), other], Source()).record()


def test_lines_of_a_text_are_no_other_text_to_a_model_of_no_run(runs, saved):
    folders = [runs("translation"), saved("marian")]
    assert len(Explorer(folders, Source(text="open\nclose")).record().runs) == 2


def a_removal(run):
    """The removal of a unit that counts at the first position."""
    place = run.places[0]
    unit = 1 if place.chosen is None else place.chosen[0][0]
    chosen = next(each for each in run.ablations if unit in (each.unit, each.head))
    return Asked(run=0, path=chosen.path, name=chosen.name, options=chosen.options)


@pytest.mark.parametrize("system", tiny_tasks.SYSTEMS)
def test_removing_a_unit_changes_what_the_model_makes_and_nothing_stays(runs, system):
    explorer = Explorer([runs("classification", system)], Source(text=TEXT))
    before = explorer.record()
    removal = a_removal(before.runs[0])
    after = explorer.record(asked=[removal])
    assert after.runs[0].output != before.runs[0].output
    assert [each.name for each in after.runs[0].ablated] == [removal.name]
    assert explorer.record().model_dump() == before.model_dump()
    with pytest.raises(ValueError, match="at most one of each"):
        explorer.record(asked=[removal, removal])
