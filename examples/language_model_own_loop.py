# %% [markdown]
# # A language model in your own training loop
#
# `hw.CausalLM` is a Hugging Face model, and the loop below is plain PyTorch, with accumulated
# gradients, clipping and a schedule. MAE's paper asks for more than that: its gates and its experts
# learn in turn, the gates by an SGD of their own. `training_rules` adds this to the loop in four
# lines.
#
# Three models learn from the docstrings of PyTorch: standard attention, MAE whose gates and experts
# learn together, and MAE by its rule. What comes back is the validation loss of each, how undecided
# its gates are, and a text that the last model writes.
#
#     python examples/language_model_own_loop.py

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import headwise as hw
from headwise.data.builtin import paragraphs_of

PACKAGE = "torch"  # whose docstrings are learned
STEPS = 250
BLOCKS = 8  # in a batch; two batches make a step
LENGTH = 64  # tokens in a block
PROMPT = "Returns a"
transformers.utils.logging.disable_progress_bar()

# %% [markdown]
# ## The data
# First paragraphs of docstrings, one after the other, cut into blocks of one length. The tokens are
# subwords, learned from the same text.

# %%
texts = paragraphs_of(PACKAGE)
byte_level = ByteLevelBPETokenizer()
byte_level.train_from_iterator(
    texts, vocab_size=1000, special_tokens=["<end>"], show_progress=False
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level._tokenizer, eos_token="<end>")
ids = torch.tensor([i for text in texts for i in tokenizer(f"{text}<end>")["input_ids"]])
blocks = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
held_out, learned = blocks[::20], blocks[torch.arange(len(blocks)) % 20 > 0]
print(f"{len(texts):,} docstrings: {len(learned):,} blocks to learn from, {len(held_out)} held out")

# %% [markdown]
# ## The loop
# The four lines are those that name `rules`. `before_step` is given a function that computes the
# loss of the coming step, since MAE first takes a step for its gates, if one is due; where
# gradients are accumulated the function yields one loss after the other. In a model whose systems
# have no rule, as standard attention, the lines do nothing.


# %%
def train(model: hw.CausalLM, settings: dict) -> None:
    rules = hw.training_rules(model, STEPS, settings=settings)
    optimizer = torch.optim.AdamW(rules.parameter_groups(lr=1e-2, weight_decay=0.01))
    rules.attach(optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS)
    model.train()
    for _ in range(STEPS):
        batches = learned[torch.randint(len(learned), (2 * BLOCKS,))].split(BLOCKS)

        def losses(batches: tuple[Tensor, ...] = batches):
            for batch in batches:
                yield model(batch, labels=batch).loss / len(batches)

        rules.before_step(losses)
        for loss in losses():
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


@torch.no_grad()
def validation_loss(model: hw.CausalLM) -> float:
    batches = held_out.split(BLOCKS)
    total = sum(len(batch) * model(batch, labels=batch).loss for batch in batches)
    return float(total / len(held_out))


@torch.no_grad()
def entropy(model: hw.CausalLM) -> float:
    """How undecided the gates are: the mean of -Σ g ln g, in nats."""
    with hw.record(model) as decisions:
        model(held_out[:BLOCKS])
    gates = torch.cat([routing.weights.flatten(0, -2) for (routing,) in decisions.values()])
    return -(gates * gates.log()).sum(-1).mean().item()


# %% [markdown]
# ## Three models
# A rule has settings; without any they are the paper's. Here gate steps come before every fifth
# step and not in every fifth epoch, since this training is less than one epoch long, and their rate
# is ten times the paper's.

# %%
GATES = {"unit": "steps", "period": 5, "learning_rate": 10.0}
MODELS = {
    "standard": ("standard", {}),
    "mae, jointly": ("mae", {"mae": {"method": "joint", "learning_rate": 10.0}}),
    "mae, by its rule": ("mae", {"mae": GATES}),
}
for name, (attention, settings) in MODELS.items():
    torch.manual_seed(0)
    config = hw.CausalLMConfig(
        vocab_size=len(tokenizer),
        embed_dim=64,
        num_heads=8,
        ffn_dim=256,
        layers=2,
        norm="pre",
        attention=attention,
        max_length=LENGTH,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    model = hw.CausalLM(config)
    train(model, settings)
    loss = validation_loss(model.eval())
    gates = f", entropy of the gates {entropy(model):.3f}" if attention == "mae" else ""
    print(f"{name}: validation loss {loss:.3f} after {STEPS} steps{gates}")

# %% [markdown]
# ## Generate, save, load
# As with any model of transformers. Gates that read a sequence keep their running mean in the
# cache.

# %%
prompt = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
torch.manual_seed(0)
for written in model.generate(
    prompt, max_new_tokens=15, do_sample=True, temperature=0.5, num_return_sequences=3
):
    print(repr(tokenizer.decode(written, skip_special_tokens=True)))

with TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print("saved:", ", ".join(sorted(path.name for path in Path(folder).iterdir())))
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
print("loaded: the same logits:", torch.equal(loaded(prompt).logits, model(prompt).logits))
