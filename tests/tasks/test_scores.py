"""Scores: the numbers of sacrebleu, SciPy and pesq, or of a plain loop, and their intervals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from scipy.stats import pearsonr, spearmanr
from support.data_files import WORDS, row
from support.road import Road, in_each_part, road, waves_of

from headwise.tasks.scores import Score, resampled_scores
from headwise.tasks.speech import pesq_score, si_sdr
from headwise.tasks.translation import bleu_and_chrf

MODEL = {"embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "layers": 1}


def walk(task: str, rows=None, **recipe) -> Road:
    rows = rows or [row(task, key) for key in range(12)]
    return road(task, "files", in_each_part(rows), model=MODEL, **recipe)


def evaluated(corpus: Road, model: torch.nn.Module) -> dict[str, Score]:
    scores = corpus.task.evaluate(model, "test", corpus.recipe.evaluation).scores
    for score in scores:
        again = Score.from_rows(score.name, score.rows, score.statistic)
        assert score.value == pytest.approx(again.value)
        assert score.interval == pytest.approx(again.interval)
        assert score.low is None or score.low <= score.value <= score.high
    return {score.name: score for score in scores}


# --- translations -----------------------------------------------------------------------------

REFERENCES = [
    f"Der {a} Hund im {b} Garten, den {c} sahen, ist vorbei."
    for a in ("alte", "neue", "kleine")
    for b in ("schönen", "grünen", "weiten")
    for c in ("wir", "sie")
]
DRAW = np.random.default_rng(0)
DAMAGED = [" ".join(w for w in text.split() if DRAW.random() > 0.2) for text in REFERENCES]
OUTPUTS = {
    "damaged": DAMAGED,
    "some empty": [text if n % 3 else "" for n, text in enumerate(DAMAGED)],
    "all empty": [""] * len(REFERENCES),
    "the same": REFERENCES,
    "one that is right": [*REFERENCES[:1], *["zzz qqq"] * (len(REFERENCES) - 1)],
}
PAPER_OPTIONS = {"smooth_method": "none", "force": True}


def as_sacrebleu(outputs: list[str], references: list[str], options: dict, language=None) -> list:
    """Asserts that scores and signatures are sacrebleu's; returns each score with its metric."""
    tokenize = {"zh": "zh", "ja": "char"}.get(language, "13a")
    metrics = BLEU(**{"tokenize": tokenize, **options}), CHRF()
    pairs = list(zip(bleu_and_chrf(outputs, references, options, language), metrics, strict=True))
    for score, metric in pairs:
        assert score.value == metric.corpus_score(outputs, [references]).score
        assert score.note == str(metric.get_signature()) and len(score.rows) == len(outputs)
    return pairs


@given(st.lists(st.tuples(*[st.lists(st.sampled_from(WORDS[:4]), max_size=9)] * 2), min_size=1))
def test_scores_of_any_words_are_those_of_sacrebleu(pairs):
    outputs, references = ([" ".join(pair[side]) for pair in pairs] for side in (0, 1))
    as_sacrebleu(outputs, [text or "one" for text in references], {})


@pytest.mark.parametrize("language", ["zh", "ja"])
def test_texts_without_spaces_are_counted_in_characters(language):
    references = ["打开这个新的文件。", "保存所有标签页", "关闭窗口"]
    as_sacrebleu(["打开那个新的文件。", "", "关闭窗口吗"], references, {}, language)


@pytest.mark.parametrize("options", [{}, PAPER_OPTIONS, {"tokenize": "none", **PAPER_OPTIONS}])
@pytest.mark.parametrize("name", OUTPUTS)
def test_the_score_of_a_resample_is_that_of_the_repeated_sentences(name, options):
    number = len(REFERENCES)
    counts = np.random.default_rng(0).multinomial(number, [1 / number] * number, size=4)
    for score, metric in as_sacrebleu(OUTPUTS[name], REFERENCES, options):
        assert score.low <= score.value <= score.high
        values = score.resampled_values(np.array(score.rows), counts.astype(float))
        for value, times in zip(values, counts, strict=True):
            texts, references = (np.repeat(x, times).tolist() for x in (OUTPUTS[name], REFERENCES))
            assert value == metric.corpus_score(texts, [references]).score


# --- of models --------------------------------------------------------------------------------


def test_hidden_words_are_scored_as_a_plain_loop_does():
    corpus = walk("masked-language-modelling")
    model, rows = corpus.network(), []
    for index in range(len(corpus.items("test"))):
        nats = count = right = 0.0
        item = corpus.batch("test", [index])
        with torch.no_grad():
            logits = model(input_ids=item["input_ids"]).logits[0].double().log_softmax(-1)
        for log_p, label in zip(logits, item["labels"][0].tolist(), strict=True):
            if label != -100:
                nats, count = nats - float(log_p[label]), count + 1
                right += int(log_p.argmax()) == label
        rows.append((nats, count, right))
    nats, count, right = np.sum(rows, axis=0)
    scores = evaluated(corpus, model)
    assert scores["perplexity"].value == pytest.approx(math.exp(nats / count), rel=1e-4)
    assert scores["accuracy"].value == pytest.approx(100 * right / count)
    assert [score.lower_is_better for score in scores.values()] == [True, False]
    np.testing.assert_allclose(scores["perplexity"].rows, np.array(rows)[:, :2], rtol=1e-4)


def test_a_regression_is_scored_on_what_its_model_predicts():
    rows = [(text, str(number / 4)) for number, (text, _) in enumerate(walk("probing").rows())]
    corpus = walk("classification", rows, data={"regression": True})
    model, expected = corpus.network(), []
    for index, (_, label) in enumerate(rows):
        with torch.no_grad():
            ids = corpus.batch("test", [index])["input_ids"]
            expected.append((float(label), model(input_ids=ids).logits.item()))
    for score in evaluated(corpus, model).values():
        np.testing.assert_allclose(score.rows, expected, atol=1e-5)


@pytest.mark.parametrize("decimals", [0, 1, 6])  # with many ties, some, none
@pytest.mark.parametrize(("statistic", "oracle"), [("pearson", pearsonr), ("spearman", spearmanr)])
def test_correlations_are_those_of_scipy(statistic, oracle, decimals):
    rows = np.random.default_rng(decimals).normal(size=(40, 2)).round(decimals)
    expected = 100 * oracle(*rows.T).statistic
    assert Score.from_rows("", rows, statistic).value == pytest.approx(expected)
    for constant in (0, 1):
        flat = rows.copy()
        flat[:, constant] = 0.3
        assert str(Score.from_rows("r", flat, statistic)) == "r undefined"
    rows[3, 1] = math.nan  # of a model that has diverged
    assert math.isnan(Score.from_rows("", rows, statistic).value)


# --- speech -----------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_si_sdr_is_its_equation_and_knows_no_scale(seed, scale):
    clean, heard = np.random.default_rng(seed).standard_normal((2, 60))
    target = (heard @ clean) / (clean @ clean) * clean
    expected = 10 * math.log10((target @ target) / ((target - heard) @ (target - heard)))
    assert si_sdr(clean, heard) == pytest.approx(expected)
    assert si_sdr(clean, scale * heard) == pytest.approx(expected)
    assert math.isnan(si_sdr(0 * clean, heard))
    assert si_sdr(clean, clean) >= 90 > expected > -90 >= si_sdr(clean, 0 * clean)


def test_speech_is_scored_before_and_after():
    corpus = road("speech-enhancement", "built-in", model={**MODEL, "front_channels": [8]})
    rows = {name: np.array(x.rows)[:, 0] for name, x in evaluated(corpus, corpus.network()).items()}
    waves = [waves_of(corpus, "test", index) for index in range(len(corpus.items("test")))]
    before = [si_sdr(clean, noisy) for noisy, clean in waves]
    np.testing.assert_allclose(rows["SI-SDR noisy"], before, rtol=1e-6)
    np.testing.assert_allclose(rows["SI-SDR gain"], rows["SI-SDR"] - rows["SI-SDR noisy"])
    pesq = pytest.importorskip("pesq").pesq
    expected = [pesq(8_000, clean, noisy, "nb") for noisy, clean in waves]
    np.testing.assert_allclose(rows["PESQ noisy"], expected, rtol=1e-6)
    np.testing.assert_allclose(rows["PESQ gain"], rows["PESQ"] - rows["PESQ noisy"])
    assert math.isnan(pesq_score(0 * waves[0][1], waves[0][0], 8_000))


# --- intervals --------------------------------------------------------------------------------


def accuracy(right: np.ndarray) -> Score:
    return Score.from_rows("accuracy", np.column_stack([right, np.ones(len(right))]), "accuracy")


def test_all_systems_are_scored_on_the_same_resamples():
    """Now and in any other call: a system that is better on no item is better on no resample."""
    right = np.random.default_rng(0).random(50) > 0.3
    runs = accuracy(right), accuracy(right | (np.arange(50) < 10))
    worse, better = resampled_scores(runs, 200)
    assert worse.shape == (200,) and (better >= worse).all() and (better > worse).any()
    for run, values in zip(runs, (worse, better), strict=True):
        assert np.array_equal(resampled_scores([run], 200)[0], values)
    assert len(set(worse)) > 5  # they are no copies of each other
    assert worse.mean() == pytest.approx(runs[0].value, abs=2)


def test_an_interval_has_the_width_of_the_binomial_one():
    score, half = accuracy(np.arange(400) < 300), 100 * 1.96 * math.sqrt(0.75 * 0.25 / 400)
    assert score.interval == pytest.approx((75 - half, 75 + half), abs=0.8)


def test_what_has_no_items_or_no_number_has_no_interval():
    for runs in ([], [accuracy(np.ones(1)), accuracy(np.ones(2))]):
        with pytest.raises(ValueError):
            resampled_scores(runs)
    with pytest.raises(ValueError):
        Score.from_rows("accuracy", [], "accuracy")
    silent = Score.from_rows("PESQ", [[0.0, 0.0]] * 2, "ratio")  # no utterance has a score
    assert math.isnan(silent.value) and silent.interval is None
    assert Score.from_rows("PESQ", [[0.0, 0.0], [3.0, 1.0]], "ratio").value == 3.0
