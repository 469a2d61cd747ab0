"""The contract of every task, through the command line: what is trained, told, kept and shown.

Three systems are trained on each task: `standard` for as many steps as show that it learns, and
two for a few steps. What the commands say of them is compared with what transformers, sacrebleu,
scikit-learn or a plain loop make of the model in the folder and of the files of the data.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import transformers
from sklearn.metrics import accuracy_score
from support import run_folders, tiny_tasks
from support.pages import Page, read_page
from support.tiny_tasks import answer, lines, pairs, read_json, write_lines
from torch.nn import functional

SYSTEMS = ("standard", "mae", "moa")
LEARNS = {"max_steps": 40, "evaluate_every": 20, "learning_rate": 0.01}
PARTS = {"train": 110, "validation": 20, "test": 21}  # the number of texts of each
TEXT = "one two three"
MODELS = {
    "translation": transformers.AutoModelForSeq2SeqLM,
    "language-modelling": transformers.AutoModelForCausalLM,
    "masked-language-modelling": transformers.AutoModelForMaskedLM,
    "classification": transformers.AutoModelForSequenceClassification,
    "probing": transformers.AutoModelForSequenceClassification,
}


class World:
    """The data of a task, whose parts are known, and a run of each system."""

    def __init__(self, task: str, folder: Path) -> None:
        self.task, self.folder = task, folder
        changes: dict[str, Any] = {}
        if files := self._write_parts():
            changes["data"] = {"files": files, **self.keys}
        if task == "translation":
            changes["tokenizer"] = {"vocab_size": 360}
        if task == "language-modelling":  # windows without context, and the likeliest tokens
            written = {"max_new_tokens": 4, "temperature": 0}
            changes["evaluation"] = {"context": 0, **written}
        self.recipe = tiny_tasks.write_recipe(task, folder, **changes)
        self.trained = {system: self.train(system) for system in SYSTEMS}

    def train(self, system: str) -> dict[str, Any]:
        command = ("train", self.recipe, "--system", system, "--output", self.folder / system)
        learns = LEARNS if system == "standard" else {}
        changes = (("--set", f"training.{key}={value}") for key, value in learns.items())
        run_folders.headwise(*command, *chain.from_iterable(changes))
        return read_json((self.folder / system / "result.json").read_text(encoding="utf-8"))

    def _write_parts(self) -> dict[str, Any]:
        """Writes a file, or two, for each part, if the task reads texts from files."""
        files: dict[str, Any] = {}
        for part, texts in self.texts.items():
            if self.task == "translation":
                sides = zip(("source", "target"), zip(*texts, strict=True), strict=True)
                files[part] = {
                    side: write_lines(self.folder / f"{part}.{side}", list(column))
                    for side, column in sides
                }
            elif self.task == "classification":
                rows = ["text\tlabel", *map("\t".join, texts)]
                files[part] = write_lines(self.folder / f"{part}.tsv", rows)
            elif self.task.endswith("language-modelling"):
                files[part] = write_lines(self.folder / f"{part}.txt", texts)
        return files

    @property
    def keys(self) -> dict[str, Any]:
        """What the data have beside their files."""
        lengths = {"language-modelling": 16, "masked-language-modelling": 32}
        if self.task == "classification":
            return {"max_length": 64}
        return {"block_length": lengths[self.task]} if self.task in lengths else {}

    @cached_property
    def texts(self) -> dict[str, list[Any]]:
        """What stands in each part: texts, or pairs of text and translation or label."""
        if self.task == "translation":
            drawn: list[Any] = pairs(sum(PARTS.values()))
        elif self.task == "probing":  # the file that tiny_tasks writes names the parts
            drawn = [(line, str(len(line.split()) // 4)) for line in lines(120)]
            return {"validation": drawn[80:100], "test": drawn[100:]}
        else:
            drawn = lines(sum(PARTS.values()))
            if self.task == "classification":
                drawn = [(line, "long" if len(line.split()) > 6 else "short") for line in drawn]
        rest = iter(drawn)
        return {part: [next(rest) for _ in range(number)] for part, number in PARTS.items()}

    def open(self, system: str) -> tuple[Any, Any]:
        """The model and the tokenizer of a run, as transformers opens them."""
        folder = self.folder / system / "model"
        model = MODELS[self.task].from_pretrained(folder)
        return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)

    def predict(self, system: str, texts: list[str]) -> list[str]:
        options = [part for text in texts for part in ("--text", text)]
        return answer("predict", self.folder / system, *options)["predictions"]


@pytest.fixture(scope="module", params=tiny_tasks.RECIPES)
def world(request, tmp_path_factory) -> World:
    return World(request.param, tmp_path_factory.mktemp(request.param))


def only(*tasks: str) -> Callable:
    """The test is of these tasks."""
    return pytest.mark.parametrize("world", tasks, indirect=True, scope="module")


def assert_scores(scores: list[dict], expected: list[dict]) -> None:
    """The same names, values and ends of intervals."""
    for score, other in zip(scores, expected, strict=True):
        assert score["name"] == other["name"]
        for key in ("value", "low", "high"):
            assert score[key] == pytest.approx(other[key], rel=1e-6)


# --- training -----------------------------------------------------------------------------------


def test_the_loss_of_40_steps_falls(world):
    result = run_folders.result(world.folder / "standard")
    losses = [record["loss"] for record in result["history"] if "loss" in record]
    assert len(losses) == result["steps"] == 40
    assert np.mean(losses[-10:]) < 0.95 * np.mean(losses[:3])
    assert [record["step"] for record in result["history"] if "eval_loss" in record] == [20, 40]


@only("translation", "language-modelling", "classification", "probing")
def test_the_validation_loss_is_that_of_a_plain_loop(world):
    """No label smoothing, no auxiliary loss, every label once; a decoder reads what was before."""
    for system in SYSTEMS:
        losses = torch.cat(list(plain_losses(world, system, "validation")))
        loss = world.trained[system]["validation_loss"]
        assert loss == pytest.approx(losses.mean().item(), rel=1e-4)


def plain_losses(world: World, system: str, part: str) -> Iterator[torch.Tensor]:
    """The nats of each label of a part, text by text."""
    model, tokenizer = world.open(system)
    for inputs, labels in plain_inputs(world, model, tokenizer, part):
        with torch.no_grad():
            logits = model(**inputs).logits.flatten(0, -2)
        yield functional.cross_entropy(logits, labels, reduction="none").double()


def plain_inputs(world: World, model: Any, tokenizer: Any, part: str) -> Iterator[tuple]:
    """What a model reads and the labels, for each text of a part."""
    if world.task == "language-modelling":
        (stream,) = tokenizer(as_one_text(world, part), return_tensors="pt").input_ids
        for begin in range(0, len(stream) - 1, 16):  # the recipe's block_length
            block = stream[begin : begin + 17]
            yield {"input_ids": block[None, :-1]}, block[1:]
        return
    for text, other in world.texts[part]:
        inputs = dict(tokenizer(text, return_tensors="pt"))
        if world.task == "translation":
            (labels,) = tokenizer(text_target=other, return_tensors="pt").input_ids
            start = torch.tensor([model.config.decoder_start_token_id])
            inputs["decoder_input_ids"] = torch.cat([start, labels[:-1]])[None]
        else:
            labels = torch.tensor([model.config.label2id[other]])
        yield inputs, labels


def as_one_text(world: World, part: str) -> str:
    return "".join(f"{line}\n" for line in world.texts[part])


# --- scores -------------------------------------------------------------------------------------


def test_evaluation_gives_the_scores_of_the_run_again(world):
    for system in ("standard", "moa"):
        found = answer("evaluate", world.folder / system)
        assert_scores(found["scores"], world.trained[system]["scores"])
        assert found["split"] == "test"
        rows = run_folders.rows(world.folder / system)
        assert found["items"] == len(rows)
        if world.task in ("translation", "classification", "probing"):
            assert found["items"] == len(world.texts["test"])
    other = answer("evaluate", world.folder / "standard", "--split", "validation")
    assert other["split"] == "validation"
    assert other["scores"][0]["value"] != world.trained["standard"]["scores"][0]["value"]


@only("translation")
def test_scores_of_translations_are_those_of_sacrebleu(world):
    sources, references = map(list, zip(*world.texts["test"], strict=True))
    for system in SYSTEMS:
        outputs = world.predict(system, sources)
        bleu, chrf = world.trained[system]["scores"]
        assert bleu["value"] == pytest.approx(sacrebleu.corpus_bleu(outputs, [references]).score)
        assert chrf["value"] == pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score)
    assert bleu["value"] != world.trained["standard"]["scores"][0]["value"] > 0


@only("language-modelling")
def test_perplexity_is_that_of_a_plain_loop(world):
    text = as_one_text(world, "test")
    units = {"word perplexity": len(text.split()) + text.count("\n")}
    for system in SYSTEMS:
        losses = torch.cat(list(plain_losses(world, system, "test")))
        units["token perplexity"] = len(losses)
        expected = {name: math.exp(losses.sum() / number) for name, number in units.items()}
        expected["bits per byte"] = losses.sum().item() / math.log(2) / len(text.encode())
        found = {score["name"]: score["value"] for score in world.trained[system]["scores"]}
        assert found == pytest.approx(expected, rel=1e-4)


@only("classification", "probing")
def test_accuracy_is_that_of_scikit_learn(world):
    texts, labels = map(list, zip(*world.texts["test"], strict=True))
    for system in SYSTEMS:
        predicted = [line.split("\t")[0] for line in world.predict(system, texts)]
        (score,) = world.trained[system]["scores"]
        assert score["value"] == pytest.approx(100 * accuracy_score(labels, predicted))


# --- prediction ---------------------------------------------------------------------------------


@only("translation")
def test_translations_are_those_of_generate(world):
    """With the recipe's beams, length penalty and max_length_extra; the first two are saved."""
    texts = [text for text, _ in world.texts["test"][:4]]
    search = {"num_beams": 2, "length_penalty": 3.0}
    for system in SYSTEMS:
        model, tokenizer = world.open(system)
        assert search.items() <= model.generation_config.to_dict().items()
        for text, translation in zip(texts, world.predict(system, texts), strict=True):
            inputs = tokenizer(text, return_tensors="pt")
            longest = inputs.input_ids.size(1) + 3
            (ids,) = model.generate(**inputs, **search, max_length=longest + 1)
            assert translation == tokenizer.decode(ids, skip_special_tokens=True).strip()


@only("language-modelling")
def test_continuations_are_those_of_the_pipeline(world):
    for system in SYSTEMS:
        write = transformers.pipeline("text-generation", model=str(world.folder / system / "model"))
        (found,) = world.predict(system, [TEXT])
        (expected,) = write(TEXT)
        assert expected["generated_text"].startswith(TEXT)
        assert found == expected["generated_text"].removesuffix("\n")


@only("masked-language-modelling")
def test_filled_masks_are_those_of_the_pipeline(world):
    text = "one <mask> three"
    for system in SYSTEMS:
        fill = transformers.pipeline("fill-mask", model=str(world.folder / system / "model"))
        (found,) = world.predict(system, [text])
        assert found == fill(text)[0]["sequence"]


@only("classification", "probing")
def test_classes_and_probabilities_are_those_of_the_pipeline(world):
    texts = [text for text, _ in world.texts["test"][:4]]
    for system in SYSTEMS:
        model = str(world.folder / system / "model")
        classify = transformers.pipeline("text-classification", model=model)
        for text, line in zip(texts, world.predict(system, texts), strict=True):
            (expected,) = classify(text)
            label, probability = line.split("\t")
            assert label == expected["label"]
            assert float(probability) == pytest.approx(expected["score"], abs=1e-4)


# --- looking inside -----------------------------------------------------------------------------


def test_an_analysis_is_whole_and_finite(world):
    found = answer("analyse", world.folder / "moa", "--ablation-level", "none")
    page = Page(Path(found["page"]))  # which is read to its end
    words = " ".join([page.text, *found["findings"]["moa"]]).lower().split()
    assert found["findings"]["moa"] and not {"nan", "inf", "-inf"} & set(words)
    if world.task != "language-modelling":  # whose items are passages of several blocks
        items = len(run_folders.rows(world.folder / "moa"))
        assert found["data"]["moa"].startswith(f"test, {items:,} ")


def test_the_explorer_shows_what_every_stack_decides(world, tmp_path):
    options = ["--text", TEXT] if world.task in MODELS else []
    options += ["--target", "un deux"] if world.task == "translation" else []
    for system in ("mae", "moa"):
        output = tmp_path / f"{system}.html"
        page = answer("explore", world.folder / system, *options, "--output", output)["page"]
        shown = read_page(Path(page))
        assert len(shown.decisions) == (3 if world.task == "translation" else 1)
        for decision in shown.decisions:
            assert decision.sum(-1) == pytest.approx(1, abs=4 / 255)
