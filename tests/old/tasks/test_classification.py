"""Classification and regression: examples in ids, scores, and pretrained encoders."""

from itertools import islice, takewhile

import numpy as np
import pytest
import scipy.stats
import tiny_tasks
import torch
import yaml

from headwise.data.labelled.corpus import Example, LabelledCorpus
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.models.classifier import SequenceClassifier
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.recipes import RecipeError, load_recipe
from headwise.runs.preparing import build_model
from headwise.tasks.classification import Classification, ClassificationEvaluation
from headwise.tasks.outcome import Outcome
from headwise.tasks.significance import score_of

SIZES = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1}
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def no_bar(count):
    pass


@pytest.fixture(scope="module")
def tokenizer():
    lines = [" ".join(WORDS), " ".join(reversed(WORDS))] * 3
    return TextTokenizer.train(lines, TextTokenizerSettings(vocab_size=300))


def examples(number, classes=("up", "down"), pair=False):
    return [
        Example(
            " ".join([*WORDS[: 1 + i % 7], WORDS[i // 7]]),
            " ".join(WORDS[i % 5 :]) if pair else None,
            classes[i % len(classes)] if classes else i / 4,
        )
        for i in range(number)
    ]


def labelled(tests=("",), classes=("up", "down"), pair=False):
    train, validation = (examples(size, classes, pair) for size in (40, 10))
    return LabelledCorpus(
        train,
        validation,
        {name: examples(12 + i, classes, pair) for i, name in enumerate(tests)},
        {"corpus": "numerals"},
        classes=list(classes) if classes else None,
    )


def settings(**model):
    raw = {
        "task": "classification",
        "data": {"corpus": "files", "train": "train.tsv"},
        "model": {**SIZES, **model},
        "training": {"max_steps": 1},
    }
    return Classification.recipe_class.model_validate(raw).model


def build(task, **model):
    torch.manual_seed(0)
    return task.build_model(settings(**model)).eval()


# --- examples in batches ----------------------------------------------------------------------


def test_a_batch_holds_an_example_at_least():
    data = {"corpus": "docstrings", "max_length": 300}
    raw = {"data": data, "training": {"max_steps": 1, "batch_tokens": 256}}
    with pytest.raises(ValueError, match=r"is 300, expected at most training.batch_tokens, 256"):
        Classification.recipe_class.model_validate(raw)


def test_what_is_cut_is_counted_in_the_vocabularys_tokens():
    lines = [" ".join(WORDS)] * 3
    for kind, unit in (("word", "words"), ("bpe", "subwords")):
        settings = TextTokenizerSettings(type=kind, vocab_size=300)
        task = Classification(labelled(), TextTokenizer.train(lines, settings), 8)
        assert task.notes["cut"].endswith(f"more than 8 {unit}")
        assert task.notes["vocabulary"].endswith(f" {unit}")
        assert all(label == label.lower() for label in task.notes)


def test_a_batch(tokenizer):
    for classes, kind in ((("up", "down"), torch.int64), ((), torch.float32)):
        task = Classification(labelled(classes=classes), tokenizer, 50)
        batch = task.collate([task.train[i] for i in range(4)])
        assert set(batch) == {"input_ids", "attention_mask", "labels"}
        assert batch["labels"].dtype == kind
        expected = [0, 1, 0, 1] if classes else [0, 0.25, 0.5, 0.75]
        assert batch["labels"].tolist() == expected
        assert (batch["attention_mask"].sum(1) == torch.tensor(task.train.true_lengths[:4])).all()
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 0).all()


# --- streams ----------------------------------------------------------------------------------

STREAM = [
    "data.streaming=true",
    "data.classes=[short, long]",
    "data.held_out_rows=20",
    "data.shuffle_rows=16",
]


def prepare(folder, *changes):
    path = tiny_tasks.write_recipe("classification", folder)
    recipe = load_recipe(str(path), list(changes)).recipe
    return recipe, Classification.prepare(recipe)


def rows_of(batches):
    """The tokens and the label of each example, in any order."""
    rows = []
    for batch in batches:
        lengths = batch["attention_mask"].sum(1).tolist()
        found = zip(batch["input_ids"].tolist(), lengths, batch["labels"].tolist(), strict=True)
        rows += [(ids[:length], label) for ids, length, label in found]
    return sorted(rows)


def a_pass(batches):
    return takewhile(lambda _: not batches.state_dict()["passes"], batches)


def test_a_pass_of_a_stream_has_what_stored_data_have_and_processes_share_it(tmp_path):
    (tmp_path / "other.tsv").write_text("sentence\tlabel\none two\tshort\n")
    own = [f"data.{part}={tmp_path}/other.tsv" for part in ("validation", "test")]
    _, stored = prepare(tmp_path, STREAM[1], *own)
    _, made = prepare(tmp_path, *STREAM, *own)
    assert made.encoding() == stored.encoding()
    expected = rows_of([stored.collate(list(stored.train))])
    assert rows_of(a_pass(made.train.batches(made.collate, 256))) == expected
    shares = [
        rows_of(a_pass(made.train.batches(made.collate, 512, rank=rank, world_size=2)))
        for rank in range(2)
    ]
    assert sorted(shares[0] + shares[1]) == expected and shares[0] != expected
    assert made.longest_input() == stored.longest_input() == 64


def test_a_run_on_a_stream_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    recipe, made = prepare(tmp_path, *STREAM, "training.max_steps=6")
    once, _ = tiny_tasks.train_and_go_on(recipe, made, tmp_path)
    outcome = made.evaluate(once.model, made.test, recipe.evaluation, no_bar)
    assert outcome.scores[0].name == "accuracy" and len(outcome.outputs) == 20
    with pytest.raises(ValueError, match=r"train part is a stream .* expected a part that is stor"):
        made.part("train")


def test_the_vocabulary_is_learned_from_the_head_and_what_is_held_out_is_counted(tmp_path):
    changes = ("tokenizer.sample_rows=3", "tokenizer.type=word", "tokenizer.min_frequency=1")
    _, made = prepare(tmp_path, *STREAM, *changes, "data.max_length=8")
    words = {word for example in islice(made.corpus.train, 3) for word in example.text.split()}
    known = made.tokenizer.tokenizer.get_vocab()
    assert {word for word in known if word.isalpha()} == words
    cut = sum(len(example.text.split()) > 6 for example in made.corpus.validation)
    cut += sum(len(example.text.split()) > 6 for example in made.corpus.test[""])
    assert made.notes["cut"] == f"{cut} held-out examples of more than 8 words"


def test_what_a_stream_of_examples_cannot_is_refused(tmp_path):
    for changes, message in (
        (STREAM[:1], r"classes is not given and streaming is true, expected the names of all"),
        (
            [*STREAM, "training.max_steps=null", "training.epochs=2"],
            r"expected training\.max_steps",
        ),
        ([*STREAM, "training.loader_workers=1"], r"loader_workers is 1 .* expected 0"),
    ):
        with pytest.raises(RecipeError, match=message):
            prepare(tmp_path, *changes)


# --- scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [("up", "down"), ("up", "down", "level"), ()])
@pytest.mark.parametrize("pair", [False, True])
def test_evaluation(classes, pair, tokenizer):
    task = Classification(labelled(classes=classes, pair=pair), tokenizer, 50)
    model = build(task)
    done = []
    outcome = task.evaluate(model, task.test, ClassificationEvaluation(batch_size=5), done.append)
    assert sum(done) == len(task.test) == len(outcome.outputs) == 12
    # By hand, one example at a time.
    logits = [model(torch.tensor([task.test[i]["input_ids"]])).logits[0] for i in range(12)]
    labels = [example.label for example in task.corpus.test[""]]
    if classes:
        predicted = [classes[int(row.argmax())] for row in logits]
        assert outcome.outputs == predicted
        expected = 100 * np.mean([a == b for a, b in zip(predicted, labels, strict=True)])
        assert [score.name for score in outcome.scores] == ["accuracy"]
        assert f"{100 * max(map(labels.count, labels)) / 12:.1f}" in outcome.scores[0].note
    else:
        found = [row.item() for row in logits]
        assert [float(text) for text in outcome.outputs] == pytest.approx(found, abs=6e-4)
        expected = 100 * scipy.stats.pearsonr(labels, found).statistic
        assert [score.name for score in outcome.scores] == ["Pearson", "Spearman"]
        ranks = 100 * scipy.stats.spearmanr(labels, found).statistic
        assert outcome.scores[1].value == pytest.approx(ranks, abs=1e-3)
    score = outcome.scores[0]
    assert score.value == pytest.approx(expected, abs=1e-3)
    assert score.low <= score.value <= score.high
    assert list(outcome.items) == [score.name for score in outcome.scores]
    for each in outcome.scores:
        statistic = task.statistic(each.name, ClassificationEvaluation())
        assert score_of(outcome.items[each.name], statistic) == each.value
    assert len(outcome.samples) == 12
    assert set(outcome.samples[0].given) == {"Text", "Label"} | ({"Second text"} if pair else set())
    assert outcome.samples[3].made == outcome.outputs[3]
    assert [p.bytes[:4] for p in outcome.pictures] == [b"\x89PNG"]
    assert Outcome.model_validate_json(outcome.model_dump_json()) == outcome


def test_test_sets_are_scored_one_by_one_and_ranked_by_the_first(tokenizer):
    task = Classification(labelled(tests=("matched", "mismatched")), tokenizer, 50)
    model = build(task)
    outcome = task.evaluate(model, task.test, ClassificationEvaluation(), no_bar)
    assert [s.name for s in outcome.scores] == ["accuracy, matched", "accuracy, mismatched"]
    assert (len(task.test), len(outcome.outputs)) == (25, 25)
    assert [len(rows) for rows in outcome.items.values()] == [12, 13]
    for score in outcome.scores:
        statistic = task.statistic(score.name, ClassificationEvaluation())
        assert score_of(outcome.items[score.name], statistic) == score.value
    second = [e.label for e in task.corpus.test["mismatched"]]
    right = np.mean([a == b for a, b in zip(outcome.outputs[12:], second, strict=True)])
    assert outcome.scores[1].value == pytest.approx(100 * right)
    # Another part has no such sets.
    other = task.evaluate(model, task.validation, ClassificationEvaluation(), no_bar)
    assert [s.name for s in other.scores] == ["accuracy"]


def test_the_score_of_the_validation_part_is_followed(tokenizer):
    for classes, name in ((("up", "down"), "validation accuracy"), ((), "validation Pearson")):
        task = Classification(labelled(classes=classes), tokenizer, 50)
        model = build(task)
        outcome = task.evaluate(model, task.validation, ClassificationEvaluation(), no_bar)
        assert task.measure(model) == {name: pytest.approx(outcome.scores[0].value)}


# --- what it is to the rest -------------------------------------------------------------------


def test_the_loss_is_named_by_the_problem(tokenizer):
    assert Classification(labelled(), tokenizer, 50).loss_name == "nats per example"
    task = Classification(labelled(classes=()), tokenizer, 50)
    assert task.loss_name == "squared error per example"
    assert Classification.loss_name == "nats per example"
    assert not task.loss_has_perplexity and not Classification.loss_has_perplexity
    assert build(task).config.problem == "regression"


def test_the_model_knows_the_classes(tokenizer):
    task = Classification(labelled(), tokenizer, 50)
    made = build(task, hidden_dim=5, pooling="first", activation="relu")
    assert isinstance(made, SequenceClassifier)
    assert made.config.id2label == {0: "up", 1: "down"}
    assert (made.config.hidden_dim, made.config.pooling, made.config.activation) == (
        *(5, "first", "relu"),
    )
    assert made.config.vocab_size == tokenizer.vocab_size


def test_glue_tells_its_classes_before_any_data_is_read():
    file = load_recipe("tim-glue")
    assert file.recipe.seeds == [1, 2, 3, 4, 5]
    assert Classification.centre == "median"
    found = {
        name: Classification.nominal_config(file.system("tim-comp", name))
        for name in file.dataset_names
    }
    assert {name: config.num_labels for name, config in found.items()} == {
        "MNLI": 3,
        "QNLI": 2,
        "SST-2": 2,
        "STS-B": 1,
    }
    systems = found["MNLI"].systems()["encoder_self"]
    assert [spec["system"] for spec in systems].count("tim") == 9


# --- pretrained encoders ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained(tokenizer, tmp_path_factory):
    """The folder of a run of masked language modelling, as far as it matters here."""
    run = tmp_path_factory.mktemp("pretrained")
    tokenizer.save(run / "tokenizer")
    torch.manual_seed(5)
    sizes = {**SIZES, "layers": 2, "attention": {"encoder_self": "mae"}}
    sizes |= {"ffn_activation": "gelu", "positions": "learned", "max_positions": 60}
    MaskedLM(MaskedLMConfig(vocab_size=tokenizer.vocab_size, **sizes)).save_pretrained(
        run / "model"
    )
    return run


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe, checked as the commands do it."""
    rows = [f"{' '.join(WORDS[: 2 + i % 8])}\t{'ab'[i % 2]}" for i in range(60)]
    rows = [f"{i} {row}" for i, row in enumerate(rows)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")

    def write(model, **others):
        raw = {
            "task": "classification",
            "data": {"corpus": "files", "train": str(tmp_path / "train.tsv")},
            "model": model,
            "training": {"max_steps": 1},
            **others,
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw))
        return load_recipe(str(tmp_path / "recipe.yaml")).recipe

    return write


@pytest.mark.parametrize("inside", [False, True])
def test_sizes_vocabulary_and_weights_come_from_the_pretrained_model(recipe, pretrained, inside):
    checked = recipe({"pretrained": str(pretrained / "model" if inside else pretrained)})
    assert checked.model.layers == 2
    assert checked.model.attention == {"encoder_self": "mae"}
    assert (checked.model.ffn_activation, checked.model.max_positions) == ("gelu", 60)
    task = Classification.prepare(checked)
    saved = TextTokenizer.load(pretrained / "tokenizer")
    assert task.tokenizer.encode(["one two"]) == saved.encode(["one two"])
    assert Classification.nominal_config(checked).vocab_size == saved.vocab_size
    model = build_model(checked, task)
    weights = MaskedLM.from_pretrained(pretrained / "model").encoder.state_dict()
    for name, tensor in model.encoder.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_the_head_is_drawn_by_the_seed(recipe, pretrained):
    checked = recipe({"pretrained": str(pretrained)})
    task = Classification.prepare(checked)
    heads = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        heads.append(task.build_model(checked.model).hidden.weight)
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"layers": 3},
            r"model: layers is 3, expected 2: .* has that; leave model.layers out",
        ),
        ({"embed_dim": 32}, "embed_dim is 32, expected 16: the model in"),
        ({"norm": "pre"}, "norm is 'pre', expected 'post'"),
        ({"ffn_activation": "relu"}, "ffn_activation is 'relu', expected 'gelu'"),
        ({"attention": "standard"}, "attention is 'standard', expected .'encoder_self': 'mae'"),
    ],
)
def test_conflicts_with_the_pretrained_model_name_the_key(recipe, pretrained, model, message):
    with pytest.raises(RecipeError, match=message):
        recipe({"pretrained": str(pretrained), **model})


def test_two_vocabularies_are_one_too_many(recipe, pretrained):
    with pytest.raises(RecipeError, match=r"model.pretrained is .*, expected only one of them"):
        recipe({"pretrained": str(pretrained)}, tokenizer={"vocab_size": 300})


def test_systems_that_are_compared_share_a_vocabulary(recipe, pretrained):
    scratch = recipe({**SIZES})
    task = Classification.prepare(scratch)
    with pytest.raises(ValueError, match="expected a model with the vocabulary of this run"):
        build_model(recipe({"pretrained": str(pretrained)}), task)


def test_pretrained_beside_untrained_encoders_are_warned_about(recipe, pretrained):
    scratch, tuned = recipe({**SIZES}), recipe({"pretrained": str(pretrained)})
    mixed = Classification.compare_notes({"a": scratch, "b": tuned, "c": scratch})
    assert "b start from a pretrained encoder and a, c from random weights" in mixed["warning"]
    for same in (scratch, tuned):
        assert Classification.compare_notes({"a": same, "b": same}) == {}


def test_a_model_made_wider_cannot_take_the_weights(recipe, pretrained):
    checked = recipe({"pretrained": str(pretrained)})
    task = Classification.prepare(checked)
    wider = checked.model.model_copy(update={"ffn_dim": 20})
    with pytest.raises(ValueError, match=r"expected a model with the sizes .* and --match"):
        build_model(checked.model_copy(update={"model": wider}), task)


def test_a_pretrained_model_that_is_not_there(recipe, tmp_path):
    # The recipe can be read, as that of a run whose pretrained model is gone.
    checked = recipe({**SIZES, "pretrained": str(tmp_path / "gone")})
    with pytest.raises(ValueError, match=r"model.pretrained is .*gone, expected a folder"):
        Classification.prepare(checked)


def test_a_finished_run_does_without_the_pretrained_model(recipe, pretrained, tmp_path):
    Classification.prepare(recipe({"pretrained": str(pretrained)})).save(tmp_path / "run")
    gone = recipe({**SIZES, "pretrained": str(tmp_path / "gone")})
    task = Classification.prepare(gone, tmp_path / "run")
    assert task.tokenizer.vocab_size == TextTokenizer.load(pretrained / "tokenizer").vocab_size


def test_another_kind_of_model_is_no_pretrained_encoder(recipe, tokenizer, tmp_path):
    build(Classification(labelled(), tokenizer, 50)).save_pretrained(tmp_path / "other")
    with pytest.raises(RecipeError, match="'headwise-sequence-classifier', expected type 'head"):
        recipe({"pretrained": str(tmp_path / "other")})
