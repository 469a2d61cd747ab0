"""The language model: its labels, its positions, what it generates."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tiny import PAD, PLANS, VOCABULARY, strengthen, tokens

import headwise as hw

SIZES = {"vocab_size": VOCABULARY, "embed_dim": 16, "num_heads": 4, "ffn_dim": 24, "layers": 2}
# What the plans of the encoder-decoder have for a decoder by itself.
DECODER = {
    name: {"decoder_self": plan["decoder_self"]}
    if isinstance(plan, dict) and "decoder_self" in plan
    else plan
    for name, plan in PLANS.items()
}
ADAPTIVE = {"adaptive_cutoffs": [6, 12], "share_embeddings": True}
STEPS = 6


def model(plan="standard", **options):
    """In evaluation; with shared embeddings a fresh model would mostly repeat its last token."""
    torch.manual_seed(0)
    given = {"dropout": 0.0, "share_embeddings": False, **options}
    made = hw.CausalLM(hw.CausalLMConfig(attention=plan, **SIZES, **given))
    strengthen(made)
    return made.eval()


def left_padded(lengths, time):
    """Tokens with padding before them, and their attention mask."""
    mask = torch.arange(time - 1, -1, -1) < torch.tensor(lengths).unsqueeze(1)
    return tokens(len(lengths), time).masked_fill(~mask, PAD), mask.long()


def generate(made, prompt, mask=None, **options):
    return made.generate(
        prompt,
        attention_mask=mask,
        max_length=prompt.size(1) + STEPS,
        suppress_tokens=[PAD],
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


# Labels


@pytest.mark.parametrize("options", [{}, ADAPTIVE])
def test_labels_are_the_tokens_one_place_on(options):
    made, ids = model("mae", **options), tokens(3, 6)
    labels = ids.clone()
    labels[0, 4:] = labels[1, :3] = -100
    log_p = made(input_ids=ids).logits.log_softmax(-1)
    terms = [
        -log_p[b, t, labels[b, t + 1]] for b in range(3) for t in range(5) if labels[b, t + 1] >= 0
    ]
    out = made(input_ids=ids, labels=labels)
    torch.testing.assert_close(out.token_loss, torch.stack(terms).mean())
    labels[:, 0] = -100  # as a batch should be made
    torch.testing.assert_close(made(input_ids=ids, labels=labels).token_loss, out.token_loss)
    assert (labels != -100).sum() == len(terms)


def test_labels_are_smoothed_in_training_only():
    made, ids = model(label_smoothing=0.3), tokens(2, 5)
    logits, labels = made(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
    plain = made(input_ids=ids, labels=ids).token_loss
    torch.testing.assert_close(plain, F.cross_entropy(logits, labels))
    smooth = made.train()(input_ids=ids, labels=ids).token_loss
    torch.testing.assert_close(smooth, F.cross_entropy(logits, labels, label_smoothing=0.3))


def test_an_adaptive_softmax_makes_no_logits_for_its_loss(monkeypatch):
    made, ids = model(**ADAPTIVE), tokens(2, 5)
    widest = 0
    linear = F.linear

    def watch(x, weight, bias=None):
        nonlocal widest
        widest = max(widest, weight.size(0) if x.size(-1) == 16 and x.dim() == 2 else 0)
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", watch)
    without = made(input_ids=ids, labels=ids, all_logits=False)
    assert without.logits is None
    assert 0 < widest < VOCABULARY
    out = made(input_ids=ids, labels=ids)  # in evaluation
    assert torch.equal(out.logits, made(input_ids=ids).logits)
    assert torch.equal(out.loss, without.loss)
    assert made.train()(input_ids=ids, labels=ids).logits is None


def test_logits_of_the_last_positions():
    for options in ({}, ADAPTIVE):
        made, ids = model(**options), tokens(2, 5)
        everything = made(input_ids=ids).logits
        last = made(input_ids=ids, logits_to_keep=2).logits
        torch.testing.assert_close(last, everything[:, -2:])
        chosen = torch.tensor([0, 3])
        some = made(input_ids=ids, logits_to_keep=chosen).logits
        torch.testing.assert_close(some, everything[:, chosen])
        for keep in (2, chosen):
            with pytest.raises(ValueError, match=r"logits_to_keep is .* and labels are given"):
                made(input_ids=ids, labels=ids, logits_to_keep=keep)


@torch.no_grad()
def test_labels_that_do_not_fit_leave_the_cache_as_it_is():
    made, ids = model(), tokens(2, 5)
    cache = made.new_cache()
    made(input_ids=ids[:, :4], cache=cache)
    with pytest.raises(ValueError, match="labels"):
        made(input_ids=ids[:, 4:], cache=cache, labels=torch.full((2, 1), VOCABULARY))
    step = made(input_ids=ids[:, 4:], cache=cache).logits
    torch.testing.assert_close(step, made(input_ids=ids).logits[:, 4:])


# Positions and padding


# Generation


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_learned_positions_are_those_of_tokens_and_have_an_end(options):
    made = model("mae", positions="learned", max_positions=4 + STEPS - 1)
    prompt, mask = left_padded([4, 1, 3], 4)
    cached = generate(made, prompt, mask, use_cache=True, **options)
    plain = generate(made, prompt, mask, use_cache=False, **options)
    assert torch.equal(cached.sequences, plain.sequences)
    # Nothing reads the last token that is written, so it needs no position.
    shorter = model("mae", positions="learned", max_positions=4 + STEPS - 2)
    for use_cache in (True, False):
        with pytest.raises(ValueError, match=r"expected at most 8: .* \(max_positions\)"):
            generate(shorter, prompt, mask, use_cache=use_cache, min_new_tokens=STEPS, **options)


def test_only_two_lengths_of_the_callers_are_worth_a_warning(monkeypatch):
    made, said = model(), []
    monkeypatch.setattr("transformers.generation.utils.logger.warning", said.append)
    assert made.generate(tokens(1, 3), max_new_tokens=4, min_new_tokens=4).shape == (1, 7)
    assert said == []
    made.generate(tokens(1, 3), max_new_tokens=4, max_length=9)
    assert len(said) == 1


# The Hugging Face model


def test_embeddings_are_shared_or_not():
    shared, own = model(share_embeddings=True), model()
    assert shared.lm_head.weight is shared.decoder.embedding.weight
    assert own.lm_head.weight is not own.decoder.embedding.weight
    twin = copy.deepcopy(shared)
    assert twin.lm_head.weight is twin.decoder.embedding.weight


def test_words_can_be_added_but_not_to_bands():
    made = model(share_embeddings=True)
    made.resize_token_embeddings(VOCABULARY + 2)
    assert made(input_ids=tokens(1, 3)).logits.shape == (1, 3, VOCABULARY + 2)
    with pytest.raises(ValueError, match=r"adaptive_cutoffs is \[6, 12\], expected None"):
        model(**ADAPTIVE).resize_token_embeddings(VOCABULARY + 2)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"adaptive_cutoffs": [30]}, ["adaptive_cutoffs is [30]", "vocab_size = 23"]),
        ({"adaptive_cutoffs": [9], "share_embeddings": False}, ["share_embeddings is False"]),
        ({"adaptive_cutoffs": [9], "label_smoothing": 0.1}, ["label_smoothing is 0.1"]),
    ],
)
def test_settings_that_do_not_fit_are_errors(options, parts):
    with pytest.raises(ValueError) as error:
        hw.CausalLMConfig(**{**SIZES, **options})
    assert all(part in str(error.value) for part in parts)
