"""`generate()`: through the cache as without it, in batches as one by one."""

import pytest
import tiny
import torch
from tiny import END, MOA, PAD, PLANS, START, VOCABULARY, WITH_GATES, config, padded, tokens

from headwise import AttentionCache
from headwise.models.cache import DecodingCache

STEPS = 8


def model(plan="standard", **options):
    """With shared embeddings a fresh model would mostly repeat its last token."""
    return tiny.model(plan, share_embeddings="none", **options)


def generate(made, source, mask=None, repeats=False, **options):
    """Sequences in which no token comes twice, unless `repeats`: fresh models like a token most."""
    if not repeats:
        options["no_repeat_ngram_size"] = 1
    return made.generate(
        source,
        attention_mask=mask,
        max_new_tokens=STEPS,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@pytest.mark.parametrize("plan", PLANS)
def test_decoding_step_by_step_equals_decoding_at_once(plan):
    made = model(PLANS[plan])
    source, mask = padded([6, 3], 6)
    target = tokens(2, 7)
    at_once = made(input_ids=source, attention_mask=mask, decoder_input_ids=target)
    assert at_once.cache is None
    for chunks in ([1] * 7, [3, 1, 3]):
        cache, logits, start = None, [], 0
        for length in chunks:
            out = made(
                input_ids=source,
                attention_mask=mask,
                decoder_input_ids=target[:, start : start + length],
                cache=cache,
                use_cache=True,
            )
            cache, start = out.cache, start + length
            logits.append(out.logits)
            assert cache.get_seq_length() == start
        torch.testing.assert_close(torch.cat(logits, 1), at_once.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_beams": 3, "length_penalty": 0.0}])
@pytest.mark.parametrize("plan", PLANS)
def test_generating_with_the_cache_equals_generating_without(plan, options):
    made = model(PLANS[plan])
    source, mask = padded([6, 3, 5], 6)
    cached = generate(made, source, mask, use_cache=True, **options)
    plain = generate(made, source, mask, use_cache=False, **options)
    assert torch.equal(cached.sequences, plain.sequences)
    assert (cached.sequences[:, 0] == START).all()
    for a, b in zip(cached.scores, plain.scores, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    if options:
        torch.testing.assert_close(
            cached.sequences_scores, plain.sequences_scores, rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("plan", PLANS)
def test_beams_change_places_and_their_memory_with_them(plan, monkeypatch):
    """What the test above relies on: beams do reorder, and where the state of gates stays behind
    while keys and values move, other scores come out.
    """
    moves = []
    reorder = DecodingCache.reorder_cache

    def watch(self, beam_idx):
        moves.append(beam_idx.tolist())
        reorder(self, beam_idx)

    monkeypatch.setattr(DecodingCache, "reorder_cache", watch)
    made = model(PLANS[plan])
    source = tokens(3, 6)
    right = generate(made, source, num_beams=4)
    assert sum(move != sorted(move) or len(set(move)) < len(move) for move in moves) > 3

    def forgetful(self, beam_idx):
        memory, self.memory = self.memory, {}
        self._each(lambda x: x.index_select(0, beam_idx))
        self.memory = memory

    monkeypatch.setattr(AttentionCache, "reorder_cache", forgetful)
    wrong = generate(made, source, num_beams=4)
    same = [torch.equal(a, b) for a, b in zip(right.scores, wrong.scores, strict=True)]
    assert all(same) == (plan not in WITH_GATES)
    assert not any(same[2:]) or all(same)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("plan", PLANS)
def test_a_padded_batch_equals_one_by_one(plan, num_beams):
    made = model(PLANS[plan])
    lengths = [6, 2, 4]
    source, mask = padded(lengths, 6)
    together = generate(made, source, mask, num_beams=num_beams).sequences
    for b, length in enumerate(lengths):
        alone = generate(made, source[b : b + 1, :length], num_beams=num_beams).sequences[0]
        assert torch.equal(together[b, : len(alone)], alone)
        # Greedy search fills up with padding, beam search with the end token, padding being 0.
        assert torch.isin(together[b, len(alone) :], torch.tensor([PAD, END])).all()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_learned_positions_in_a_padded_batch_with_and_without_the_cache(num_beams):
    learned = {"positions": "learned", "max_positions": STEPS, "ffn_activation": "gelu"}
    made = model("weighted", **learned)
    source, mask = padded([6, 2], 6)
    cached = generate(made, source, mask, num_beams=num_beams)
    plain = generate(made, source, mask, num_beams=num_beams, use_cache=False)
    assert torch.equal(cached.sequences, plain.sequences)
    alone = generate(made, source[1:, :2], num_beams=num_beams).sequences[0]
    assert torch.equal(cached.sequences[1, : len(alone)], alone)
    with pytest.raises(ValueError, match="a sequence has 9 tokens, expected at most 8"):
        generate(made, tokens(1, 9), num_beams=num_beams)


@pytest.mark.parametrize("plan", PLANS)
def test_a_prompt_is_continued(plan):
    """Several target tokens at once fill the cache, then one by one."""
    made = model(PLANS[plan])
    source = tokens(2, 5)
    whole = generate(made, source, suppress_tokens=[END]).sequences
    prompt = whole[:, :4]
    again = generate(made, source, decoder_input_ids=prompt, suppress_tokens=[END]).sequences
    assert torch.equal(again[:, : STEPS + 1], whole)


def test_greedy_takes_the_likeliest_token():
    made = model("mae")
    source = tokens(1, 5)
    sequence = generate(made, source, repeats=True).sequences
    logits = made(input_ids=source, decoder_input_ids=sequence[:, :-1]).logits
    assert torch.equal(logits.argmax(-1), sequence[:, 1:])


def test_beam_search_finds_what_is_likelier_than_greedy():
    made = model("mae")
    source = tokens(4, 5)

    def likelihood(sequences):
        logits = made(input_ids=source, decoder_input_ids=sequences[:, :-1]).logits
        chosen = logits.log_softmax(-1).gather(-1, sequences[:, 1:].unsqueeze(-1)).squeeze(-1)
        return chosen.sum(-1)

    fixed = {"min_new_tokens": STEPS, "length_penalty": 0.0, "repeats": True}
    greedy = likelihood(generate(made, source, **fixed).sequences)
    beams = likelihood(generate(made, source, num_beams=8, **fixed).sequences)
    assert (beams > greedy - 1e-4).sum() >= 3
    assert beams.sum() > greedy.sum()


def test_generation_stops_at_the_end_token_and_pads_behind_it():
    made = model()
    made.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY, 16))
    with torch.no_grad():
        made.lm_head.weight[END] = 1.0
        made.decoder.layers[-1].feed_forward_residual.norm.bias.fill_(5.0)
    assert generate(made, tokens(2, 3)).sequences.tolist() == [[START, END]] * 2


def test_sampling_follows_its_seed():
    made = model(PLANS["mixed"])
    source = tokens(2, 5)
    sequences = []
    for _ in range(2):
        torch.manual_seed(4)
        sequences.append(generate(made, source, do_sample=True).sequences)
    assert torch.equal(*sequences)


def test_the_longest_output_is_the_models():
    made = model(max_target_length=5)
    out = made.generate(tokens(1, 3), min_length=5)
    assert out.shape[1] == 5
    assert config().max_target_length == 256


def test_moas_cache_is_one_head_wide():
    made = model({"decoder_self": MOA, "decoder_cross": MOA})
    cache = made(input_ids=tokens(2, 5), decoder_input_ids=tokens(2, 3), use_cache=True).cache
    assert all(each.keys.shape == (2, 1, 3, 4) for each in cache.self_attention)
    assert all(each.keys.shape == (2, 1, 5, 4) for each in cache.cross_attention)
