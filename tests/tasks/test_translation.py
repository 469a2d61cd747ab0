"""Translation: which pairs are taken, how translations are searched for, and kinds of BLEU."""

import pytest
import torch
from sacrebleu.metrics import BLEU
from support.road import in_each_part, road

from headwise.data.load import DataError, pick_columns
from headwise.models.text import Seq2SeqLM
from headwise.tasks import translation
from headwise.tasks.task import PredictRequest
from headwise.tasks.translation import TranslationEvaluation, bleu_and_chrf, split_compounds

PAIRS = [(f"open the file {n}", f"ouvrir le fichier {n}") for n in ("one", "two", "three")] * 4
TEXTS = ["open the file", "", "it", "close the window and open the file", " \t", "it", "the"]
SHORT = TranslationEvaluation(beam_size=2, max_length_extra=4)
MODEL = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16, "attention": {"decoder_self": "mae"}}
MODEL |= {"encoder_layers": 1, "decoder_layers": 1}


def pairs(rows=PAIRS, **recipe):
    return road("translation", "files", in_each_part(rows), **recipe)


@pytest.fixture(scope="module")
def corpus():
    return pairs(model=MODEL, evaluation={"beam_size": 3, "length_penalty": 0.6})


@pytest.fixture(scope="module")
def model(corpus):
    torch.manual_seed(2)
    return corpus.model().eval().double()  # so that padding cannot tip a search


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each call of generate()."""
    arguments, generate = [], Seq2SeqLM.generate

    def spy(self, **kwargs):
        arguments.append(kwargs)
        return generate(self, **kwargs)

    monkeypatch.setattr(Seq2SeqLM, "generate", spy)
    return arguments


def translated(corpus, model, texts, evaluation=SHORT):
    task = corpus.task
    return translation.translate(model, task.source, task.target, texts, evaluation)


# --- search -----------------------------------------------------------------------------------


@pytest.mark.parametrize("beams", [1, 3])
def test_each_text_gets_its_own_translation_in_order(corpus, model, beams):
    search = SHORT.model_copy(update={"beam_size": beams})
    together = translated(corpus, model, TEXTS, search)
    assert together == [translated(corpus, model, [text], search)[0] for text in TEXTS]
    assert together[1] == together[4] == "" and len(set(together)) >= 3
    broken = "open\r the\u2028file"  # what others take for the end of a line
    assert translated(corpus, model, [broken, "it"], search) == [together[0], together[2]]


def test_batches_stay_within_the_budget_over_all_beams(corpus, model, calls, monkeypatch):
    whole = translated(corpus, model, TEXTS)
    longest = calls[0]["input_ids"].size(1)
    assert len(calls) == 1 and len(calls[0]["input_ids"]) == 4  # different texts that are not empty
    tokens = 2 * 2 * longest  # beams, and texts of a batch
    monkeypatch.setattr(translation, "_SEARCH_TOKENS", tokens)
    assert translated(corpus, model, TEXTS) == whole and len(calls) > 2
    assert all(call["input_ids"].numel() <= 2 * longest for call in calls[1:])


def test_separate_vocabularies_are_not_mixed_up(tmp_path):
    vocabularies = {"joint": False, "vocab_size": 262, "target_vocab_size": 264}
    corpus = pairs(tokenizer=vocabularies)
    network = corpus.model().eval()
    assert (network.config.vocab_size, network.config.target_vocab_size) == (262, 264)
    (*_, last, _) = corpus.task.target("fichier")["input_ids"]
    with torch.no_grad():  # a model that always writes the same token
        network.lm_head.weight.zero_()[last] = 1.0
        for norm in (layer.feed_forward_residual.norm for layer in network.decoder.layers):
            norm.weight.zero_()
            norm.bias.fill_(1.0)
    corpus.task.save(tmp_path)
    evaluation = TranslationEvaluation(max_length_extra=2)
    recipe = corpus.recipe.model_copy(update={"evaluation": evaluation})
    request = PredictRequest(texts=["open\nit", ""])
    outputs = list(corpus.task.predict(tmp_path, recipe, network, request))
    number = 2 + len(corpus.task.source("open it")["input_ids"])
    assert outputs == [corpus.task.target.decode([last] * number).strip(), ""]


# --- BLEU -------------------------------------------------------------------------------------


def test_compounds_are_split_on_both_sides_after_tokenising():
    """Half a compound right counts: 7 of 8 pieces, 5 of 7 pairs, 4 of 6 triples, 3 of 5 fours."""
    bleu = {"smooth_method": "none", "force": True, "split_compounds": True}
    score, _ = bleu_and_chrf(["a b c d Hund-Katze."], ["a b c d Hund-Maus."], bleu)
    assert score.value == pytest.approx(100 * (7 / 8 * 5 / 7 * 4 / 6 * 3 / 5) ** (1 / 4))
    assert "tok:13a+compound-split|smooth:none" in score.note
    assert split_compounds("- a -b c- 1-2-3") == "- a -b c- 1 ##AT##-##AT## 2-3"


@pytest.mark.parametrize(
    "options",
    [
        {"max_ngram_order": 2},
        {"effective_order": True},
        {"smooth_method": "floor", "smooth_value": 0.3, "lowercase": True},
    ],
)
def test_options_of_bleu_are_those_of_sacrebleu(options):
    score, _ = bleu_and_chrf(["The cat"], ["the cat"], options)
    expected = BLEU(**options).corpus_score(["The cat"], [["the cat"]])
    assert score.value == pytest.approx(expected.score) and score.low == pytest.approx(score.value)


def test_what_sacrebleu_lacks_is_told_before_training():
    for language, tokenizer in (("zh_CN", "zh"), ("ja", "char"), ("fr", "13a"), (None, "13a")):
        assert f"tok:{tokenizer}|" in bleu_and_chrf(["a"], ["a"], {}, language)[0].note
    with pytest.raises(ValueError, match=r"(?s)'ko-mecab'.*pip install"):
        pairs(evaluation={"bleu": {"tokenize": "ko-mecab"}})
    with pytest.raises(ValueError, match=r"evaluation.bleu is .*unexpected.*'case'"):
        pairs(evaluation={"bleu": {"case": "lower"}})
    with pytest.raises(ValueError, match=r"evaluation.bleu is .*'max_ngram_order': '2'"):
        pairs(evaluation={"bleu": {"max_ngram_order": "2"}})


# --- pairs ------------------------------------------------------------------------------------


def test_only_pairs_to_train_on_are_filtered():
    long = [("a", "c d e"), ("a b c d", "e f g h")]
    corpus = pairs([*long, ("", "c"), ("a\u2028 b ", " c")], data={"max_length": 3, "max_ratio": 2})
    assert corpus.rows("train") == [("a b", "c")]
    assert corpus.rows("test") == [*long, ("a b", "c")]
    columns, task = {"source": [[1]], "target": ["a"]}, corpus.task
    with pytest.raises(DataError, match=r"'source' holds \[1\], expected texts"):
        pick_columns(columns, task.columns, columns, task.column_types)
