"""Tiny random models of 29 architectures of transformers, and how the laws call them."""

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import transformers as tf
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache

import headwise as hw
from headwise.models.inspect import find_systems
from headwise.testing.laws import Batch, Result

logging.getLogger("transformers").setLevel(logging.ERROR)
VOCABULARY, FIRST, PADDING = 40, 5, 1  # ids below FIRST are special
TINY = {"heads": 4, "key_heads": 2, "head_dim": 4, "layers": 2}


def sizes() -> st.SearchStrategy[dict[str, int]]:
    counts = [(heads, keys) for heads in range(2, 7) for keys in range(1, 7) if heads % keys == 0]
    drawn = st.tuples(st.sampled_from(counts), st.sampled_from([4, 6]), st.integers(1, 2))
    return drawn.map(lambda size: dict(zip(TINY, (*size[0], *size[1:]), strict=True)))


_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate", "attention_dropout"),
    *("dropout", "activation_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"),
)


def _settings(s: dict[str, int], family: str, more: dict[str, Any]) -> dict[str, Any]:
    """A configuration's settings: most of their names are understood by all classes."""
    width, layers, heads = s["heads"] * s["head_dim"], s["layers"], s["heads"]
    settings = {"vocab_size": VOCABULARY, "max_position_embeddings": 64, "intermediate_size": 8}
    settings |= {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    settings |= {"pad_token_id": PADDING, "bos_token_id": 2, "eos_token_id": 3}
    settings |= dict.fromkeys(_DROPOUTS, 0.0)
    if family == "llama":
        settings["num_key_value_heads"] = s["key_heads"]
    if family in ("t5", "bart"):
        settings |= {"decoder_start_token_id": 2, "forced_eos_token_id": None}
        settings |= {"d_model": settings.pop("hidden_size"), "d_kv": s["head_dim"] + 2, "d_ff": 8}
        settings |= {"num_layers": layers, "num_decoder_layers": layers}
        for x in ("encoder", "decoder"):
            settings |= {f"{x}_layers": layers, f"{x}_attention_heads": heads, f"{x}_ffn_dim": 8}
    return settings | more


_WIDE, _SLIDES, _WHOLE = {"head_dim": 10}, {"sliding_window": 8}, {"partial_rotary_factor": 1.0}
_EXPERTS = dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok"), 2)
_EXPERTS |= dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 8)
_EXPERTS |= {"num_experts": 3, "num_local_experts": 3, "experts_implementation": "eager"}
_NEXT = {"head_dim": 16, "full_attention_interval": 1, **_EXPERTS}
_SOUND = {"num_mel_bins": 6, "max_source_positions": 8, "max_target_positions": 64}
_PIXELS = {"image_size": 8, "patch_size": 4}
# The class of the model, to which family it belongs, and what is set beside that.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "bert", {}),
    "bert decoder": ("BertLMHeadModel", "bert", {"is_decoder": True}),
    "roberta": ("RobertaForSequenceClassification", "bert", {}),
    "electra": ("ElectraForTokenClassification", "bert", {}),
    "albert": ("AlbertForMaskedLM", "bert", {}),
    "distilbert": ("DistilBertForMaskedLM", "bert", {"hidden_dim": 8}),
    "modernbert": ("ModernBertForMaskedLM", "bert", {"cls_token_id": 2, "sep_token_id": 3}),
    "vit": ("ViTForImageClassification", "bert", _PIXELS),
    "gpt2": ("GPT2LMHeadModel", "bert", {"n_inner": 8}),
    "gpt-j": ("GPTJForCausalLM", "bert", {"n_inner": 8, "rotary_dim": 2}),
    "opt": ("OPTForCausalLM", "bert", {"ffn_dim": 8, "word_embed_proj_dim": None}),
    "llama": ("LlamaForCausalLM", "llama", {}),
    "mistral": ("MistralForCausalLM", "llama", _SLIDES),
    "mixtral": ("MixtralForCausalLM", "llama", _EXPERTS),
    "qwen2": ("Qwen2ForCausalLM", "llama", {}),
    "qwen3": ("Qwen3ForCausalLM", "llama", _WIDE),
    "qwen3-next": ("Qwen3NextForCausalLM", "llama", _NEXT),
    "gemma3": ("Gemma3ForCausalLM", "llama", _WIDE | _SLIDES),
    "phi": ("PhiForCausalLM", "llama", _WHOLE),
    "phi3": ("Phi3ForCausalLM", "llama", {}),
    "olmo2": ("Olmo2ForCausalLM", "llama", {}),
    "gpt-oss": ("GptOssForCausalLM", "llama", _EXPERTS | _SLIDES),
    "gpt-neox": ("GPTNeoXForCausalLM", "llama", _WHOLE),
    "t5": ("T5ForConditionalGeneration", "t5", {}),
    "bart": ("BartForConditionalGeneration", "bart", {}),
    "marian": ("MarianMTModel", "bart", {}),
    "whisper": ("WhisperForConditionalGeneration", "bart", _SOUND),
    "bert to bert": ("EncoderDecoderModel", "bert bert_decoder", {}),
    "vit to gpt2": ("VisionEncoderDecoderModel", "vit gpt2", {}),
}
_NAMES = list(MODELS)
PAIRS = _NAMES[_NAMES.index("t5") :]  # of a source and what is decoded from it
DECODERS = ["bert decoder", *_NAMES[_NAMES.index("gpt2") : -len(PAIRS)]]
CAUSAL = [*DECODERS, *PAIRS]
# One of each kind of place for heads and of masks; tests that are dear take these.
EIGHT = ("bert", "roberta", "distilbert", "gpt2", "llama", "qwen3", "t5", "bart")
# Computed in float64 throughout; others have norms or rotations in float32, or experts.
EXACT = ("bert", "roberta", "distilbert", "electra", "gpt2", "opt", "bart", "marian", "vit")


def build(name: str, s: dict[str, int] = TINY, **options: Any) -> Any:
    """A model in evaluation, in float64 if it is EXACT, whose weights are large enough to matter.

    It never drops out, and its texts end by their length alone.
    """
    torch.manual_seed(0)
    kind, family, more = MODELS[name]
    if " " in family:
        names = family.replace("_", " ").split(" ", 1)
        decoder = build(names[1], s, is_decoder=True, add_cross_attention=True)
        model = getattr(tf, kind)(encoder=build(names[0], s).base_model, decoder=decoder)
        for config in (model.config, model.generation_config):
            config.decoder_start_token_id, config.pad_token_id = 2, PADDING
    else:
        kind = getattr(tf, kind)
        model = kind(kind.config_class(**_settings(s, family, {**more, **options})))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.mul_(1.0 if "t5" in name else 4.0)
    if model.can_generate():
        for key in ("eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
            setattr(model.generation_config, key, None)
    return model.to(torch.float64 if name in EXACT else torch.float32).eval()


def gate(name: str, system: str = "mae", **options: Any) -> Any:
    """A model with gates as if they were trained."""
    return train_at_random(hw.gate_heads(build(name), system, **OPTIONS[system], **options))


OPTIONS: dict[str, dict[str, Any]] = {
    "mae": {"gate_hidden_dim": 5, "gate_dropout": 0.0},
    "gated": {},
    "moh": {"shared_heads": 1, "top_k": 2, "neutral": False},
}


# What decides at each position of a decoder by itself; others have no cache for all of a text.
BY_POSITION = {"gated": {}, "moh": {}, "mae": {"gate_window": 1}}


@torch.no_grad()
def train_at_random(model: nn.Module) -> Any:
    for parameter in hw.gate_parameters(model):
        parameter.normal_()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.running_mean.normal_(0.0, 0.5)
            norm.running_var.uniform_(0.5, 2.0)
    return model


# By these names transformers calls the map from all heads to the width of the model.
_PROJECTIONS = ("o_proj", "out_proj", "output.dense", "c_proj", "dense", "out_lin", "Wo", "o")


def attentions(model: nn.Module) -> dict[str, Any]:
    """The output projections of all attentions of a model, by the paths of the attentions."""
    projections = {}
    for path, module in model.named_modules():
        inner = dict(module.named_modules())
        named = [inner[name] for name in _PROJECTIONS if name in inner]
        if named and "Attention" in type(module).__name__ and "head_gates" not in path:
            projections[path] = named[0]
    return projections


def width_of(projection: Any) -> int:
    """How wide all heads together are that a projection takes."""
    return projection.nx if hasattr(projection, "nx") else projection.in_features


def inputs(name: str, model: nn.Module, side: str = "right") -> dict[str, Tensor]:
    """What a model is called with, padded where it reads tokens."""
    subject = Pretrained(name, model)
    mask = None if name == "vit" else padding(3, 5, side)
    return subject.arguments(subject.draw(3, 5, 0), mask)


def labelled(name: str, model: nn.Module) -> dict[str, Tensor]:
    """What a model is called with, and labels of its items, or of tokens; some have none."""
    labels = tokens(3, 5)
    labels[1, 2:] = -100
    if name in ("roberta", "vit"):
        labels = torch.tensor([0, 1, 1])
    return {**inputs(name, model), "labels": labels}


def refused(must_name: Iterable[str], call: Callable, *args: Any, **options: Any) -> None:
    with pytest.raises(ValueError) as caught:
        call(*args, **options)
    assert all(name in str(caught.value) for name in must_name), caught.value


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Up to a thousand steps of rounding of the largest value."""
    tolerance = 1000 * torch.finfo(expected.dtype).eps * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@contextlib.contextmanager
def without(
    model: nn.Module, heads: dict[str, list[int]], *, count: int = TINY["heads"], left: float = 0.0
) -> Iterator:
    """While it is open, this much is left of what these heads give to their output projections."""

    def scale(scaled: list[int], _: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        outputs = args[0].unflatten(-1, (count, -1)).clone()
        outputs[..., scaled, :] *= left
        return outputs.flatten(-2), *args[1:]

    with contextlib.ExitStack() as stack:
        for path, scaled in heads.items():
            hook = attentions(model)[path].register_forward_pre_hook(partial(scale, scaled))
            stack.callback(hook.remove)
        yield


def tokens(*shape: int) -> Tensor:
    return torch.randint(FIRST, VOCABULARY, shape)


def padding(rows: int, time: int, side: str = "right") -> Tensor:
    """Boolean `(rows, time)`, `True` at padding: none in the first row, then one more in each."""
    mask = torch.arange(time) >= (time - torch.arange(rows) % time).unsqueeze(1)
    return mask.flip(1) if side == "left" else mask


class Pretrained:
    """A subject for the laws: a model of transformers that reads tokens, pixels or sound.

    Of an encoder with a decoder, the sequence is that of the decoder, and the memory the source.
    """

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module = name, module
        self.causal = name in CAUSAL
        self.parameters = inspect.signature(module.forward).parameters
        self.takes_positions = "position_ids" in self.parameters

    def source(self, rows: int, time: int) -> Tensor:
        name = self.module.main_input_name
        if name == "pixel_values":
            return torch.randn(rows, 3, 8, 8, dtype=self.module.dtype)
        return torch.randn(rows, 6, 16) if name == "input_features" else tokens(rows, time)

    def draw(self, rows: int, time: int, seed: int) -> Batch:
        torch.manual_seed(seed)
        if self.name in PAIRS:
            return Batch(tokens(rows, time), self.source(rows, 5))
        return Batch(self.source(rows, time))

    def arguments(self, batch: Batch, padding: Tensor | None = None, cache: Any = None) -> Any:
        """What the model is called with; positions are counted without padding."""
        first = batch.sequence if batch.memory is None else batch.memory
        arguments = {self.module.main_input_name: first}
        if batch.memory_padding is not None:
            arguments["attention_mask"] = (~batch.memory_padding).long()
        if batch.memory is not None:
            arguments["decoder_input_ids"] = batch.sequence
        if padding is not None:
            name = "attention_mask" if batch.memory is None else "decoder_attention_mask"
            arguments[name] = (~padding).long()
        if self.takes_positions and batch.memory is None and (padding is not None or cache is None):
            real = torch.ones(batch.sequence.shape) if padding is None else ~padding
            positions = (real.long().cumsum(1) - 1).clamp(min=0)
            arguments["position_ids"] = positions[:, -batch.sequence.size(1) :]
        if cache is not None:
            arguments["past_key_values"] = cache
        elif "use_cache" in self.parameters:
            arguments["use_cache"] = False
        return arguments

    def __call__(self, batch: Batch, *, padding=None, mask=None, cache=None) -> Result:
        assert mask is None
        with hw.record(self.module) as decisions:
            output = self.module(**self.arguments(batch, padding, cache)).logits
        stack = "decoder" if self.name in PAIRS else ""  # the source has other positions
        sites = {path: system.site for path, system in find_systems(self.module).items()}
        routings = [r for path, passes in decisions.items() if stack in sites[path] for r in passes]
        losses = [routing.loss for routing in routings if routing.loss is not None]
        loss = torch.stack(losses).sum() if losses else None
        if self.name == "vit":  # which has more positions than pixels
            routings = []
        return Result(output, [routing.weights for routing in routings], loss)

    def new_cache(self) -> Any:
        if self.name in PAIRS:
            return EncoderDecoderCache(DynamicCache(), DynamicCache())
        return DynamicCache(config=self.module.config)
