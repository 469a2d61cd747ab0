"""Language modelling: blocks, windows, perplexity, and a run of every system."""

import io
import math

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from transformers import set_seed

from headwise.data.running.corpus import TextCorpus
from headwise.data.running.dataset import TextBlocks, collate_blocks
from headwise.data.tokenizers.settings import TextTokenizerSettings
from headwise.data.tokenizers.tokenization import TextTokenizer
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.evaluating import validation_loss
from headwise.recipes import load_recipe, shipped_recipes
from headwise.tasks.generating import GenerationSettings, generate_text
from headwise.tasks.language_modelling import (
    LanguageEvaluation,
    LanguageModelling,
    LanguageModellingRecipe,
    token_losses,
)
from headwise.tasks.significance import score_of
from headwise.tasks.task import Wish
from headwise.training.batching import BatchLoader, TokenBudgetSampler
from headwise.training.run import run_training

DOCUMENTS = [
    ["= Files =", "", "open the file and close the file", "open the window", ""],
    ["= Windows =", "", "close it and open the file , then close the window"],
] * 3
WORDS = TextTokenizer.train(
    [line for document in DOCUMENTS for line in document],
    TextTokenizerSettings(type="word", min_frequency=1),
)
BPE = TextTokenizer.train(
    [line for document in DOCUMENTS for line in document], TextTokenizerSettings(vocab_size=280)
)
MOA = {"system": "moa", "size": "2K4E4D"}
PLANS = {
    "standard": "standard",
    "mae": {"system": "mae", "gate_window": 5},
    "weighted": "weighted",
    "agreement": "agreement",
    "tim": {"system": "tim", "layers": [1]},
    "moa": MOA,
}


def build(tokenizer=WORDS, plan="standard", **options):
    set_seed(2)
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 2, "dropout": 0.0}
    config = CausalLMConfig(vocab_size=tokenizer.vocab_size, attention=plan, **{**sizes, **options})
    return CausalLM(config).eval()


def task(tokenizer=WORDS, block_length=8):
    texts = TextCorpus(DOCUMENTS, DOCUMENTS[:2], DOCUMENTS[:3], {"corpus": "toy"})
    return LanguageModelling(texts, tokenizer, block_length)


# --- blocks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_padding_changes_no_loss(plan):
    model = build(plan=plan)
    items = [torch.tensor([2, 5, 6, 7, 8, 9]), torch.tensor([6, 7, 8])]
    together = model(**collate_blocks(items, 0), num_items_in_batch=1).token_loss
    apart = sum(model(**collate_blocks([i], 0), num_items_in_batch=1).token_loss for i in items)
    torch.testing.assert_close(together, apart)


# --- windows ----------------------------------------------------------------------------------


def naive_token_losses(model, stream, block_length, context):
    """Token by token, with as much before it as its window shows."""
    losses = []
    for target in range(1, len(stream)):
        stride = block_length - context
        begin = (target - 1) // stride * stride  # of the stretch that this window scores
        inputs = stream[max(0, begin - context) : target]
        assert len(inputs) > min(context, target - 1) and len(inputs) <= block_length
        log_probs = model(input_ids=inputs[None].long()).logits[0, -1].log_softmax(-1)
        losses.append(-log_probs[int(stream[target])])
    return torch.stack(losses)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize(("length", "context"), [(8, 0), (8, 6), (7, 4), (5, 4)])
def test_every_token_is_scored_once_with_its_context(plan, length, context):
    model = build(plan=plan).double()
    stream = TextBlocks(DOCUMENTS[:2], WORDS, 8).stream
    with torch.no_grad():
        losses = torch.cat(list(token_losses(model, stream, length, context, batch_tokens=20)))
        torch.testing.assert_close(
            losses, naive_token_losses(model, stream, length, context), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9])
def test_texts_shorter_than_a_window(tokens):
    model = build().double()
    stream = TextBlocks(DOCUMENTS, WORDS, 8).stream[: tokens + 1]
    losses = torch.cat(list(token_losses(model, stream, 8, 5)))
    with torch.no_grad():
        torch.testing.assert_close(
            losses, naive_token_losses(model, stream, 8, 5), rtol=1e-5, atol=1e-5
        )


# --- scores -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [WORDS, BPE])
def test_without_context_perplexity_is_that_of_the_validation_loss(tokenizer):
    data, model = task(tokenizer), build(tokenizer)
    settings = LanguageEvaluation(context=0, samples=0)
    outcome = data.evaluate(model, data.test, settings, lambda count: None)
    sampler = TokenBudgetSampler(data.test.lengths, 64, shuffle=False)
    loss = validation_loss(model, BatchLoader(data.test, sampler, data.collate))
    scores = {score.name: score for score in outcome.scores}
    tokens, words = sum(data.test.lengths), data.test.words().sum().item()
    word = outcome.scores[0]
    assert word.name == "word perplexity" and not word.higher_is_better
    assert word.value == pytest.approx(math.exp(loss * tokens / words), rel=1e-5)
    assert word.low < word.value < word.high
    if tokenizer is BPE:
        assert scores["token perplexity"].value == pytest.approx(math.exp(loss), rel=1e-5)
        bits = loss * tokens / math.log(2) / data.test.utf8_bytes().sum().item()
        assert scores["bits per byte"].value == pytest.approx(bits, rel=1e-5)
    else:
        assert list(scores) == ["word perplexity"] and words == tokens


def test_items_are_blocks_and_give_the_scores():
    data = task(BPE)
    advanced = []
    settings = LanguageEvaluation(context=6, samples=2)
    outcome = data.evaluate(build(BPE), data.test, settings, advanced.append)
    assert list(outcome.items) == [score.name for score in outcome.scores]
    for score in outcome.scores:
        rows = outcome.items[score.name]
        assert len(rows) == len(data.test) == sum(advanced)
        statistic = data.statistic(score.name, settings)
        assert score_of(rows, statistic) == pytest.approx(score.value)
        assert score.low < score.value < score.high
    one, two = [math.log(8.0), 1.0], [math.log(2.0), 1.0]
    assert score_of([one, two], data.statistic("word perplexity", settings)) == pytest.approx(4.0)


@pytest.mark.parametrize("tokenizer", [WORDS, BPE])
def test_perplexities_of_held_out_text_are_marked_as_such(tokenizer):
    data = task(tokenizer)
    settings = LanguageEvaluation(context=6, samples=0)
    scores = data.evaluate(build(tokenizer), data.test, settings, lambda count: None).scores
    marked = {score.name: score.is_perplexity for score in scores}
    subwords = {"token perplexity": True, "bits per byte": False} if tokenizer is BPE else {}
    assert marked == {"word perplexity": True, **subwords}


def test_predict_prints_texts_that_go_on_from_their_prompts(tmp_path):
    task(BPE).save(tmp_path)
    generation = {"max_new_tokens": 4, "lines": 1, "seed": 5}
    recipe = LanguageModellingRecipe(
        training={"max_steps": 1}, evaluation={"generation": generation}
    )
    model, printed = build(BPE), []

    def generate(prompts, number):
        printed.clear()
        wish = Wish(printed.append, texts=prompts, number=number)
        LanguageModelling.predict(tmp_path, recipe, model, wish)
        return list(printed)

    prompts = ["open the", "close"]
    found = generate(prompts, 2)
    expected = [
        prompt + text
        for seed in (5, 6)
        for prompt, text in zip(
            prompts,
            generate_text(model, BPE, prompts, GenerationSettings(**{**generation, "seed": seed})),
            strict=True,
        )
    ]
    assert found == [text.removesuffix("\n") for text in expected]
    assert len(generate((), None)) == 1  # of an empty prompt
    with pytest.raises(ValueError, match="--output is not for a run of language-modelling"):
        wish = Wish(printed.append, output=tmp_path / "a.txt")
        LanguageModelling.predict(tmp_path, recipe, model, wish)


def test_samples_are_lines_cut_in_the_middle_and_what_the_model_writes():
    data = task(BPE)
    settings = LanguageEvaluation(samples=2)
    outcome = data.evaluate(build(BPE), data.test, settings, lambda count: None)
    assert [sample.given for sample in outcome.samples] == [
        {"Prompt": "close it and open the", "Text": "file , then close the window"}
    ]
    assert outcome.samples[0].made
    again = data.evaluate(build(BPE), data.test, settings, lambda count: None)
    assert again.samples == outcome.samples


def test_a_model_that_diverged_has_a_perplexity_and_samples_all_the_same():
    data, model = task(BPE), build(BPE)
    torch.nn.init.constant_(model.decoder.embedding.weight, float("nan"))
    outcome = data.evaluate(model, data.test, LanguageEvaluation(samples=2), lambda count: None)
    assert math.isnan(outcome.scores[0].value) and outcome.samples
    statistic = data.statistic("word perplexity", LanguageEvaluation())
    assert score_of([[1e6, 1.0]], statistic) == math.exp(700)


# --- the recipe -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"block_length": 64, "evaluation": {"context": 64}},
            "context is 64, expected less than block_",
        ),
        ({"block_length": 1}, "block_length"),
        ({"model": {"adaptive_cutoffs": [9, 5]}}, "adaptive_cutoffs"),
        ({"model": {"attention": {"decoder_cross": "mae"}}}, "decoder_cross"),
        ({"data": {"corpus": "hub", "nam": "x"}}, "nam"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it(changes, message):
    with pytest.raises(ValidationError, match=message):
        LanguageModellingRecipe(training={"max_steps": 1}, **changes)


RECIPES = [
    name for name in shipped_recipes() if load_recipe(name).recipe.task == "language-modelling"
]


def test_the_setting_of_the_mae_paper_has_the_papers_size():
    recipe = load_recipe("mae-wikitext103")
    with torch.device("meta"):
        model = CausalLM(LanguageModelling.nominal_config(recipe.system("standard")))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 247
    assert recipe.recipe.evaluation.context == 480 and recipe.recipe.block_length == 512


# --- running ----------------------------------------------------------------------------------


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for document in DOCUMENTS * 4 for line in document))
    return path


def recipe(text_file, plan="standard", **training):
    return LanguageModellingRecipe(
        data={"corpus": "files", "train": text_file},
        tokenizer={"vocab_size": 270},
        block_length=8,
        model={"attention": plan, "embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "layers": 2},
        training={
            "max_steps": 4,
            "batch_tokens": 64,
            "evaluate_every": 2,
            "warmup_steps": 2,
            **training,
        },
        evaluation={"context": 4, "samples": 1, "generation": {"max_new_tokens": 4}},
    )


def train(task, settings, training, folder):
    set_seed(training.seed)
    model = task.build_model(settings)
    data = task.train, task.validation, task.collate
    return run_training(model, *data, training, folder, console=Console(file=io.StringIO()))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_system_trains_saves_loads_and_evaluates(plan, text_file, tmp_path):
    settings = recipe(text_file, plan)
    data = LanguageModelling.prepare(settings)
    data.save(tmp_path / "run")
    run = train(data, settings.model, settings.training, tmp_path / "run")
    assert run.steps == 4
    outcome = data.evaluate(run.model.eval(), data.test, settings.evaluation, lambda count: None)
    again = LanguageModelling.prepare(settings, tmp_path / "run")
    assert again.digest() == data.digest()
    assert torch.equal(again.test.stream, data.test.stream)
    loaded = CausalLM.from_pretrained(tmp_path / "run" / "model").eval()
    assert loaded.config.max_length == 8
    assert again.evaluate(loaded, again.test, settings.evaluation, lambda count: None) == outcome
