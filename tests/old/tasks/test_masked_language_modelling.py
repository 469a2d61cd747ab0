"""From text to packed, hidden blocks, and from a model to perplexity and samples."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset

from headwise.analysis.cost import count_parameters
from headwise.data.encoded import TokenItem
from headwise.data.sources import CorpusError
from headwise.models.masked_lm import MaskedLM
from headwise.recipes import load_recipe
from headwise.tasks.masked_language_modelling import (
    MaskedLanguageModelling,
    MaskedRecipe,
    show,
)
from headwise.tasks.significance import score_of

WORDS = [
    "the",
    "cat",
    "dog",
    "bird",
    "sees",
    "likes",
    "a",
    "red",
    "blue",
    "big",
    "small",
    "tree",
    "house",
    "and",
]
TRAINING = {"max_steps": 1}
MODEL = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 1}


def sentences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(4, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of three sentences, divided by blank lines."""
    made = tmp_path_factory.mktemp("text")
    for seed, (part, count) in enumerate({"train": 60, "validation": 12, "test": 45}.items()):
        lines = sentences(count, seed)
        documents = ["\n".join(lines[i : i + 3]) for i in range(0, count, 3)]
        (made / f"{part}.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return made


def recipe(folder: Path, **changes: object) -> MaskedRecipe:
    return MaskedRecipe(
        **{
            "data": {
                "corpus": "files",
                **{part: folder / f"{part}.txt" for part in ("train", "validation", "test")},
            },
            "tokenizer": {"vocab_size": 320},
            "block_length": 40,
            "model": MODEL,
            "training": TRAINING,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def task(folder: Path) -> MaskedLanguageModelling:
    return MaskedLanguageModelling.prepare(recipe(folder))


@pytest.fixture(scope="module")
def model(task: MaskedLanguageModelling, folder: Path) -> MaskedLM:
    torch.manual_seed(0)
    made = task.build_model(recipe(folder).model)
    assert isinstance(made, MaskedLM)
    return made.eval()


def evaluate(task, model, settings, part=None):
    done = []
    outcome = task.evaluate(model, part or task.test, settings.evaluation, done.append)
    assert sum(done) == len(part or task.test)
    return outcome


# --- data -------------------------------------------------------------------------------------


def test_blocks_hold_the_text_with_separators_between_documents(task, folder) -> None:
    tokenizer, text = task.tokenizer, []
    for index in range(len(task.test)):
        block = task.test.text(index)
        assert block[0] == tokenizer.bos_token_id
        assert tokenizer.eos_token_id not in (block[1], block[-2])  # no separator at either end
        assert block[-1] == tokenizer.eos_token_id
        assert len(block) == task.test.lengths[index] <= 40
        text += tokenizer.decode([block])[0].split("\n")
    lines = (folder / "test.txt").read_text().splitlines()
    assert [line for line in text if line] == [line for line in lines if line]
    assert "" in text  # some block goes on from one document to the next
    positions = [i for i, line in enumerate(text) if not line]
    for i in positions:
        between = f"{text[i - 1]}\n\n{text[i + 1]}"
        assert between in (folder / "test.txt").read_text()


def test_parts_of_the_same_text_are_masked_differently(folder) -> None:
    data = {
        "corpus": "files",
        **dict.fromkeys(("train", "validation", "test"), folder / "test.txt"),
    }
    task = MaskedLanguageModelling.prepare(recipe(folder, data=data))
    parts = [
        [part[i]["labels"] for i in range(3)] for part in (task.train, task.validation, task.test)
    ]
    assert parts[0] != parts[1] != parts[2] != parts[0]


def test_words_can_be_the_vocabulary(folder) -> None:
    settings = recipe(folder, tokenizer={"type": "word", "vocab_size": 12, "min_frequency": 1})
    task = MaskedLanguageModelling.prepare(settings)
    unknown = task.tokenizer.unk_token_id
    labels = {label for i in range(len(task.train)) for label in task.train[i]["labels"]}
    texts = {token for i in range(len(task.train)) for token in task.train.text(i)}
    assert unknown in texts and unknown not in labels
    words = (folder / "test.txt").read_text().split()
    known = set(task.tokenizer.tokenizer.get_vocab())
    share = sum(word not in known for word in words) / len(words)
    expected = f"12 words; {100 * share:.1f}% of the test part's are <unk>"
    assert task.notes["vocabulary"] == expected and 0.2 < share < 0.8
    model = task.build_model(settings.model)
    outcome = evaluate(task, model.eval(), settings)
    assert 3 < outcome.scores[0].value < 40


def words_recipe(folder, tmp_path, part: str, lines: list[str]) -> MaskedRecipe:
    """A vocabulary of words, and a part of its own."""
    (tmp_path / "own.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = recipe(folder, tokenizer={"type": "word", "vocab_size": 30})
    data = settings.data.model_copy(update={part: [tmp_path / "own.txt"]})
    return settings.model_copy(update={"data": data, "block_length": 8})


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_part_without_a_word_to_hide_is_an_error(part, folder, tmp_path) -> None:
    settings = words_recipe(folder, tmp_path, part, ["le chat", "un chien"])
    message = rf"text files train.txt: the {part} part has no word that could be hidden: all"
    with pytest.raises(CorpusError, match=message):
        MaskedLanguageModelling.prepare(settings)


def test_sequences_without_a_word_to_hide_are_left_out(folder, tmp_path) -> None:
    """Else a resample of the test part may have nothing to predict, and no perplexity."""
    lines = ["le chat voit un oiseau", "the cat sees a dog", "un chien aime un chat"]
    settings = words_recipe(folder, tmp_path, "test", lines)
    task = MaskedLanguageModelling.prepare(settings)
    assert len(task.test) == 1 and task.tokenizer.decode([task.test.text(0)]) == [lines[1]]
    outcome = evaluate(task, task.build_model(settings.model).eval(), settings)
    assert math.isfinite(outcome.scores[0].low) and outcome.items["perplexity"][0][1] > 0
    for name in ("perplexity", "accuracy"):
        assert math.isnan(score_of(np.zeros((2, 3)), task.statistic(name, settings.evaluation)))


# --- scores -----------------------------------------------------------------------------------


def naive_item(task, model, item: TokenItem) -> list[float]:
    """Negative log-likelihood, tokens and right ones of a sequence, token by token."""
    logits = model(torch.tensor([item["input_ids"]])).logits[0].detach().double()
    nll = count = right = 0.0
    for x, label in zip(logits, item["labels"], strict=True):
        if label != -100:
            nll -= float(x[label] - torch.log(torch.exp(x).sum()))
            count += 1
            right += int(x.argmax()) == label
    return [nll, count, right]


@pytest.mark.parametrize("draws", [1, 3])
def test_scores_are_those_of_the_equation(task, model, folder, draws) -> None:
    settings = recipe(folder, evaluation={"draws": draws})
    outcome = evaluate(task, model, settings)
    rows = np.zeros((len(task.test), 3))
    for index in range(len(task.test)):
        for draw in range(draws):
            rows[index] += naive_item(task, model, task.test.draw(index, draw))
    assert list(outcome.items) == ["perplexity", "accuracy"]
    for score in outcome.scores:
        np.testing.assert_allclose(outcome.items[score.name], rows, rtol=1e-4)
        statistic = task.statistic(score.name, settings.evaluation)
        assert score_of(outcome.items[score.name], statistic) == score.value
    nll, count, right = rows.sum(0)
    perplexity, accuracy = outcome.scores
    assert perplexity.value == pytest.approx(math.exp(nll / count), rel=1e-4)
    assert accuracy.value == pytest.approx(100 * right / count)
    assert perplexity.low < perplexity.value < perplexity.high
    assert not perplexity.higher_is_better and accuracy.higher_is_better
    assert perplexity.is_perplexity and not accuracy.is_perplexity
    assert f"{int(count):,} hidden tokens in {len(task.test)} sequences" in perplexity.note


def test_a_model_that_knows_nothing_has_the_vocabulary_as_perplexity(task, model, folder) -> None:
    flat = MaskedLM(model.config).eval()
    torch.nn.init.zeros_(flat.lm_head.weight)
    outcome = evaluate(task, flat, recipe(folder))
    assert outcome.scores[0].value == pytest.approx(task.tokenizer.vocab_size, rel=1e-6)


def test_a_model_that_diverged_is_scored_all_the_same(task, model, folder) -> None:
    broken = MaskedLM(model.config).eval()
    torch.nn.init.constant_(broken.lm_head.bias, math.nan)
    outcome = evaluate(task, broken, recipe(folder))
    assert math.isnan(outcome.scores[0].value)
    statistic = task.statistic("perplexity", recipe(folder).evaluation)
    assert math.isfinite(score_of([[1e9, 1, 0]], statistic))


# --- samples ----------------------------------------------------------------------------------


def test_samples_show_what_was_read_what_is_true_and_what_was_made(task, model, folder) -> None:
    outcome = evaluate(task, model, recipe(folder))
    lines = (folder / "test.txt").read_text().splitlines()
    assert 3 <= len(outcome.samples) <= 12
    for sample in outcome.samples:
        true = sample.given["Text"]
        assert any(line.startswith(true.replace("[", "").replace("]", "")) for line in lines)
        assert true.count("[") == sample.made.count("[") == sample.given["Masked"].count("[") > 0
    assert any("[<mask>]" in sample.given["Masked"] for sample in outcome.samples)


def test_a_sample_by_hand(folder) -> None:
    settings = recipe(folder, tokenizer={"type": "word", "vocab_size": 50, "min_frequency": 1})
    tokenizer = MaskedLanguageModelling.prepare(settings).tokenizer
    line = "the cat sees a red bird and a dog"
    ids = [1, *tokenizer.encode(["big cat", line])[0], *tokenizer.encode([line])[0]]
    labels = [-100] * len(ids)
    first = 1 + len(tokenizer.encode(["big cat"])[0])
    read = list(ids)
    cat, red, dog = first + 1, first + 4, first + 8
    (house, tree, bird), mask = tokenizer.encode(["house tree bird"], eos=False)[0], 4
    for place, seen in ((cat, mask), (red, house), (dog, ids[dog])):
        labels[place], read[place] = ids[place], seen
    labels[2], read[2] = ids[2], mask  # in a line that is too short to show
    sample = show(tokenizer, {"input_ids": read, "labels": labels}, [bird, tree, mask, ids[dog]])
    assert sample is not None
    assert sample.given == {
        "Masked": "the [<mask>] sees a [house] bird and a [dog]",
        "Text": "the [cat] sees a [red] bird and a [dog]",
    }
    assert sample.made == "the [tree] sees a [<mask>] bird and a [dog]"
    nothing = {"input_ids": ids, "labels": [-100] * len(ids)}
    assert show(tokenizer, nothing, []) is None
    unknown = {"input_ids": [1, tokenizer.unk_token_id, *ids[-9:]], "labels": [-100] * 11}
    unknown["labels"][-2] = ids[-2]
    sample = show(tokenizer, unknown, [ids[-2]])
    assert sample is not None and "the cat" not in sample.given["Text"]
    assert sample.given["Text"].startswith("<unk> cat sees a red")


# --- recipes ----------------------------------------------------------------------------------

CARD = """---
configs:
- config_name: wikitext-103-raw-v1
  data_files:
  - {split: test, path: wikitext-103-raw-v1/test-*}
  - {split: train, path: wikitext-103-raw-v1/train-*}
  - {split: validation, path: wikitext-103-raw-v1/validation-*}
---
"""


def article(title: str, seed: int) -> list[str]:
    """Rows as WikiText has them: one each for line ends, headings and paragraphs."""
    one, two, three = (line + " . \n" for line in sentences(3, seed))
    return ["", f" = {title} = \n", "", f" {one}", f" {two}", "", " = = History = = \n", "", three]


def test_wikitext_as_the_hub_has_it(tmp_path) -> None:
    (tmp_path / "wikitext-103-raw-v1").mkdir()
    (tmp_path / "README.md").write_text(CARD, encoding="utf-8")
    for seed, part in enumerate(("train", "validation", "test")):
        rows = [row for i in range(4) for row in article(f"Cat {i}", 9 * seed + i)]
        Dataset.from_dict({"text": rows}).to_parquet(
            tmp_path / "wikitext-103-raw-v1" / f"{part}-00000-of-00001.parquet"
        )
    file = load_recipe("moa-wikitext103-mlm", [f"data.name={tmp_path}", "tokenizer.vocab_size=300"])
    assert len(file.system_names) == 6
    found = file.system("moa-8k8e128d")
    assert isinstance(found, MaskedRecipe)
    task = MaskedLanguageModelling.prepare(found)
    assert len(task.corpus.train) == 4
    block = task.train.text(0)
    lines = task.tokenizer.decode([block])[0].split("\n")
    assert lines[0] == "= Cat 0 =" and lines[3] == "= = History = ="
    assert lines[5:7] == ["", "= Cat 1 ="]  # the separator between two articles


# MoA's table 2, whose models have learned positions; TIM's, rounded to ten millions.
PRINTED = {
    "moa-wikitext103-mlm": {
        "standard": 51.34,
        "moa-8k8e128d": 52.45,
        "moa-8k8e256d": 61.89,
        "moa-8k16e256d": 78.75,
        "moa-8k32e256d": 112.47,
        "moa-8k64e256d": 179.91,
    },
    "tim-bert": {
        "standard": 110,
        "standard-130m": 130,
        "tim-all-layers": 110,
        "tim-nocomp": 130,
        "tim-comp": 130,
    },
}


@pytest.mark.parametrize(
    ("name", "tolerance"), [("moa-wikitext103-mlm", 0.004), ("tim-bert", 0.035)]
)
def test_sizes_are_those_of_the_papers(name, tolerance) -> None:
    file = load_recipe(name)
    assert set(file.system_names) == set(PRINTED[name])
    for system, millions in PRINTED[name].items():
        with torch.device("meta"):
            model = MaskedLM(MaskedLanguageModelling.nominal_config(file.system(system)))
        assert count_parameters(model) / 1e6 == pytest.approx(millions, rel=tolerance)
