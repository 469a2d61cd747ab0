"""Classification and probing: pairs, classes, pretrained encoders, and what probes hold."""

import json

import pyarrow.parquet
import pytest
import torch
from support.data_files import WORDS, sentence, text_file
from transformers import AutoTokenizer

from headwise.data.load import DataError
from headwise.data.tokenizers import TokenizerSettings, learn_tokenizer
from headwise.models.config import MaskedLMConfig
from headwise.models.text import MaskedLM
from headwise.recipes.recipe import RecipeError, load_recipe, task_class
from headwise.tasks.probing import word_content
from headwise.tasks.task import PredictRequest

SIZES = {"embed_dim": 16, "num_heads": 2, "ffn_dim": 16, "layers": 1}
WORDY = {"type": "word", "min_frequency": 1}


def prepared(folder, data, *, task="classification", **recipe):
    keys = {"task": task, "data": data, "model": SIZES, "training": {"max_steps": 1}, **recipe}
    (folder / "recipe.yaml").write_text(json.dumps(keys))
    settings = load_recipe(str(folder / "recipe.yaml")).system(None)
    return task_class(task)(settings)


def table(folder, rows, names=("text", "label")):
    return str(text_file(folder / "rows.tsv", ["\t".join(row) for row in (names, *rows)]))


LABELLED = [(sentence(key), ("10", "9", "b")[key % 3]) for key in range(60)]

# --- texts and labels -------------------------------------------------------------------------


def test_pairs_are_predicted_as_they_are_evaluated_and_cut_ones_are_counted(tmp_path):
    sides = [" ".join(WORDS[:number]) for number in (1, 4, 9, 10)]
    rows = [(a, b, f"{len(a) % 2}") for a in sides for b in (*sides, "<eos> <pad>")]
    path = table(tmp_path, rows, ("text", "other", "label"))
    data = {"files": {"train": path, "validation": path, "test": path}, "max_length": 14}
    task = prepared(tmp_path, {**data, "columns": {"pair": "other"}}, tokenizer=WORDY)
    task.save(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    lengths = [len(tokenizer(text, pair)["input_ids"]) for text, pair, _ in rows]
    assert task.facts["test"]["cut"] == sum(length > 14 for length in lengths) > 0
    model = task.build_model(task.recipe).eval()
    lines = ["\t".join(row[:2]) for row in rows]
    printed = list(
        task.predict(tmp_path / "model", task.recipe, model, PredictRequest(texts=lines))
    )
    outputs = task.evaluate(model, "test", task.recipe.evaluation).outputs
    assert [line.split("\t")[0] for line in printed] == outputs
    with pytest.raises(ValueError, match="expected 2"):
        next(task.predict(tmp_path / "model", task.recipe, model, PredictRequest(texts=["one"])))


def test_classes_are_those_of_all_training_data_in_order(tmp_path):
    path = table(tmp_path, LABELLED)
    task = prepared(tmp_path, {"files": {"train": path}, "train_fraction": 1e-6})
    assert task.classes == ["9", "10", "b"] and len(task.rows["train"]) == 1
    assert task.build_model(task.recipe).config.id2label == {0: "9", 1: "10", 2: "b"}


@pytest.mark.parametrize("wrong", ["inf", "nan", "1,5", "high", "-100", "no class"])
def test_a_wrong_label_is_told_with_file_and_text(wrong, tmp_path):
    rows = [(text, str(number)) for number, (text, _) in enumerate(LABELLED)]
    numbers = {"classes": [number for _, number in rows]}
    rows[7] = ("the one that is wrong", wrong)
    kind = numbers if wrong == "no class" else {"regression": True}
    data = {"files": {"train": table(tmp_path, rows)}, **kind}
    with pytest.raises(DataError, match=f"rows.tsv: .*the one that is wrong.* '{wrong}', expected"):
        prepared(tmp_path, data)


@pytest.mark.parametrize("is_regression", [False, True])
def test_nan_is_no_label_and_whole_numbers_are_integers(is_regression, tmp_path):
    labels = [(float("nan"), 0.0, 1.0)[key % 3] for key in range(60)]
    rows = pyarrow.table({"text": [text for text, _ in LABELLED], "label": labels})
    files = dict.fromkeys(("train", "validation", "test"), str(tmp_path / "rows.parquet"))
    pyarrow.parquet.write_table(rows, files["test"])
    task = prepared(tmp_path, {"files": files, "regression": is_regression})
    expected = {"0.0", "1.0"} if is_regression else {"0", "1"}
    assert set(task.rows["test"]["label"]) == expected
    assert task.facts["test"]["rows"] == 40 and task.facts["test"]["left out"] == 20


def test_a_wrong_label_of_a_test_set_is_told_with_its_split(tmp_path):
    test = str(text_file(tmp_path / "test.tsv", ["text\tlabel", "a text\tnew"]))
    files = {"train": table(tmp_path, LABELLED), "test": test}
    with pytest.raises(DataError, match=r"^the test split: .* 'new', expected one of 9, 10, b"):
        prepared(tmp_path, {"files": files})


def test_a_class_for_each_text_is_told(tmp_path):
    rows = [(text, text) for text, _ in LABELLED]
    files = dict.fromkeys(("train", "validation", "test"), table(tmp_path, rows))
    with pytest.warns(match="60 texts have 60 classes: see data.columns.label"):
        prepared(tmp_path, {"files": files})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"classes": [0, 1]}, "data.classes.0 is 0, .* quotes"),
        ({"classes": ["no", "yes"], "regression": True}, "expected one of them"),
        ({"streaming": True}, "classes is not given"),
        ({"max_length": 600}, "600, expected at most the 512 positions"),
        ({"tests": {"other": {"columns": {"text": "label"}}}}, r"tests\.other: .* files\.test"),
    ],
)
def test_settings_that_do_not_go_together_are_errors(data, message, tmp_path):
    data = {"files": {"train": table(tmp_path, LABELLED)}, **data}
    with pytest.raises((RecipeError, DataError), match=message):
        prepared(tmp_path, data, model={**SIZES, "positions": "learned"})


# --- pretrained encoders ----------------------------------------------------------------------


def test_sizes_vocabulary_and_weights_come_from_a_pretrained_encoder(tmp_path):
    run = tmp_path / "run" / "model"
    tokenizer = learn_tokenizer(list(WORDS), TokenizerSettings(vocab_size=300), "masked")
    tokenizer.save_pretrained(run)
    sizes = {**SIZES, "positions": "learned", "max_positions": 32, "ffn_activation": "gelu"}
    config = MaskedLMConfig(**sizes, vocab_size=len(tokenizer), attention="standard")
    MaskedLM(config).save_pretrained(run)
    data = {"files": {"train": table(tmp_path, LABELLED)}, "max_length": 32}
    model = {"pretrained": str(run.parent), "pooling": "first", "dropout": 0.3}
    task = prepared(tmp_path, data, model=model)
    classifier = task.build_model(task.recipe)
    weights = MaskedLM.from_pretrained(run).encoder.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in classifier.encoder.state_dict().items())
    assert (classifier.config.pooling, classifier.config.dropout) == ("first", 0.3)
    other = prepared(tmp_path, data, model={**model, "attention": "mae"})
    assert other.build_model(other.recipe).config.attention == "mae"
    assert task.tokenizer("one two")["input_ids"] == tokenizer("one two")["input_ids"]
    with pytest.raises(RecipeError, match="33, expected at most the 32 positions"):
        prepared(tmp_path, {**data, "max_length": 33}, model=model)
    with pytest.raises(RecipeError, match="layers is 2, expected 1"):
        prepared(tmp_path, data, model={**model, "layers": 2})


# --- probes -----------------------------------------------------------------------------------


def test_word_content_ranks_and_matches_words_with_their_case():
    """But the first of a sentence is as one inside."""
    frequent = [f"then some went away {key}" for key in range(9)]  # the four most frequent words
    texts = ["Cats sit", "a cats", "The Cats sit", "The Dogs sit", "Dogs"]
    texts += ["cats or dogs", "dogs dogs"]
    classes = word_content([*frequent, *texts], 2)
    assert classes == {"dogs": ["Dogs"], "cats": ["Cats sit", "a cats"]}
    with pytest.raises(DataError, match="num_words"):
        word_content(texts)


def test_a_file_of_senteval_has_its_parts(tmp_path):
    lines = ["tr\tO\tIt  is .", "tr\tI\tmore\tHe had .", "va\tO\tNo .", "te\tI\tYes ."]
    data = {"path": "senteval", "options": {"file": str(text_file(tmp_path / "x.txt", lines))}}
    task = prepared(tmp_path, data, task="probing")
    rows = {part: list(zip(x["text"], x["label"], strict=True)) for part, x in task.rows.items()}
    assert rows["train"] == [("It is .", "O"), ("He had .", "I")]
    assert (rows["validation"], rows["test"]) == ([("No .", "O")], [("Yes .", "I")])
    assert task.cost_lengths(task.recipe) == {"encoder": 28}
