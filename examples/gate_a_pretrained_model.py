# %% [markdown]
# # Gates over the heads of a pretrained model
#
# A small GPT-2 and a small BERT are trained on the docstrings of one package and saved in folders
# as a hub holds them. What follows is the same for any model of the hub, with its name as `MODEL`:
# load it, put gates over its heads, see that it computes what it did, train the gates alone on the
# docstrings of another package, save them apart from the model, look at what they do, and take them
# away again.
#
#     python examples/gate_a_pretrained_model.py

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

import headwise as hw
from headwise.data.builtin import paragraphs_of

MODEL = None  # a causal or masked language model: a folder, or a name such as openai-community/gpt2
SYSTEM = "mae"  # or "gated"
STEPS = 200  # of fine-tuning
PRETRAINING_STEPS = 400
PACKAGES = ("torch", "scipy")  # of the first and of the second domain
BLOCK = 64  # tokens
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
Block = dict[str, list[int]]

# %% [markdown]
# ## Put gates over a model, train them, take them away


# %%
def gate(name: str, texts: list[str], folder: Path) -> None:
    """Does with a pretrained model what the page on gates describes."""
    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = load(name)
    blocks = in_blocks(tokenizer, texts)
    held_out, learned = blocks[::10], [block for i, block in enumerate(blocks) if i % 10]
    tokens = torch.tensor([held_out[0]["input_ids"]])
    before = logits(model, tokens)
    print(f"\n{name}: {type(model).__name__}")

    hw.gate_heads(model.requires_grad_(False), SYSTEM)  # only the gates will learn
    difference = (logits(model, tokens) - before).abs().max().item()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"  gates added: logits differ by {difference:.1e} at most")
    print(f"  to train: {trained:,} of {model.num_parameters():,} parameters")

    trainer = make_trainer(model, tokenizer, learned, held_out, STEPS, 1e-2, folder)
    loss = validation_loss(trainer)
    trainer.train()
    print(
        f"  validation loss: {loss:.4f} before, {validation_loss(trainer):.4f} after {STEPS} steps"
    )
    after = logits(model, tokens)

    gates = folder / f"{Path(name).name}-gates"
    hw.save_gates(model, gates)
    size = sum(file.stat().st_size for file in gates.iterdir())
    print(f"  saved: {', '.join(sorted(f.name for f in gates.iterdir()))}, {size / 1e3:,.0f} KB")
    fresh = load(name)
    hw.load_gates(fresh, gates)
    difference = (logits(fresh, tokens) - after).abs().max().item()
    print(f"  loaded on the untouched model: logits differ by {difference:.1e} at most")

    with hw.record(fresh) as decisions:
        logits(fresh, tokens)
    for layer, (routing,) in enumerate(decisions.values()):
        mean = routing.weights.reshape(-1, routing.weights.size(-1)).mean(0)
        print(f"  layer {layer}, mean weights: {' '.join(f'{weight:.3f}' for weight in mean)}")

    hw.remove_gates(fresh)
    print(f"  removed: equal to the model as it was: {torch.equal(logits(fresh, tokens), before)}")


def load(name: str) -> transformers.PreTrainedModel:
    """Returns a masked or a causal language model, whichever the name holds, for evaluation."""
    architectures = AutoConfig.from_pretrained(name).architectures or []
    masked = any("MaskedLM" in architecture for architecture in architectures)
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    return kind.from_pretrained(name).eval()


@torch.no_grad()
def logits(model: transformers.PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    return model.eval()(tokens.to(model.device)).logits.cpu()


class Trainer(hw.RulesMixin, transformers.Trainer):
    """transformers' Trainer, which trains each system by the rule of its paper."""

    # MAE's gates have SGD of their own. Its rate of 1 in the paper is too low for this model.
    rule_settings: ClassVar = {"mae": {"learning_rate": 30.0}}


def make_trainer(
    model: transformers.PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    learned: list[Block],
    held_out: list[Block],
    steps: int,
    learning_rate: float,
    folder: Path,
) -> transformers.Trainer:
    masked = tokenizer.mask_token is not None
    # A model without gates has nothing that a rule trains.
    kind = Trainer if hw.gate_parameters(model) else transformers.Trainer
    trainer = kind(
        model,
        transformers.TrainingArguments(
            str(folder / "training"),
            max_steps=steps,
            learning_rate=learning_rate,
            warmup_steps=steps // 10,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=32,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=masked),
        train_dataset=learned,
        eval_dataset=held_out,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def validation_loss(trainer: Trainer) -> float:
    transformers.set_seed(0)  # the same masks each time
    return trainer.evaluate()["eval_loss"]


def in_blocks(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[Block]:
    """Returns all texts one after the other, in pieces of one length."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    ids = [
        i for text in tokenizer(texts, add_special_tokens=False)["input_ids"] for i in [*text, end]
    ]
    return [{"input_ids": ids[i : i + BLOCK]} for i in range(0, len(ids) - BLOCK + 1, BLOCK)]


# %% [markdown]
# ## The models that a hub would have


# %%
def pretrain(
    kind: str, texts: list[str], folder: Path, steps: int = PRETRAINING_STEPS, seed: int = 0
) -> Path:
    """Trains a small model of transformers from scratch; returns its folder."""
    transformers.set_seed(seed)
    byte_level = ByteLevelBPETokenizer()
    byte_level.train_from_iterator(
        texts, vocab_size=1000, special_tokens=["<end>", "<pad>"], show_progress=False
    )
    special = {"eos_token": "<end>", "bos_token": "<end>", "pad_token": "<pad>"}
    if kind == "bert":
        special["mask_token"] = "<mask>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level._tokenizer, **special)
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    if kind == "gpt2":
        end = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
        config = transformers.GPT2Config(
            n_embd=64, n_layer=2, n_head=8, n_positions=BLOCK, **sizes, **end
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.BertConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=8,
            intermediate_size=256,
            max_position_embeddings=BLOCK,
            **sizes,
        )
        model = transformers.BertForMaskedLM(config)
    blocks = in_blocks(tokenizer, texts)
    trainer = make_trainer(model, tokenizer, blocks, blocks[::20], steps, 3e-3, folder)
    trainer.train()
    print(f"trained a small {kind}: loss {validation_loss(trainer):.3f} on what it has seen")
    path = folder / kind
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


# %% [markdown]
# ## All of it
# Gates choose among what the heads have learned and add nothing to it, so that the loss falls by
# little: docs/pretrained.md measures by how much, beside LoRA and training all weights.

# %%
if __name__ == "__main__":
    first, second = map(paragraphs_of, PACKAGES)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        models = [MODEL] if MODEL else [pretrain(kind, first, folder) for kind in ("gpt2", "bert")]
        for name in models:
            gate(str(name), second, folder)
