"""lm-evaluation-harness: its requests give what the model and headwise's evaluation give."""

import pytest
import torch
from compatible import compatible
from folders import LINES, LONGEST, saved

from headwise.data.running.dataset import TextBlocks
from headwise.tasks.generating import (
    GenerationSettings,
    generate_text,
    prompt_ids,
)
from headwise.tasks.language_modelling import token_losses

TOOL, NEEDS = "lm-evaluation-harness", ("lm_eval",)


def harness(folder, **options):
    from lm_eval.models.huggingface import HFLM

    # The harness puts the line end before a text itself where a task asks for perplexities.
    return HFLM(pretrained=folder, device="cpu", batch_size=2, add_bos_token=False, **options)


def request(kind, *arguments):
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


@compatible(
    TOOL,
    "perplexity (`loglikelihood_rolling`): that of `headwise evaluate` with "
    "`evaluation.context=0`, also over several windows",
    needs=NEEDS,
)
def test_rolling(system, tmp_path):
    folder, model, tokenizer = saved("causal", system, tmp_path)
    blocks = TextBlocks([LINES], tokenizer, 5)
    assert list(blocks.lengths) == [
        5,
        5,
        5,
        5,
    ]  # of fewer, the harness would read more before the last
    text = "\n".join(LINES) + "\n"
    lm = harness(folder, max_length=5)
    (found,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    expected = torch.cat([*token_losses(model, blocks.stream, 5, 0)])
    assert -found == pytest.approx(expected.sum().item(), rel=1e-4)


@compatible(TOOL, "multiple choice (`loglikelihood`)", needs=NEEDS)
def test_loglikelihood(system, tmp_path):
    folder, model, tokenizer = saved("causal", system, tmp_path, max_length=LONGEST)
    given, choices = "close the\nsmall", [" file opens", " it"]
    found = harness(folder).loglikelihood(
        [request("loglikelihood", given, choice) for choice in choices]
    )
    for choice, (score, _) in zip(choices, found, strict=True):
        start, ids = prompt_ids(tokenizer, given)[1:], prompt_ids(tokenizer, given + choice)[1:]
        with torch.no_grad():
            log_p = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = sum(log_p[i - 1, ids[i]].item() for i in range(len(start), len(ids)))
        assert score == pytest.approx(expected, rel=1e-4)


@compatible(TOOL, "generation (`generate_until`)", needs=NEEDS)
def test_generate_until(system, tmp_path):
    from lm_eval.models.huggingface import HFLM

    folder, model, tokenizer = saved("causal", system, tmp_path, max_length=LONGEST)
    prompts, until = ["the small file\na", "close"], {"until": ["\n"], "max_gen_toks": 6}
    lm = HFLM(pretrained=folder, device="cpu", batch_size=2)  # behind a line end, as in training
    found = lm.generate_until([request("generate_until", prompt, until) for prompt in prompts])
    settings = GenerationSettings(max_new_tokens=6, temperature=0, lines=1)
    texts = generate_text(model, tokenizer, prompts, settings)
    assert found == [text.partition("\n")[0] for text in texts]
