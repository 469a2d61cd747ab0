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
    kind, own = MODELS[name]
    return model(kind, system, **{**own, **options})


def prompts(name, lengths, seed=0):
    """Prompts without padding, the batch of them, and its mask: padded left, and sources right."""
    texts = [tokens(length, seed=seed + length) for length in lengths]
    ids, mask = torch.full((2, len(lengths), max(lengths)), PAD)
    for row, text in enumerate(texts):
        where = slice(len(text)) if name == "seq2seq" else slice(-len(text), None)
        ids[row, where], mask[row, where] = text, 1
    return texts, {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def logits_of(made, name, text, written):
    """Logits of the tokens that were written behind a prompt, from one pass over all of them."""
    written = torch.tensor([written], dtype=torch.long)
    if name == "seq2seq":
        read = torch.cat([torch.tensor([[START]]), written], 1)
        return made(input_ids=text[None], decoder_input_ids=read).logits[0]
    return made(input_ids=torch.cat([text[None], written], 1)).logits[0, len(text) - 1 :]


def greedy(made, name, text, end=END, steps=STEPS):
    """The oracle: each token is the likeliest one of a whole pass over all before it."""
    written = []
    while len(written) < steps and end not in written:
        written.append(int(logits_of(made, name, text, written)[-1].argmax()))
    return written


def search(made, given, **options):
    given = {**given, "max_new_tokens": STEPS, "do_sample": False, **options}
    return made.generate(**given, return_dict_in_generate=True, output_logits=True)


def written_in(out, name, texts):
    """The tokens behind the prompt, row by row."""
    first = 1 if name == "seq2seq" else max(map(len, texts))
    return [row[first:].tolist() for row in out.sequences]


@every_model
@every_system
def test_greedy_search_is_a_plain_loop(name, system):
    """Also beside prompts of other lengths, with a cache and without, and the logits are those."""
    made = build(name, system)
    texts, given = prompts(name, [4, 1, 3])
    expected = [greedy(made, name, text) for text in texts]
    for use_cache in (True, False):
        out = search(made, given, use_cache=use_cache)
        for row, (written, wanted) in enumerate(
            zip(written_in(out, name, texts), expected, strict=True)
        ):
            assert written == wanted + [PAD] * (len(written) - len(wanted))
            steps = torch.stack([step[row] for step in out.logits[: len(wanted)]])
            whole = logits_of(made, name, texts[row], wanted[:-1])
            torch.testing.assert_close(steps.double(), whole, rtol=1e-5, atol=1e-5)


@every_model
@every_system
def test_beam_search_is_the_same_with_a_cache_and_without(name, system):
    """With a cache it finds what it finds without, for a prompt alone and in a padded batch.

    The score of what is found is the sum of its log-probabilities in a whole pass.
    """
    made, beams = build(name, system), {"num_beams": 3, "length_penalty": 0.0}
    texts, given = prompts(name, [4, 2])
    out = search(made, given, **beams, output_scores=True)
    plain = search(made, given, **beams, output_scores=True, use_cache=False)
    assert torch.equal(out.sequences, plain.sequences)
    for row, written in enumerate(written_in(out, name, texts)):
        written = written[: written.index(END) + 1] if END in written else written
        log_p = logits_of(made, name, texts[row], written[:-1]).log_softmax(-1)
        score = log_p[torch.arange(len(written)), written].sum()
        torch.testing.assert_close(out.sequences_scores[row].double(), score, rtol=1e-4, atol=1e-4)
        alone = search(made, {"input_ids": texts[row][None]}, **beams)
        (of_alone,) = written_in(alone, name, [texts[row]])
        assert of_alone[: len(written)] == written


@pytest.mark.parametrize("system", PLANS)
def test_a_dialogue_goes_on_from_its_cache(system):
    """What was generated, its cache, and more tokens: as all of the text at once."""
    made = build("causal", system)
    text = tokens(1, 3)
    out = search(made, {"input_ids": text}, max_new_tokens=4, eos_token_id=None)
    longer = torch.cat([out.sequences, tokens(1, 2, seed=5)], 1)
    cached = search(made, {"input_ids": longer}, cache=out.cache)
    assert torch.equal(cached.sequences, search(made, {"input_ids": longer}).sequences)


def test_padding_takes_no_learned_position():
    """Nothing reads the token that is written last, so that it needs none either."""
    room = {"positions": "learned", "max_positions": 4 + STEPS - 1}
    made = build("causal", "mae", **room)
    texts, given = prompts("causal", [4, 1, 3])
    for use_cache in (True, False):
        found = written_in(
            search(made, given, use_cache=use_cache, eos_token_id=None), "causal", texts
        )
        assert found == [greedy(made, "causal", text, end=None) for text in texts]
        with pytest.raises(ValueError) as error:
            too_long = {"max_new_tokens": STEPS + 1, "eos_token_id": None}
            search(made, given, use_cache=use_cache, **too_long)
        assert "max_positions" in str(error.value) and str(4 + STEPS - 1) in str(error.value)
