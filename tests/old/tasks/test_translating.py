"""Translating lists of texts: order, empty lines, batches, limits."""

import pytest
import torch
from rich.console import Console

from headwise.data.pairs.corpus import Pair
from headwise.data.tokenizers.settings import TokenizerSettings
from headwise.data.tokenizers.tokenization import TranslationTokenizer
from headwise.models.seq2seq import Seq2SeqLM, Seq2SeqLMConfig
from headwise.runs.evaluating import as_evaluated
from headwise.tasks.bleu import TranslationEvaluation
from headwise.tasks.translating import translate

SHORT = TranslationEvaluation(beam_size=2, max_length_extra=4)
TEXTS = ["open the file", "", "it", "close the window and open the file", "  \t", "it", "the"]


@pytest.fixture(scope="module")
def tokenizer():
    pairs = [Pair(text, text) for text in ("open the file", "close the window and open it")] * 3
    return TranslationTokenizer.train(pairs, TokenizerSettings(vocab_size=290))


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(2)
    network = Seq2SeqLM(
        Seq2SeqLMConfig(
            vocab_size=tokenizer.source.vocab_size,
            embed_dim=16,
            num_heads=4,
            ffn_dim=16,
            encoder_layers=1,
            decoder_layers=1,
            attention={"encoder_self": "mae", "decoder_self": "mae"},
        )
    )
    return network.double()  # so that padding cannot tip a search


@pytest.fixture
def generated(model, monkeypatch):
    """The arguments of each call of generate()."""
    calls = []
    generate = Seq2SeqLM.generate

    def spy(self, input_ids, **options):
        calls.append({"input_ids": input_ids, **options})
        return generate(self, input_ids, **options)

    monkeypatch.setattr(Seq2SeqLM, "generate", spy)
    return calls


@pytest.mark.parametrize("beam_size", [1, 2, 3])
def test_each_text_gets_its_own_translation_in_order(model, tokenizer, beam_size):
    settings = SHORT.model_copy(update={"beam_size": beam_size})
    together = translate(model, tokenizer, TEXTS, settings)
    alone = [translate(model, tokenizer, [text], settings)[0] for text in TEXTS]
    assert together == alone
    assert len(set(together)) >= 3  # sources are told apart


def test_empty_texts_stay_empty_and_are_not_searched(model, tokenizer, generated):
    translated = translate(model, tokenizer, TEXTS, SHORT)
    assert [i for i, text in enumerate(translated) if not text] == [1, 4]
    assert sum(len(call["input_ids"]) for call in generated) == 5


def test_batches_stay_within_the_budget_over_all_beams(model, tokenizer, generated):
    texts = TEXTS * 4
    whole = translate(model, tokenizer, texts, SHORT)
    assert len(generated) == 1
    generated.clear()
    longest = max(len(ids) for ids in tokenizer.source.encode(texts))
    budget = 2 * 2 * longest  # two beams of two of the longest
    assert translate(model, tokenizer, texts, SHORT, batch_tokens=budget) == whole
    assert len(generated) > 2
    for call in generated:
        assert call["input_ids"].numel() * call["num_beams"] <= budget


def test_settings_reach_the_search(model, tokenizer, generated):
    settings = TranslationEvaluation(
        beam_size=3, length_penalty=0.6, max_length_ratio=2, max_length_extra=1
    )
    translate(model, tokenizer, ["it"], settings)
    (call,) = generated
    source = len(tokenizer.source.encode(["it"])[0])
    assert (call["num_beams"], call["length_penalty"]) == (3, 0.6)
    assert call["max_length"] == 2 * source + 1 + 1  # the start token is one more
    assert call["do_sample"] is False


def test_a_translation_has_no_more_subwords_than_allowed(model, tokenizer, monkeypatch):
    lengths = []
    decode = TranslationTokenizer.decode_target
    monkeypatch.setattr(
        TranslationTokenizer,
        "decode_target",
        lambda self, rows: lengths.extend(map(len, rows)) or decode(self, rows),
    )
    settings = TranslationEvaluation(beam_size=1, max_length_ratio=0, max_length_extra=3)
    translate(model, tokenizer, ["open the file"], settings)
    assert lengths == [3]


def test_a_text_beyond_the_learned_positions_is_named(model, tokenizer, monkeypatch):
    monkeypatch.setattr(model.config, "max_positions", 10)
    with pytest.raises(ValueError, match=r"texts has 'close the window and .*' of \d+ tokens"):
        translate(model, tokenizer, ["the", "close the window and open the file " * 5], SHORT)


def test_line_breaks_within_a_translation_become_spaces(model, tokenizer, monkeypatch):
    monkeypatch.setattr(
        TranslationTokenizer, "decode_target", lambda _, rows: ["ouvrir\nle\r\nfichier\u2028\r"]
    )
    assert translate(model, tokenizer, ["open"], SHORT) == ["ouvrir le fichier "]


def test_progress_adds_up_to_all_texts(model, tokenizer):
    steps = []
    translate(model, tokenizer, TEXTS, SHORT, batch_tokens=40, advance=steps.append)
    assert steps[0] == 2  # the empty ones
    assert sum(steps) == len(TEXTS)
    assert len(steps) > 2


def test_separate_vocabularies_do_not_get_mixed_up():
    pairs = [Pair("aa bb", "cc dd"), Pair("bb", "dd")] * 3
    settings = TokenizerSettings(joint=False, source_vocab_size=262, target_vocab_size=264)
    tokenizer = TranslationTokenizer.train(pairs, settings)
    network = Seq2SeqLM(
        Seq2SeqLMConfig(
            vocab_size=tokenizer.source.vocab_size,
            target_vocab_size=tokenizer.target.vocab_size,
            share_embeddings="target",
            embed_dim=8,
            num_heads=2,
            ffn_dim=8,
            encoder_layers=1,
            decoder_layers=1,
        )
    )
    last = tokenizer.target.encode(["dd"])[0][0]
    with torch.no_grad():  # a model that always says the same subword
        network.lm_head.weight.zero_()
        network.decoder.layers[0].feed_forward_residual.norm.weight.zero_()
        network.decoder.layers[0].feed_forward_residual.norm.bias.fill_(1.0)
        network.lm_head.weight[last] = 1.0
    word = tokenizer.decode_target([[last]])[0]
    settings = TranslationEvaluation(beam_size=1, max_length_ratio=0, max_length_extra=2)
    assert translate(network, tokenizer, ["aa"], settings) == [
        tokenizer.decode_target([[last, last]])[0]
    ]
    assert word


def test_branches_are_weighed_as_told_and_only_while_asked(tokenizer):
    torch.manual_seed(3)
    sizes = {"embed_dim": 16, "num_heads": 4, "ffn_dim": 16}
    config = Seq2SeqLMConfig(
        vocab_size=tokenizer.source.vocab_size,
        encoder_layers=1,
        decoder_layers=1,
        attention={"system": "weighted", "start": "random"},
        **sizes,
    )
    network = Seq2SeqLM(config).double()
    layer = network.encoder.layers[0].self_attention
    seen = []
    layer.register_forward_hook(lambda module, args, out: seen.append(out.routing.weights.tolist()))
    uniform = SHORT.model_copy(update={"ablation": {"weighted": "uniform"}})
    top = SHORT.model_copy(update={"ablation": {"weighted": {"name": "top-k", "top_k": 1}}})
    for settings in (SHORT, uniform, top):
        with as_evaluated(network, settings, Console(quiet=True), "weighted"):
            translate(network, tokenizer, ["open the file"], settings)
    learned = layer.alpha.tolist()
    largest = [float(a == max(learned)) for a in learned]
    assert seen == [learned, [0.25] * 4, largest]
    assert layer.branch_weights()[1].tolist() == learned
