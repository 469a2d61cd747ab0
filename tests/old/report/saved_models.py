"""Folders of small models of transformers with their tokenizers, as `save_pretrained` writes."""

from pathlib import Path

import torch
import transformers as tf

from headwise.data.tokenizers.settings import TEXT_SPECIAL_TOKENS
from headwise.data.tokenizers.vocabularies import train_bpe

LINES = ["open the file", "close the file again", "the kernel is dead", "read every page of it"]
LONGEST = 24
_SIZES = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_LIKE_BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 0,
}
_STACKS = {
    f"{stack}_{name}": number
    for stack in ("encoder", "decoder")
    for name, number in {"layers": 1, "attention_heads": 3, "ffn_dim": 16}.items()
}
MODELS = {
    "gpt2": lambda v: tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=v, n_embd=24, n_layer=2, n_head=3, n_positions=LONGEST, **_SIZES)
    ),
    "llama": lambda v: tf.LlamaForCausalLM(
        tf.LlamaConfig(vocab_size=v, num_key_value_heads=1, **{**_LIKE_BERT, **_SIZES})
    ),
    "bert": lambda v: tf.BertForMaskedLM(tf.BertConfig(vocab_size=v, **_LIKE_BERT)),
    "roberta": lambda v: tf.RobertaForMaskedLM(  # whose positions begin behind that of padding
        tf.RobertaConfig(vocab_size=v, **{**_LIKE_BERT, "max_position_embeddings": LONGEST + 1})
    ),
    "classifier": lambda v: tf.BertForSequenceClassification(
        tf.BertConfig(vocab_size=v, id2label={0: "short", 1: "long"}, **_LIKE_BERT)
    ),
    "body": lambda v: tf.BertModel(tf.BertConfig(vocab_size=v, **_LIKE_BERT)),
    "marian": lambda v: tf.MarianMTModel(
        tf.MarianConfig(
            vocab_size=v,
            d_model=24,
            max_position_embeddings=LONGEST,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            **_STACKS,
            **_SIZES,
        )
    ),
    "t5": lambda v: tf.T5ForConditionalGeneration(
        tf.T5Config(
            vocab_size=v,
            d_model=24,
            d_kv=8,
            d_ff=16,
            num_layers=1,
            num_heads=3,
            decoder_start_token_id=0,
            **_SIZES,
        )
    ),
}


def tokenizer() -> tf.PreTrainedTokenizerFast:
    made = train_bpe(2 * LINES, 300, TEXT_SPECIAL_TOKENS)
    made.split_special_tokens = False
    return made


def save_model(folder: Path, name: str) -> Path:
    """Writes a model, whose weights are large enough to matter, and its tokenizer."""
    torch.manual_seed(0)
    of_texts = tokenizer()
    model = MODELS[name](len(of_texts)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0 if name != "t5" else 1.0)
    model.save_pretrained(folder)
    of_texts.save_pretrained(folder)
    return folder
