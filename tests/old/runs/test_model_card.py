"""The folder of a run's model in other tools: it stands alone, and gives what headwise gives."""

import os
import shutil
import stat
import subprocess
import sys
import zlib

import numerals
import pytest
import tiny_tasks
import torch
import yaml
from huggingface_hub import ModelCard
from rich.console import Console
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    pipeline,
)

import headwise as hw
from headwise.data.tokenizers.tokenization import TOKENIZER, TextTokenizer, TranslationTokenizer
from headwise.models.base import model_class
from headwise.recipes import load_recipe
from headwise.recipes.catalogue import TASKS
from headwise.runs.evaluating import read_outcome
from headwise.runs.one_run import train_system
from headwise.runs.preparing import claim_folder, prepare_task
from headwise.runs.reading import open_run, read_result
from headwise.tasks.generating import GenerationSettings, generate_text
from headwise.tasks.translating import translate

QUIET = Console(quiet=True)
TEXT_TASKS = [task for task in TASKS if task not in ("images", "speech-enhancement")]


def train(task, folder, system="mae", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    file = load_recipe(str(tiny_tasks.write_recipe(task, folder, **changes)))
    recipe, run = file.system(system), folder / "run"
    claim_folder(run, recipe)
    train_system(recipe, system, run, prepare_task(recipe, run, QUIET), QUIET)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of each task, trained when it is asked for."""

    class Runs(dict):
        def __missing__(self, task):
            self[task] = train(task, tmp_path_factory.mktemp(task))
            return self[task]

    return Runs()


@pytest.fixture
def alone(runs, tmp_path):
    """The folder of a model by itself, without the run around it."""

    def moved(task):
        return shutil.copytree(runs[task] / "model", tmp_path / task)

    return moved


@pytest.mark.parametrize("task", TASKS)
def test_the_folder_names_its_model_and_all_may_read_it(runs, task):
    folder = runs[task] / "model"
    config = AutoConfig.from_pretrained(folder)
    assert type(config).model_type == config.model_type
    assert isinstance(model_class(config).from_pretrained(folder), hw.models.base.HeadwiseModel)
    mask = os.umask(0o077)
    os.umask(mask)
    for path in folder.rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path


@pytest.mark.parametrize("task", ["language-modelling", "classification"])
def test_the_folder_of_an_average_is_as_any_other(runs, task, tmp_path):
    run = train(task, tmp_path, training={"final_model": "average", "average_last": 2})
    names = [sorted(path.name for path in (each / "model").iterdir()) for each in (run, runs[task])]
    assert names[0] == names[1]


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_the_folder_has_a_tokenizer(alone, runs, task):
    tokenizer = AutoTokenizer.from_pretrained(alone(task))
    config = AutoConfig.from_pretrained(runs[task] / "model")
    assert len(tokenizer) == config.vocab_size
    assert tokenizer.eos_token_id == config.eos_token_id


def test_importing_headwise_is_enough(runs):
    folder = str(runs["language-modelling"] / "model")
    code = (
        "import headwise\nfrom transformers import AutoTokenizer\n"
        f"made = AutoTokenizer.from_pretrained({folder!r})\n"
        "print(type(made).__name__, made.decode([2, 2], skip_special_tokens=True).count(chr(10)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["LineTokenizer", "2"]


def test_a_pipeline_writes_what_headwise_writes(alone, runs):
    run = runs["language-modelling"]
    recipe, model = open_run(run)
    tokenizer = TextTokenizer.load(run / TOKENIZER)
    write = pipeline("text-generation", model=str(alone("language-modelling")))
    greedy = GenerationSettings(max_new_tokens=8, temperature=0)
    for prompt in ("one two three", "four\nfive six", " two"):
        (continued,) = generate_text(model, tokenizer, [prompt], greedy)
        (found,) = write(prompt, do_sample=False, max_new_tokens=8)
        assert found["generated_text"].removesuffix("\n") == prompt + continued
    # Without arguments, the settings are those of the recipe.
    settings, prompt = recipe.evaluation.generation, "one two"
    (continued,) = generate_text(model, tokenizer, [prompt], settings)
    torch.manual_seed(zlib.crc32(f"{settings.seed} {prompt}".encode()))
    assert write(prompt)[0]["generated_text"].removesuffix("\n") == prompt + continued


def test_generation_may_end_with_its_line_and_a_given_length_wins(runs, tmp_path):
    changed = {"samples": 2, "generation": {"max_new_tokens": 4, "lines": 1, "temperature": 0}}
    run = train("language-modelling", tmp_path, "standard", evaluation=changed)
    how = GenerationConfig.from_pretrained(run / "model")
    assert (how.eos_token_id, how.do_sample, how.max_new_tokens) == (2, False, 4)
    several = GenerationConfig.from_pretrained(runs["language-modelling"] / "model")
    assert several.eos_token_id is None and several.top_p == 0.95
    model = hw.CausalLM.from_pretrained(runs["language-modelling"] / "model")
    ids = torch.tensor([[2, 9, 8]])
    assert model.generate(ids).shape[1] == 3 + 4
    assert model.generate(ids, max_length=9).shape[1] == 9
    assert model.generate(ids, max_new_tokens=5).shape[1] == 3 + 5


def test_a_pipeline_fills_masks_as_the_model_does(alone, runs):
    run = runs["masked-language-modelling"]
    _, model = open_run(run)
    tokenizer = TextTokenizer.load(run / TOKENIZER)
    fill = pipeline("fill-mask", model=str(alone("masked-language-modelling")))
    word = next(w for w in numerals.ENGLISH if len(tokenizer.encode([w], eos=False)[0]) == 1)
    line = f"one two {word} four"
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode([line])[0]]])
    (token,) = tokenizer.encode([word], eos=False)[0]
    at = ids[0].tolist().index(token)
    ids[0, at] = tokenizer.mask_token_id
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0, at].softmax(-1)
    text = line.replace(word, "<mask>")
    found = fill(text, top_k=3)
    assert [each["token"] for each in found] == expected.topk(3).indices.tolist()
    scores = torch.tensor([each["score"] for each in found])
    torch.testing.assert_close(scores, expected.topk(3).values)
    (right,) = fill(text, targets=[f"Ġ{word}"])
    assert (right["token_str"], right["sequence"]) == (word, line)


@pytest.mark.parametrize("task", ["classification", "probing"])
def test_a_pipeline_classifies_as_the_evaluation_does(alone, runs, task):
    run = runs[task]
    recipe, _ = open_run(run)
    part = prepare_task(recipe, run, QUIET).test
    classify = pipeline("text-classification", model=str(alone(task)))
    found = classify([example.text for example in part.examples], truncation=True)
    assert [each["label"] for each in found] == read_outcome(run).outputs


@pytest.mark.parametrize("joint", [True, False])
def test_generate_translates_as_headwise_does(runs, tmp_path, joint):
    if joint:
        run = runs["translation"]
    else:
        sizes = {"joint": False, "vocab_size": 280, "target_vocab_size": 275}
        model = {"encoder_layers": 1, "decoder_layers": 1, "positions": "learned"}
        run = train("translation", tmp_path, tokenizer=sizes, model=model | {"max_positions": 50})
    folder = run / "model"
    recipe, ours = open_run(run)
    source = target = AutoTokenizer.from_pretrained(folder)
    if not joint:
        assert source.model_max_length == 50
        target = AutoTokenizer.from_pretrained(folder, subfolder="target")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    texts = ["one two three", "four five"]
    free = recipe.evaluation.model_copy(update={"max_length_extra": 255, "max_length_ratio": 0.0})
    expected = translate(ours, TranslationTokenizer.load(run / TOKENIZER), texts, free)
    batch = source(texts, padding=True, return_tensors="pt")
    made = model.generate(**batch)
    assert target.batch_decode(made, skip_special_tokens=True) == expected
    assert model.generation_config.num_beams == recipe.evaluation.beam_size


@pytest.mark.parametrize("task", TASKS)
def test_the_card_tells_what_the_model_is(runs, task):
    run = runs[task]
    recipe, _ = open_run(run)
    result = read_result(run / "result.json")
    card = ModelCard.load(run / "model" / "README.md")
    assert card.data.library_name == "headwise"
    assert {"headwise", task, "mae"} == set(card.data.tags)
    values = {each.metric_name: each.metric_value for each in card.data.eval_results}
    for score in result.scores:
        assert values[score.name] == pytest.approx(score.value, rel=0.01, nan_ok=True)
        assert f"| test | {score.name} |" in card.text
    assert "import headwise" in card.text and f"{result.parameters:,}" in card.text
    text = card.text.partition("```yaml\n")[2].partition("```")[0]
    assert yaml.safe_load(text)["training"]["max_steps"] == recipe.training.max_steps
