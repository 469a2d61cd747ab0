"""Running text: lines, windows, documents as items, generated text, and filled masks."""

import io
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from headwise.data.load import DataError
from headwise.tasks.language import LanguageModelling, LanguageRecipe, generate_text, passages
from headwise.tasks.masked import MaskedLanguageModelling, MaskedRecipe
from headwise.tasks.task import PredictRequest

LINES = ["open the file", "", "close the window and open it", "the end", "", "open the window"] * 9
SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1, "dropout": 0.0}
TASKS = {LanguageModelling: LanguageRecipe, MaskedLanguageModelling: MaskedRecipe}


@pytest.fixture
def make(tmp_path):
    """Returns a task on lines, and a model of random weights that are large."""

    def make_task(kind=LanguageModelling, test=LINES, plan="standard", block_length=8, **recipe):
        for part, lines in {"train": LINES, "test": test}.items():
            (tmp_path / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines))
        files = {part: str(tmp_path / f"{part}.txt") for part in ("train", "test")}
        files["validation"] = files["train"]
        keys = {
            "task": kind.name,
            "data": {"files": files, "block_length": block_length},
            "tokenizer": {"type": "word", "min_frequency": 1},
            "model": {**SIZES, "attention": plan},
            "training": {"max_steps": 1},
        }
        task = kind(TASKS[kind](**{**keys, **recipe}))
        model = task.build_model(task.recipe).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        return task, model

    return make_task


# --- language modelling -------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["standard", {"system": "mae", "gate_window": 5}])
@pytest.mark.parametrize(("tokens", "context"), [(1, 0), (2, 7), (7, 5), (8, 4), (23, 7), (24, 0)])
def test_texts_shorter_and_longer_than_a_window(make, plan, tokens, context):
    task, model = make(test=["the " * (tokens - 1)], plan=plan)
    stream = torch.tensor([task.tokenizer.eos_token_id, *task.tokens(["the " * (tokens - 1)])[0]])
    expected, stride = 0.0, 8 - context
    for target in range(1, len(stream)):
        seen = stream[max(0, (target - 1) // stride * stride - context) : target]
        with torch.no_grad():
            expected -= model(input_ids=seen[None]).logits[0, -1].log_softmax(-1)[stream[target]]
    evaluation = task.recipe.evaluation.model_copy(update={"context": context})
    (score,) = task.evaluate(model, "test", evaluation).scores
    assert score.value == pytest.approx(math.exp(expected / tokens), rel=1e-4)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=80))
@example([5, 3000])  # a last line that is longer than all passages
@example([0, 0])
def test_passages_are_documents_or_lines_with_enough_words(words):
    starts = passages(np.array(words)).tolist()
    assert starts[0] == 0 and starts == sorted(set(starts)) and starts[-1] < len(words)
    runs = "".join(" x"[count > 0] for count in words).split()
    if len(runs) >= 10:
        assert len(starts) == len(runs)
        assert all(words[start] and not words[start - 1] for start in starts[1:])
    else:
        least = min(200, sum(words) / 10)
        assert len(starts) == 1 or np.add.reduceat(words, starts).min() >= least


def test_the_adaptive_softmax_is_scored_as_it_is_trained(make):
    task, model = make(model={**SIZES, "adaptive_cutoffs": [4, 8], "adaptive_factor": 2})
    items, words = task.splits["test"], " ".join(LINES).split()
    with torch.no_grad():
        losses = [model(**task.collate([items[i]])).loss for i in range(len(items))]
    nats = sum(float(loss) * n for loss, n in zip(losses, items.lengths, strict=True))
    evaluation = task.recipe.evaluation.model_copy(update={"context": 0})
    (score,) = task.evaluate(model, "test", evaluation).scores
    expected = math.exp(nats / (len(words) + len(LINES)))
    assert score.value == pytest.approx(expected, rel=1e-4) and len(score.rows) == 19


# --- generated text -----------------------------------------------------------------------------


def test_texts_depend_on_the_seed_and_do_not_disturb_other_draws(make):
    task, model = make(block_length=16)
    model.lm_head.weight.data.zero_()  # all tokens are as probable whatever comes before

    def write(prompts, **settings):
        evaluation = task.recipe.evaluation.model_copy(update=settings)
        recipe = task.recipe.model_copy(update={"evaluation": evaluation})
        return [generate_text(model, task.tokenizer, prompt, recipe) for prompt in prompts]

    before = torch.get_rng_state()
    prompts = ["", "open", "open the", "close the window and open", "the\nopen", "the end\n"]
    found = write(prompts)
    assert torch.equal(torch.get_rng_state(), before) and write(prompts) == found
    assert write(prompts, seed=2) != found
    assert any("\n" in text.strip() for seed in range(9) for text in write([""], seed=seed))
    with pytest.raises(ValueError, match=r"of 9 tokens, expected at most 8: with the new ones"):
        write(["open " * 8])


def test_each_text_of_a_prompt_has_a_seed_of_its_own(make, tmp_path):
    task, model = make(block_length=16, evaluation={"max_new_tokens": 5})
    task.save(tmp_path / "model")

    def predict(*texts, **options):
        request = PredictRequest(texts=texts, **options)
        return list(LanguageModelling.predict(tmp_path / "model", task.recipe, model, request))

    texts = predict("the", "the\nopen", number=2)
    assert texts[:2] == predict("the", "the\nopen") and texts[2:] != texts[:2]
    assert texts[0].startswith("the") and texts[1].startswith("the\nopen")
    ids = AutoTokenizer.from_pretrained(tmp_path / "model")("the\nopen")["input_ids"]
    end = task.tokenizer.eos_token_id
    assert ids == [end, *task.tokens(["the"])[0], *task.tokens(["open"])[0][:-1]]


def test_without_texts_standard_input_is_read_if_it_has_any(make, tmp_path, monkeypatch):
    task, model = make(block_length=16, evaluation={"max_new_tokens": 3})
    task.save(tmp_path / "model")

    def predict(stdin, *texts):
        stream = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", stream)
        request = PredictRequest(texts=texts)
        return list(LanguageModelling.predict(tmp_path / "model", task.recipe, model, request))

    assert predict(b"\xef\xbb\xbfthe\r\nopen the\n") == predict(b"end\n", "the", "open the")
    assert predict(None) == predict(b"") == predict(b"end\n", "")
    with pytest.raises(DataError, match=r"standard input, line 2: not UTF-8 .*iconv"):
        predict(b"the\ncaf\xe9\n")


# --- masked language modelling ------------------------------------------------------------------


def test_a_row_of_several_lines_is_a_document(make):
    rows = {"text": ["One.\n\nTwo.\n", " Three. ", None, "Four.\nFive.\n\n"]}
    expected = ["One.", "", "Two.", "", "Three.", "", "Four.", "Five.", ""]
    assert LanguageModelling.clean(rows, None, "train")["text"] == expected
    task, _ = make(MaskedLanguageModelling, test=["the", "", "", "the", "", "end"])
    tokens = task.tokenizer.convert_ids_to_tokens(task.splits["test"].rows[0]["input_ids"])
    assert tokens == ["<bos>", "the", "<eos>", "<eos>", "the", "<eos>"]  # one between documents


def test_sequences_without_a_word_to_hide_are_left_out(make):
    lines = ["le chat voit un oiseau", "the end", "un chien aime un chat"]
    task, model = make(MaskedLanguageModelling, test=lines, evaluation={"draws": 3})
    (row,) = task.evaluate(model, "test", task.recipe.evaluation).scores[0].rows
    assert row[1] == 3 and len(task.splits["test"]) == 1
    with pytest.raises(DataError, match="the test split has no word that could be hidden"):
        make(MaskedLanguageModelling, test=lines[:1])
    with pytest.raises(DataError, match=r"the test split has no words: all .* blank"):
        make(MaskedLanguageModelling, test=["", "", ""])


def test_items_are_told_by_their_masks_and_blocks(make):
    changes = ({}, {"masking": {"seed": 2}}, {"block_length": 9}, {})
    tasks = [make(MaskedLanguageModelling, **change)[0] for change in changes]
    hashes = [task.content_hash("test") for task in tasks]
    assert hashes[0] == hashes[3] and len(set(hashes)) == 3


def test_masks_are_filled_and_other_special_tokens_are_text(make, tmp_path):
    tokenizer = {"vocab_size": 280}
    task, model = make(MaskedLanguageModelling, tokenizer=tokenizer, block_length=32)
    task.save(tmp_path / "model")

    def predict(*texts):
        folder, request = tmp_path / "model", PredictRequest(texts=texts)
        return list(MaskedLanguageModelling.predict(folder, task.recipe, model, request))

    texts = ["the <mask> of <eos>", "<mask>", "open <mask> <pad> and <mask>"]
    found = predict(*texts)
    assert found == [predict(text)[0] for text in texts]
    assert found[0].startswith("the") and found[0].endswith(" of <eos>") and "<pad>" in found[2]
    assert "<mask>" not in "".join(found)
    assert predict("the end") == ["the end"]
