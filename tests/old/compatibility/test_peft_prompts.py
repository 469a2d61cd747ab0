"""peft: prefixes and prompts that are learned while the model stays as it is."""

import copy

import pytest
import torch
from compatible import compatible, tiny_model
from peft import (
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from tiny import PAD, tokens

TOOL = "peft: prompts"
TASKS = {"causal": "CAUSAL_LM", "seq2seq": "SEQ_2_SEQ_LM"}
VIRTUAL = 3


def tuned(kind, system, config, **options):
    """A model with learned positions in front, in evaluation; and a copy of it without."""
    plain = tiny_model(kind, system, share_embeddings={"causal": False}.get(kind, "none"))
    made = get_peft_model(
        copy.deepcopy(plain), config(task_type=TASKS[kind], num_virtual_tokens=VIRTUAL, **options)
    )
    return made.eval(), plain


def step_by_step(made, kind, ids, steps, **mask):
    """Greedy search by whole passes, without a cache."""
    decoded = ids if kind == "causal" else torch.full((len(ids), 1), 1)
    for _ in range(steps):
        if kind == "causal":
            given = {
                name: torch.cat([m, torch.ones_like(decoded[:, m.size(1) :])], 1)
                for name, m in mask.items()
            }
            logits = made(input_ids=decoded, **given).logits
        else:
            logits = made(input_ids=ids, decoder_input_ids=decoded, **mask).logits
        decoded = torch.cat([decoded, logits[:, -1:].argmax(-1)], 1)
    return decoded


CONFIGS = {
    PrefixTuningConfig: {},
    PromptTuningConfig: {},
    PromptEncoderConfig: {"encoder_hidden_size": 8},
}


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", TASKS)
@compatible(
    TOOL,
    "prefix tuning, prompt tuning, p-tuning (`PromptEncoderConfig`): fine-tuning, generating, "
    "saving and loading",
    needs=["peft"],
)
def test_learned_prompts(system, kind, config, tmp_path):
    made, plain = tuned(kind, system, config, **CONFIGS[config])
    ids = tokens(2, 5)
    before = made(input_ids=ids, labels=ids)
    learned = [parameter for parameter in made.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learned, lr=0.005)
    for _ in range(5):
        optimizer.zero_grad()
        made(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert made(input_ids=ids, labels=ids).loss < before.loss
    weights = made.get_base_model().state_dict()
    assert all(torch.equal(weights[name], w) for name, w in plain.state_dict().items())
    ids[1, :2] = PAD
    mask = {"attention_mask": (ids != PAD).long()}
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "num_beams": 1}
    out = made.generate(input_ids=ids, **mask, **options, eos_token_id=None)
    assert torch.equal(out, step_by_step(made, kind, ids, 5, **mask))
    made.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(plain, tmp_path).eval()
    logits = [each(input_ids=ids, labels=ids).logits for each in (loaded, made)]
    assert torch.equal(*logits)
