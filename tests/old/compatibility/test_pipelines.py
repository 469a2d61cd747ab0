"""transformers' pipelines: what they give is what headwise's own decoding gives."""

import torch
from compatible import compatible
from folders import LINES, LONGEST, saved
from transformers import pipeline

from headwise.data.labelled.corpus import Example
from headwise.data.labelled.dataset import Examples, collate_examples
from headwise.tasks.generating import GenerationSettings, generate_text

TOOL = "transformers: pipelines"


@compatible(TOOL, "`text-generation`: the texts of `headwise predict`, in batches too")
def test_text_generation(system, tmp_path):
    folder, model, tokenizer = saved("causal", system, tmp_path, max_length=LONGEST)
    greedy = GenerationSettings(max_new_tokens=6, temperature=0)
    prompts = ["the small file opens\nclose", "a"]
    texts = generate_text(model, tokenizer, prompts, greedy)
    write = pipeline("text-generation", model=folder)
    found = write(prompts, batch_size=2, do_sample=False, max_new_tokens=6, eos_token_id=None)
    # headwise leaves out the line end at the end of a text.
    assert [made["generated_text"].removesuffix("\n") for (made,) in found] == [
        prompt + text for prompt, text in zip(prompts, texts, strict=True)
    ]
    # Texts of one line end at their own lengths; the shorter ones are padded.
    texts = generate_text(model, tokenizer, prompts, greedy.model_copy(update={"lines": 1}))
    found = write(prompts, batch_size=2, do_sample=False, max_new_tokens=6, eos_token_id=2)
    assert [made["generated_text"].removesuffix("\n") for (made,) in found] == [
        prompt + text for prompt, text in zip(prompts, texts, strict=True)
    ]


@compatible(TOOL, "`fill-mask`: the probabilities of the model, in batches too")
def test_fill_mask(system, tmp_path):
    folder, model, tokenizer = saved("masked", system, tmp_path, max_length=LONGEST)
    bos, mask, eos = tokenizer.bos_token_id, tokenizer.mask_token_id, tokenizer.eos_token_id
    before, behind = tokenizer.encode(["the small", "opens"], eos=False)
    with torch.no_grad():
        ids = torch.tensor([[bos, *before, mask, *behind, eos]])
        expected = model(ids).logits[0, 1 + len(before)].softmax(-1).topk(4)
    fill = pipeline("fill-mask", model=folder)
    found = fill(["the small <mask> opens", "close the small <mask> it"], top_k=4, batch_size=2)
    assert [each["token"] for each in found[0]] == expected.indices.tolist()
    scores = torch.tensor([each["score"] for each in found[0]])
    torch.testing.assert_close(scores, expected.values, rtol=1e-4, atol=1e-6)


@compatible(TOOL, "`text-classification`: classes by name, in batches too")
def test_text_classification(system, tmp_path):
    folder, model, tokenizer = saved("classifier", system, tmp_path)
    examples = Examples([Example(line, None, "a") for line in LINES], tokenizer, ["a", "b"], 32)
    batch = collate_examples([*examples], tokenizer.pad_token_id, torch.int64)
    with torch.no_grad():
        expected = model(batch["input_ids"], batch["attention_mask"]).logits.softmax(-1)
    classify = pipeline("text-classification", model=folder)
    found = classify(LINES, batch_size=len(LINES), top_k=None)
    by_name = torch.tensor([[one["score"] for one in sorted(row, key=_label)] for row in found])
    torch.testing.assert_close(by_name, expected, rtol=1e-4, atol=1e-6)


@compatible(TOOL, "`feature-extraction`: the hidden states of the last layer, in batches too")
def test_feature_extraction(system, tmp_path):
    folder, model, tokenizer = saved("masked", system, tmp_path, max_length=LONGEST)
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(LINES[:1])[0]]])
    with torch.no_grad():
        expected = model(ids, output_hidden_states=True).hidden_states[-1]
    extract = pipeline("feature-extraction", model=folder)
    found, _ = extract([LINES[0], "a"], batch_size=2, return_tensors=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _label(scored):
    return scored["label"]
