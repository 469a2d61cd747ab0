"""Scores: the numbers sacrebleu gives, by each of its roads, and the test against a baseline."""

import math
import os
import random
import subprocess
import sys

import pytest
from pydantic import ValidationError

from headwise.tasks.text.parallel.metrics import (
    TranslationEvaluation,
    compare_bleu,
    score,
    split_compounds,
)

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


# --- settings ---------------------------------------------------------------------------------


def test_the_length_limit_grows_with_the_source():
    assert TranslationEvaluation().max_length(0) == 50
    assert TranslationEvaluation(max_length_ratio=1.2, max_length_extra=10).max_length(33) == 49


@pytest.mark.parametrize("wrong", [{"beam_size": 0}, {"bleu": "moses"}, {"beams": 4}])
def test_wrong_settings_are_errors_that_name_the_key(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        TranslationEvaluation(**wrong)


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
    ours = score(hypotheses, REFERENCES, settings())
    bleu, chrf = map(float, output.strip("[]\n ").replace(",", " ").split())
    assert (bleu, chrf) == (pytest.approx(ours.bleu, abs=1e-4), pytest.approx(ours.chrf, abs=1e-4))


def test_a_perfect_translation():
    result = score(REFERENCES, REFERENCES, settings())
    assert result.bleu == pytest.approx(100) and result.chrf == pytest.approx(100)
    assert result.bleu_interval == (pytest.approx(100), pytest.approx(100))


def test_nothing_right_scores_zero_and_not_an_error():
    for bleu in ("sacrebleu", "tokenized"):
        result = score([""] * 60, REFERENCES, settings(bleu), num_bootstrap=10)
        assert (result.bleu, result.chrf) == (0, 0)


def test_the_interval_encloses_the_score_and_narrows_with_more_sentences():
    result = score(damaged(0.2), REFERENCES, settings())
    fewer = score(damaged(0.2)[::6], REFERENCES[::6], settings())
    for metric in ("bleu", "chrf"):
        low, high = getattr(result, f"{metric}_interval")
        wide_low, wide_high = getattr(fewer, f"{metric}_interval")
        assert low < getattr(result, metric) < high
        assert high - low < wide_high - wide_low
        assert type(low) is type(high) is type(getattr(result, metric)) is float  # JSON takes these


def test_the_seed_decides_the_interval_and_nothing_else(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    one, again, two = (
        score(damaged(0.2), REFERENCES, settings(), num_bootstrap=50, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one == again
    assert one.bleu_interval != two.bleu_interval and one.bleu == two.bleu
    assert "seed:1|" in one.bleu_signature and "bs:50|" in one.chrf_signature
    assert os.environ["SACREBLEU_SEED"] == "7"


def test_no_trace_is_left_in_the_environment(monkeypatch):
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    score(REFERENCES[:2], REFERENCES[:2], settings(), num_bootstrap=2)
    assert "SACREBLEU_SEED" not in os.environ


# --- kinds of BLEU ----------------------------------------------------------------------------


def test_tokenized_bleu_is_not_smoothed():
    hypothesis, reference = ["the cat is here"], ["the cat sat there today"]  # no 3 in a row
    assert score(hypothesis, reference, settings()).bleu > 0
    assert score(hypothesis, reference, settings("tokenized")).bleu == 0


def test_tokenized_bleu_by_hand():
    """9 of 10 words right, and as many of the pairs, triples and fours as stay whole."""
    reference = ["a b c d e f g h i j"]
    hypothesis = ["a b c d e f g h i x"]
    expected = 100 * (9 / 10 * 8 / 9 * 7 / 8 * 6 / 7) ** (1 / 4)
    for kind in ("tokenized", "pretokenized", "compound-split"):
        assert score(hypothesis, reference, settings(kind)).bleu == pytest.approx(expected)


def test_tokenized_bleu_splits_punctuation_and_pretokenized_does_not():
    hypothesis, reference = ["so we go home , now"], ["so we go home, now"]
    assert score(hypothesis, reference, settings("tokenized")).bleu == pytest.approx(100)
    assert score(hypothesis, reference, settings("pretokenized")).bleu < 60
    assert "tok:none" in score(hypothesis, reference, settings("pretokenized")).bleu_signature


def test_compounds_are_split_on_both_sides_after_tokenising():
    """Half a compound right counts: 4 + 3 of its 5 pieces instead of 4 of 5 words."""
    reference, hypothesis = ["a b c d Hund-Katze."], ["a b c d Hund-Maus."]
    result = score(hypothesis, reference, settings("compound-split"))
    # a b c d Hund ##AT##-##AT## Maus . : 7/8 words, 5/7 pairs, 4/6 triples, 3/5 fours
    assert result.bleu == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** (1 / 4))
    assert result.bleu > score(hypothesis, reference, settings("tokenized")).bleu
    assert "tok:13a+compound-split|smooth:none" in result.bleu_signature


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


@pytest.mark.parametrize("language", ["zh", "zh-CN"])
def test_chinese_is_counted_in_characters(language):
    hypothesis, reference = ["打开这个新的文件"], ["打开那个新的文件"]
    assert score(hypothesis, reference, settings("tokenized")).bleu == 0
    for kind in ("sacrebleu", "tokenized", "compound-split"):
        result = score(hypothesis, reference, settings(kind), language=language)
        assert result.bleu > 30
        assert "tok:zh" in result.bleu_signature
    assert "tok:char" in score(hypothesis, reference, settings(), language="ja").bleu_signature
    assert "tok:13a" in score(hypothesis, reference, settings(), language="fr").bleu_signature


# --- comparison -------------------------------------------------------------------------------


def test_a_clearly_worse_and_an_equally_good_system():
    systems = {"worse": damaged(0.4, seed=1), "like": damaged(0.2, seed=2)}
    baseline = damaged(0.2)
    found = {
        name: compare_bleu(baseline, hypotheses, REFERENCES, settings())
        for name, hypotheses in systems.items()
    }
    assert found["worse"][1] < 0.01 and found["like"][1] > 0.05
    for name, hypotheses in systems.items():
        here, there = (score(h, REFERENCES, settings()) for h in (hypotheses, baseline))
        assert found[name][0] == pytest.approx(here.bleu - there.bleu)
    assert found["worse"][0] < -10


def test_the_baseline_does_not_differ_from_itself():
    baseline = damaged(0.2)
    assert compare_bleu(baseline, baseline, REFERENCES, settings()) == (0.0, 1.0)


def test_a_comparison_is_repeatable_and_takes_the_chosen_bleu():
    arguments = damaged(0.2), damaged(0.25, seed=3), REFERENCES
    one, again, other_seed, split = (
        compare_bleu(*arguments, settings(kind), num_bootstrap=200, seed=seed)
        for kind, seed in (
            ("sacrebleu", 1),
            ("sacrebleu", 1),
            ("sacrebleu", 2),
            ("compound-split", 1),
        )
    )
    assert one == again
    assert one[0] == other_seed[0] != split[0]
    assert one[1] != other_seed[1]


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hypotheses", "references", "options", "message"),
    [
        (["a"], ["a", "b"], {}, "hypotheses has 1 texts, expected 2"),
        ([], [], {}, "references is empty"),
        (["a"], ["a"], {"num_bootstrap": 1}, "num_bootstrap is 1, expected at least 2"),
        (["a"], ["a"], {"seed": 0}, "seed is 0, expected at least 1"),
    ],
)
def test_wrong_arguments(hypotheses, references, options, message):
    with pytest.raises(ValueError, match=message):
        score(hypotheses, references, settings(), **options)
    with pytest.raises(ValueError, match=message):
        compare_bleu(hypotheses, hypotheses, references, settings(), **options)


def test_a_system_with_too_few_translations_is_an_error():
    with pytest.raises(ValueError, match="hypotheses has 1 texts, expected 60"):
        compare_bleu(REFERENCES, ["a"], REFERENCES, settings())


def test_scores_are_finite_for_a_single_sentence():
    result = score(["one"], ["one two"], settings(), num_bootstrap=2)
    assert all(map(math.isfinite, (*result.bleu_interval, *result.chrf_interval)))


def test_chrf_of_a_system_that_matches_next_to_nothing():
    # Some resamples hold the one sentence with a match, others none.
    hypotheses = ["zzzz"] * 19 + ["a cat"]
    scored = score(hypotheses, ["the dog runs"] * 19 + ["a cat"], TranslationEvaluation())
    assert 0 < scored.chrf < 5
