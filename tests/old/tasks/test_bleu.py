"""Scores: the numbers that sacrebleu gives, of all sentences and of resamples of them."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from headwise.tasks.bleu import (
    TranslationEvaluation,
    corpus_scores,
    corpus_statistic,
    split_compounds,
)
from headwise.tasks.significance import score_of

REFERENCES = [
    f"Der {a} Hund-Katzen-Streit im {b} Garten, den {c} sahen, ist vorbei."
    for a in ("alte", "neue", "kleine", "grosse")
    for b in ("schönen", "grünen", "anderen", "weiten", "hinteren")
    for c in ("wir", "sie", "alle")
]


def damaged(share, seed=0):
    """The references with a share of the words left out."""
    rng = random.Random(seed)
    return [" ".join(word for word in text.split() if rng.random() >= share) for text in REFERENCES]


def settings(bleu="sacrebleu"):
    return TranslationEvaluation(bleu=bleu)


def bleu(hypotheses, references, kind="sacrebleu", language=None):
    score, _ = corpus_scores(hypotheses, references, settings(kind), language=language)[0]
    return score


def metrics(kind="sacrebleu", language=None):
    """What sacrebleu has for this kind of BLEU, and for chrF."""
    tokenizer = {"zh": "zh", "ja": "char"}.get(language, "13a")
    if kind == "sacrebleu":
        return BLEU(tokenize=tokenizer), CHRF()
    if kind == "pretokenized":
        tokenizer = "none"
    return BLEU(tokenize=tokenizer, smooth_method="none", force=True), CHRF()


# --- scores -----------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_sacrebleu_command(tmp_path):
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    hypotheses = damaged(0.2)
    output = subprocess.run(
        [sys.executable, "-m", "sacrebleu", "ref", "-m", "bleu", "chrf", "-b", "-w", "4"],
        input="\n".join(hypotheses) + "\n",
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1"},
    ).stdout
    expected = [float(figure) for figure in output.strip("[]\n ").replace(",", " ").split()]
    scores = [score for score, _ in corpus_scores(hypotheses, REFERENCES, settings())]
    assert [score.name for score in scores] == ["BLEU", "chrF"]
    assert [score.value for score in scores] == pytest.approx(expected, abs=1e-4)
    assert all(type(score.value) is float for score in scores)  # JSON takes these


MADE = {
    "damaged": damaged(0.2),
    "perfect": REFERENCES,
    "some empty": [text if n % 3 else "" for n, text in enumerate(damaged(0.3, seed=1))],
    "all empty": [""] * len(REFERENCES),
    "without a match": ["zzzz qqq"] * len(REFERENCES),
    "one match": ["zzzz"] * (len(REFERENCES) - 1) + ["zzz Garten, den alle"],
    "too long": [f"{text} {text}" for text in damaged(0.1, seed=2)],
}


@pytest.mark.parametrize("kind", ["sacrebleu", "tokenized", "pretokenized"])
@pytest.mark.parametrize("made", list(MADE))
def test_scores_and_signatures_are_exactly_those_of_sacrebleu(kind, made):
    scores = corpus_scores(MADE[made], REFERENCES, settings(kind))
    for (score, rows), metric in zip(scores, metrics(kind), strict=True):
        assert score.value == metric.corpus_score(MADE[made], [REFERENCES]).score
        assert score.note == str(metric.get_signature())
        assert len(rows) == len(REFERENCES)
        assert score_of(rows, corpus_statistic(score.name, settings(kind))) == score.value


def test_compounds_are_split_in_what_sacrebleu_scores():
    tokenize = metrics("tokenized")[0].tokenizer
    texts, references = (
        [split_compounds(tokenize(text)) for text in of] for of in (MADE["damaged"], REFERENCES)
    )
    expected = metrics("pretokenized")[0].corpus_score(texts, [references]).score
    assert bleu(MADE["damaged"], REFERENCES, "compound-split").value == expected


@pytest.mark.parametrize("language", ["zh", "ja"])
@pytest.mark.parametrize("kind", ["sacrebleu", "tokenized"])
def test_texts_without_spaces_are_scored_exactly_as_sacrebleu_does(language, kind):
    references = ["打开这个新的文件。", "保存所有标签页", "关闭窗口"]
    texts = ["打开那个新的文件。", "", "关闭窗口吗"]
    metric = metrics(kind, language)[0]
    found = bleu(texts, references, kind, language)
    assert found.value == metric.corpus_score(texts, [references]).score
    assert found.note == str(metric.get_signature())


@pytest.mark.parametrize("kind", ["sacrebleu", "tokenized", "pretokenized"])
@pytest.mark.parametrize("made", ["damaged", "some empty", "all empty", "one match"])
def test_the_score_of_a_resample_is_that_of_the_repeated_sentences(kind, made):
    counts = np.random.default_rng(0).multinomial(60, [1 / 60] * 60, size=5).astype(float)
    scores = corpus_scores(MADE[made], REFERENCES, settings(kind))
    for (score, rows), metric in zip(scores, metrics(kind), strict=True):
        found = corpus_statistic(score.name, settings(kind))(rows, counts)
        for value, times in zip(found, counts.astype(int), strict=True):
            texts, references = (np.repeat(of, times).tolist() for of in (MADE[made], REFERENCES))
            assert value == metric.corpus_score(texts, [references]).score


# --- kinds of BLEU ----------------------------------------------------------------------------


def test_tokenized_bleu_by_hand():
    """9 of 10 words right, and as many of the pairs, triples and fours as stay whole."""
    reference = ["a b c d e f g h i j"]
    hypothesis = ["a b c d e f g h i x"]
    expected = 100 * (9 / 10 * 8 / 9 * 7 / 8 * 6 / 7) ** (1 / 4)
    for kind in ("tokenized", "pretokenized", "compound-split"):
        assert bleu(hypothesis, reference, kind).value == pytest.approx(expected)


def test_compounds_are_split_on_both_sides_after_tokenising():
    """Half a compound right counts: 4 + 3 of its 5 pieces instead of 4 of 5 words."""
    reference, hypothesis = ["a b c d Hund-Katze."], ["a b c d Hund-Maus."]
    result = bleu(hypothesis, reference, "compound-split")
    # a b c d Hund ##AT##-##AT## Maus . : 7/8 words, 5/7 pairs, 4/6 triples, 3/5 fours
    assert result.value == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** (1 / 4))
    assert result.value > bleu(hypothesis, reference, "tokenized").value
    assert "tok:13a+compound-split|smooth:none" in result.note


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("well-known", "well ##AT##-##AT## known"),
        ("- a - b -", "- a - b -"),
        ("-a b-", "-a b-"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # as the Perl expression does
        ("10-20", "10 ##AT##-##AT## 20"),
    ],
)
def test_compound_splitting_follows_the_published_script(text, split):
    assert split_compounds(text) == split


@pytest.mark.parametrize("language", ["zh", "zh-CN", "zh_CN"])
def test_chinese_is_counted_in_characters(language):
    hypothesis, reference = ["打开这个新的文件"], ["打开那个新的文件"]
    assert bleu(hypothesis, reference, "tokenized").value == 0
    for kind in ("sacrebleu", "tokenized", "compound-split"):
        result = bleu(hypothesis, reference, kind, language)
        assert result.value > 30
        assert "tok:zh" in result.note
    assert "tok:char" in bleu(hypothesis, reference, language="ja").note
    assert "tok:13a" in bleu(hypothesis, reference, language="fr").note
