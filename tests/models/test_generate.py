"""`generate()` of all systems is what a plain loop over whole passes finds, however it searches."""

import pytest
import torch
from support.tiny_models import END, MODERN, PAD, PLANS, START, model, tokens

STEPS = 6
# Models of their own output embeddings: with shared ones they mostly repeat their last token.
MODELS = {
    "causal": ("causal", {"share_embeddings": False}),
    "causal, modern": ("causal", {"share_embeddings": False, **MODERN}),
    "seq2seq": ("seq2seq", {"share_embeddings": "none"}),
}
every_model = pytest.mark.parametrize("name", MODELS)
every_system = pytest.mark.parametrize("system", PLANS)


def build(name, system, **options):
    kind, defaults = MODELS[name]
    return model(kind, system, **{**defaults, **options})


def prompts(name, lengths, seed=0):
    """Prompts without padding, the batch of them, and its mask: padded left, and sources right."""
    texts = [tokens(length, seed=seed + length) for length in lengths]
    ids, mask = torch.full((2, len(lengths), max(lengths)), PAD)
    for row, text in enumerate(texts):
        columns = slice(len(text)) if name == "seq2seq" else slice(-len(text), None)
        ids[row, columns], mask[row, columns] = text, 1
    return texts, {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def compute_logits(net, name, text, written):
    """Logits of the tokens that were written behind a prompt, from one pass over all of them."""
    written = torch.tensor([written], dtype=torch.long)
    if name == "seq2seq":
        targets = torch.cat([torch.tensor([[START]]), written], 1)
        return net(input_ids=text[None], decoder_input_ids=targets).logits[0]
    return net(input_ids=torch.cat([text[None], written], 1)).logits[0, len(text) - 1 :]


def greedy(net, name, text, end=END, steps=STEPS):
    """The oracle: each token is the likeliest one of a whole pass over all before it."""
    written = []
    while len(written) < steps and end not in written:
        written.append(int(compute_logits(net, name, text, written)[-1].argmax()))
    return written


def search(net, inputs, **options):
    options = {"max_new_tokens": STEPS, "do_sample": False, **options}
    return net.generate(**inputs, **options, return_dict_in_generate=True, output_logits=True)


def written_in(out, name, texts):
    """The tokens behind the prompt, row by row."""
    first = 1 if name == "seq2seq" else max(map(len, texts))
    return [row[first:].tolist() for row in out.sequences]


@every_model
@every_system
def test_greedy_search_is_a_plain_loop(name, system):
    """Also beside prompts of other lengths, with a cache and without, and the logits are those."""
    net = build(name, system)
    texts, inputs = prompts(name, [4, 1, 3])
    expected = [greedy(net, name, text) for text in texts]
    for use_cache in (True, False):
        out = search(net, inputs, use_cache=use_cache)
        rows = written_in(out, name, texts)
        for row, (written, greedy_tokens) in enumerate(zip(rows, expected, strict=True)):
            assert written == greedy_tokens + [PAD] * (len(written) - len(greedy_tokens))
            steps = torch.stack([step[row] for step in out.logits[: len(greedy_tokens)]])
            whole = compute_logits(net, name, texts[row], greedy_tokens[:-1])
            torch.testing.assert_close(steps.double(), whole, rtol=1e-5, atol=1e-5)


@every_model
@every_system
def test_beam_search_is_the_same_with_a_cache_and_without(name, system):
    """With a cache it finds what it finds without, for a prompt alone and in a padded batch.

    The score of what is found is the sum of its log-probabilities in a whole pass.
    """
    net, beams = build(name, system), {"num_beams": 3, "length_penalty": 0.0}
    texts, inputs = prompts(name, [4, 2])
    out = search(net, inputs, **beams, output_scores=True)
    plain = search(net, inputs, **beams, output_scores=True, use_cache=False)
    assert torch.equal(out.sequences, plain.sequences)
    for row, written in enumerate(written_in(out, name, texts)):
        written = written[: written.index(END) + 1] if END in written else written
        log_p = compute_logits(net, name, texts[row], written[:-1]).log_softmax(-1)
        score = log_p[torch.arange(len(written)), written].sum()
        torch.testing.assert_close(out.sequences_scores[row].double(), score, rtol=1e-4, atol=1e-4)
        alone = search(net, {"input_ids": texts[row][None]}, **beams)
        (written_alone,) = written_in(alone, name, [texts[row]])
        assert written_alone[: len(written)] == written


@pytest.mark.parametrize("system", PLANS)
def test_a_dialogue_goes_on_from_its_cache(system):
    """What was generated, its cache, and more tokens: as all of the text at once."""
    net = build("causal", system)
    text = tokens(1, 3)
    out = search(net, {"input_ids": text}, max_new_tokens=4, eos_token_id=None)
    longer = torch.cat([out.sequences, tokens(1, 2, seed=5)], 1)
    cached = search(net, {"input_ids": longer}, cache=out.cache)
    assert torch.equal(cached.sequences, search(net, {"input_ids": longer}).sequences)


@every_model
def test_what_takes_tokens_back_is_refused(name):
    """No memory of a system can go back."""
    _, inputs = prompts(name, [4])
    with pytest.raises(ValueError, match="Assisted decoding"):
        search(build(name, "mae"), inputs, prompt_lookup_num_tokens=2)


def test_padding_takes_no_learned_position():
    """Nothing reads the token that is written last, so that it needs none either."""
    room = {"positions": "learned", "max_positions": 4 + STEPS - 1}
    net = build("causal", "mae", **room)
    texts, inputs = prompts("causal", [4, 1, 3])
    for use_cache in (True, False):
        found = written_in(
            search(net, inputs, use_cache=use_cache, eos_token_id=None), "causal", texts
        )
        assert found == [greedy(net, "causal", text, end=None) for text in texts]
        with pytest.raises(ValueError) as error:
            too_long = {"max_new_tokens": STEPS + 1, "eos_token_id": None}
            search(net, inputs, use_cache=use_cache, **too_long)
        assert "max_positions" in str(error.value) and str(4 + STEPS - 1) in str(error.value)
