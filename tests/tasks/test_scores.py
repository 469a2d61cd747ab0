"""Scores: the numbers of sacrebleu, SciPy, scikit-learn and pesq, or of a plain loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from scipy.stats import pearsonr, spearmanr
from support import scores
from support.data_files import WORDS, row
from support.road import Road, in_each_part, road, waves_of

MODEL = {"embed_dim": 8, "num_heads": 2, "ffn_dim": 8}


def walk(task: str, layers: int = 1, **recipe) -> Road:
    rows = [row(task, key) for key in range(12)]
    return road(task, "files", in_each_part(rows), model={**MODEL, "layers": layers}, **recipe)


def network(own: Road) -> torch.nn.Module:
    """A model with random weights that are large enough for predictions to differ."""
    torch.manual_seed(1)
    model = own.model().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


# --- translations -----------------------------------------------------------------------------

REFERENCES = [
    f"Der {a} Hund im {b} Garten, den {c} sahen, ist vorbei."
    for a in ("alte", "neue", "kleine")
    for b in ("schönen", "grünen", "weiten")
    for c in ("wir", "sie")
]
DRAW = np.random.default_rng(0)
DAMAGED = [" ".join(w for w in text.split() if DRAW.random() > 0.2) for text in REFERENCES]
MADE = {
    "damaged": DAMAGED,
    "some empty": [text if n % 3 else "" for n, text in enumerate(DAMAGED)],
    "all empty": [""] * len(REFERENCES),
}


def metrics(kind: str, language: str = "") -> tuple[BLEU, CHRF]:
    tokenizer = {"zh": "zh", "ja": "char"}.get(language, "13a")
    if kind == "sacrebleu":
        return BLEU(tokenize=tokenizer), CHRF()
    tokenizer = "none" if kind == "pretokenized" else tokenizer
    return BLEU(tokenize=tokenizer, smooth_method="none", force=True), CHRF()


def as_sacrebleu(made: list[str], references: list[str], kind: str, language: str = "") -> None:
    found = scores.translations(made, references, kind, language)
    assert list(found) == ["BLEU", "chrF"]
    for score, metric in zip(found.values(), metrics(kind, language), strict=True):
        expected = metric.corpus_score(made, [references]).score
        assert score.value == expected and score.higher_is_better
        assert score.note == str(metric.get_signature())
        assert len(score.rows) == len(made)


@given(st.lists(st.tuples(*[st.lists(st.sampled_from(WORDS[:4]), max_size=9)] * 2), min_size=1))
def test_scores_of_any_words_are_those_of_sacrebleu(pairs):
    made, references = ([" ".join(pair[side]) for pair in pairs] for side in (0, 1))
    as_sacrebleu(made, [text or "one" for text in references], "sacrebleu")


@pytest.mark.parametrize("language", ["zh", "ja"])
def test_texts_without_spaces_are_counted_in_characters(language):
    references = ["打开这个新的文件。", "保存所有标签页", "关闭窗口"]
    as_sacrebleu(["打开那个新的文件。", "", "关闭窗口吗"], references, "sacrebleu", language)


@pytest.mark.parametrize("kind", ["sacrebleu", "tokenized", "pretokenized"])
@pytest.mark.parametrize("name", MADE)
def test_the_score_of_a_resample_is_that_of_the_repeated_sentences(name, kind):
    as_sacrebleu(MADE[name], REFERENCES, kind)  # of all sentences, once
    number = len(REFERENCES)
    counts = np.random.default_rng(0).multinomial(number, [1 / number] * number, size=4)
    found = scores.translations(MADE[name], REFERENCES, kind)
    for (score, of), metric in zip(found.items(), metrics(kind), strict=True):
        values = scores.statistic("translation", score, bleu=kind)(of.rows, counts.astype(float))
        for each, times in zip(values, counts, strict=True):
            texts, references = (np.repeat(of, times).tolist() for of in (MADE[name], REFERENCES))
            assert each == metric.corpus_score(texts, [references]).score


# --- running text -----------------------------------------------------------------------------


def test_hidden_words_are_scored_as_a_plain_loop_does():
    own = walk("masked-language-modelling")
    model, rows = network(own), []
    for index in range(len(own.items("test"))):
        nats = count = right = 0.0
        item = own.batch("test", [index])
        with torch.no_grad():
            logits = model(input_ids=item["input_ids"]).logits[0].double().log_softmax(-1)
        for found, label in zip(logits, item["labels"][0].tolist(), strict=True):
            if label != -100:
                nats, count = nats - float(found[label]), count + 1
                right += int(found.argmax()) == label
        rows.append((nats, count, right))
    nats, count, right = np.sum(rows, axis=0)
    found = scores.evaluated(own, model)
    assert found["perplexity"].value == pytest.approx(math.exp(nats / count), rel=1e-4)
    assert found["accuracy"].value == pytest.approx(100 * right / count)
    assert [score.higher_is_better for score in found.values()] == [False, True]
    np.testing.assert_allclose(found["perplexity"].rows, np.array(rows)[:, :2], rtol=1e-4)
    for name, score in found.items():
        assert (score.low, score.high) == scores.interval(own.name, name, score.rows)
        assert score.low <= score.value <= score.high


# --- labels and numbers -----------------------------------------------------------------------


@pytest.mark.parametrize("decimals", [0, 1, 6])  # with many ties, some, none
@pytest.mark.parametrize(("name", "oracle"), [("Pearson", pearsonr), ("Spearman", spearmanr)])
def test_correlations_are_those_of_scipy(name, oracle, decimals):
    rows = np.random.default_rng(decimals).normal(size=(40, 2)).round(decimals)
    found = scores.value("classification", name, rows)
    assert found == pytest.approx(100 * oracle(*rows.T).statistic)
    for constant in (0, 1):
        flat = rows.copy()
        flat[:, constant] = 0.3
        undefined = scores.value("classification", name, flat)
        assert undefined == 0 or math.isnan(undefined)
    rows[3, 1] = math.nan  # of a model that has diverged
    assert math.isnan(scores.value("classification", name, rows))


def test_a_regression_is_scored_on_what_its_model_predicts():
    rows = [(text, str(number / 4)) for number, (text, _) in enumerate(walk("probing").rows())]
    model_of = {"model": {**MODEL, "layers": 1}, "data": {"regression": True}}
    own = road("classification", "files", in_each_part(rows), **model_of)
    model, expected = network(own), []
    for index, (_, label) in enumerate(rows):
        with torch.no_grad():
            ids = own.batch("test", [index])["input_ids"]
            expected.append((float(label), model(input_ids=ids).logits.item()))
    found = scores.evaluated(own, model)
    assert list(found) == ["Pearson", "Spearman"]
    for name, score in found.items():
        np.testing.assert_allclose(score.rows, expected, atol=1e-5)
        assert score.value == scores.value("classification", name, score.rows)
        assert score.low <= score.value <= score.high and score.higher_is_better


# --- speech -----------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_si_sdr_is_its_equation_and_knows_no_scale(seed, scale):
    clean, heard = np.random.default_rng(seed).standard_normal((2, 60))
    target = (heard @ clean) / (clean @ clean) * clean
    expected = 10 * math.log10((target @ target) / ((target - heard) @ (target - heard)))
    assert scores.si_sdr(clean, heard) == pytest.approx(expected)
    assert scores.si_sdr(clean, scale * heard) == pytest.approx(expected)
    assert math.isnan(scores.si_sdr(0 * clean, heard))
    assert scores.si_sdr(clean, clean) >= 90 > expected > -90 >= scores.si_sdr(clean, 0 * clean)


def test_speech_is_scored_before_and_after():
    small = {**MODEL, "layers": 1, "front_channels": [8]}
    own = road("speech-enhancement", "built-in", model=small)
    found = scores.evaluated(own, network(own))
    waves = [waves_of(own, "test", index) for index in range(len(own.items("test")))]
    before = [scores.si_sdr(clean, noisy) for noisy, clean in waves]
    np.testing.assert_allclose(found["SI-SDR noisy"].rows[:, 0], before, rtol=1e-6)
    gain = found["SI-SDR"].rows - found["SI-SDR noisy"].rows
    np.testing.assert_allclose(found["SI-SDR gain"].rows[:, 0], gain[:, 0])
    pesq = pytest.importorskip("pesq").pesq
    expected = [pesq(8_000, clean, noisy, "nb") for noisy, clean in waves]
    np.testing.assert_allclose(found["PESQ noisy"].rows[:, 0], expected, rtol=1e-6)
    assert math.isnan(scores.pesq_score(0 * waves[0][1], waves[0][0], 8_000))


# --- intervals --------------------------------------------------------------------------------

ACCURACY = ("classification", "accuracy")


def test_all_systems_are_scored_on_the_same_resamples():
    """Now and in any other call: a system that is better on no item is better on no resample."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, 50)
    worse = np.column_stack([labels, np.where(draw.random(50) < 0.3, 1 - labels, labels)])
    better = worse.copy()
    better[:10, 1] = labels[:10]
    both = scores.resampled(*ACCURACY, [worse, better], number=200)
    assert both.shape == (2, 200) and (both[1] >= both[0]).all() and (both[1] > both[0]).any()
    for run, alone in zip((worse, better), both, strict=True):
        assert np.array_equal(scores.resampled(*ACCURACY, [run], number=200)[0], alone)
    assert len(set(both[0])) > 5  # they are no copies of each other
    assert both[0].mean() == pytest.approx(scores.value(*ACCURACY, worse), abs=2)


def test_an_interval_has_the_width_of_the_binomial_one():
    right = np.repeat([1.0, 0.0], [300, 100])
    low, high = scores.interval(*ACCURACY, np.column_stack([right, np.ones(400)]))
    half = 100 * 1.96 * math.sqrt(0.75 * 0.25 / 400)
    assert low == pytest.approx(75 - half, abs=0.8) and high == pytest.approx(75 + half, abs=0.8)


def test_what_has_no_items_or_no_number_has_no_interval():
    for runs in ([[]], [], [[[1.0, 1.0]], [[1.0, 1.0]] * 2]):
        with pytest.raises(ValueError):
            scores.resampled(*ACCURACY, runs)
    silent = [[math.nan], [math.nan]]
    assert math.isnan(scores.value("speech-enhancement", "PESQ", silent))
    assert scores.value("speech-enhancement", "PESQ", [*silent, [3.0]]) == 3.0
