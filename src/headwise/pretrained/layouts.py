"""Where the attention modules of transformers have their heads: a table that users can extend."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel

from headwise.heads.system import System
from headwise.pretrained.masks import CACHE

SITES = ("encoder_self", "decoder_self", "decoder_cross")


@dataclass(frozen=True)
class HeadLayout:
    """Where the attention modules of one class have their heads.

    The module computes what its heads read, joins it, `(batch, queries, heads * head_dim)`, and
    calls its output projection with it, which gives back the width of the hidden states. These are
    the first argument of its `forward`.

    Args:
        projection: path of the output projection, from the attention module.
        num_heads: path of the attribute that holds the number of heads.
        is_causal: path of the attribute that says whether a position may not see later ones; or
            `True` or `False`, where the modules have no such attribute.
        mask: name of the argument of `forward` that holds the attention mask, as transformers makes
            it: boolean or whole numbers, `True` or 1 at what is attended, or float, added to the
            logits. Where `True` is at what is hidden, as in MPT, no gates can stand that average
            over positions: they would take padding for text.
        cache: name of the argument of `forward` that holds the cache of keys and values.
        cross: names under which such modules stand in a layer as cross-attention, whose queries are
            those of the layer's self-attention.
        maps: paths of the linear maps whose rows heads have of their own: of queries, of keys and
            of values; or of queries, and of keys and values together; or one for all three. Those
            that a module lacks are passed over. None where heads have other weights too.
        widths: paths of attributes that hold the width of all heads together.
    """

    projection: str
    num_heads: str
    is_causal: str | bool = "is_causal"
    mask: str = "attention_mask"
    cache: str = CACHE
    cross: tuple[str, ...] = ("encoder_attn", "crossattention", "EncDecAttention")
    maps: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    widths: tuple[str, ...] = ()


_LIKE_BERT = HeadLayout(
    "output.dense",
    "self.num_attention_heads",
    is_causal="self.is_causal",
    maps=("self.query", "self.key", "self.value"),
    widths=("self.all_head_size",),
)
_LIKE_BART = HeadLayout("out_proj", "num_heads")
_LIKE_T5 = HeadLayout("o", "n_heads", mask="mask", maps=("q", "k", "v"), widths=("inner_dim",))
_LIKE_LLAMA = HeadLayout("o_proj", "config.num_attention_heads")
_WITH_WEIGHTS_OF_HEADS = replace(_LIKE_LLAMA, maps=())  # norms or sinks, which would stay whole

# Arguments of attentions that are neither their mask nor their cache, though named like them.
_NEITHER = ("use_cache", "cache_position", "head_mask", "layer_head_mask", "cross_attn_head_mask")

# By the name of the attention's class.
LAYOUTS: dict[str, HeadLayout] = {
    "BertAttention": _LIKE_BERT,
    "RobertaAttention": _LIKE_BERT,
    "XLMRobertaAttention": _LIKE_BERT,
    "ElectraAttention": _LIKE_BERT,
    "BertGenerationAttention": _LIKE_BERT,
    "CamembertAttention": _LIKE_BERT,
    "AlbertAttention": HeadLayout(
        "dense",
        "num_attention_heads",
        maps=("query", "key", "value"),
        widths=("all_head_size",),
    ),
    "DistilBertSelfAttention": HeadLayout("out_lin", "n_heads", maps=("q_lin", "k_lin", "v_lin")),
    "GPT2Attention": HeadLayout(
        "c_proj",
        "num_heads",
        maps=("q_attn", "c_attn"),
        widths=("split_size",),
    ),
    "LlamaAttention": _LIKE_LLAMA,
    "MistralAttention": _LIKE_LLAMA,
    "MixtralAttention": _LIKE_LLAMA,
    "GemmaAttention": _LIKE_LLAMA,
    "Gemma2Attention": _LIKE_LLAMA,
    "Gemma3Attention": _LIKE_LLAMA,
    "GraniteAttention": _LIKE_LLAMA,
    "CohereAttention": _WITH_WEIGHTS_OF_HEADS,
    "Olmo2Attention": _WITH_WEIGHTS_OF_HEADS,
    "SmolLM3Attention": _LIKE_LLAMA,
    "Starcoder2Attention": _LIKE_LLAMA,
    "StableLmAttention": _WITH_WEIGHTS_OF_HEADS,
    "GptOssAttention": _WITH_WEIGHTS_OF_HEADS,
    "GPTNeoXAttention": replace(_LIKE_LLAMA, projection="dense", cache="layer_past", maps=()),
    "GPTJAttention": HeadLayout("out_proj", "num_attention_heads"),
    "PhiAttention": replace(_LIKE_LLAMA, projection="dense"),
    "Phi3Attention": replace(_LIKE_LLAMA, maps=("qkv_proj",)),
    "Qwen2Attention": _LIKE_LLAMA,
    "Qwen2MoeAttention": _LIKE_LLAMA,
    "Qwen3Attention": _LIKE_LLAMA,
    "Qwen3MoeAttention": _LIKE_LLAMA,
    "Qwen3NextAttention": _LIKE_LLAMA,
    "ModernBertAttention": replace(_LIKE_LLAMA, projection="Wo", maps=("Wqkv",)),
    "OPTAttention": _LIKE_BART,
    "T5Attention": _LIKE_T5,
    "MT5Attention": _LIKE_T5,
    "BartAttention": _LIKE_BART,
    "MBartAttention": _LIKE_BART,
    "MarianAttention": _LIKE_BART,
    "PegasusAttention": _LIKE_BART,
    "M2M100Attention": _LIKE_BART,
    "WhisperAttention": _LIKE_BART,
    "ViTAttention": HeadLayout("o_proj", "num_attention_heads"),
}


class AttentionModule(NamedTuple):
    """An attention module of a model, and what its layout says of it.

    Its layer is counted from 0 in its stack: the innermost model of transformers around it.
    """

    path: str
    module: nn.Module
    layout: HeadLayout
    site: str
    layer: int
    stack: str

    @property
    def projection(self) -> nn.Module:
        """The output projection."""
        path = self.layout.projection
        try:
            return self.module.get_submodule(path)
        except AttributeError as error:
            raise ValueError(
                f"{_where(self.module, 'projection')} is {path!r}, but {error}"
            ) from None

    def sizes(self) -> dict[str, int]:
        """`embed_dim`, `num_heads` and `head_dim`."""
        num_heads = int(_attribute(self.module, self.layout.num_heads, "num_heads"))
        width, embed_dim = _sizes(self.projection, _where(self.module, "projection"))
        if width % num_heads:
            raise ValueError(
                f"{_where(self.module, 'num_heads')} says {num_heads} heads, which do not divide "
                f"{width}, the width that its projection {self.layout.projection!r} takes; "
                f"expected the path of the number of heads of its queries"
            )
        return {"embed_dim": embed_dim, "num_heads": num_heads, "head_dim": width // num_heads}

    def check_arguments(self) -> None:
        """Raises `ValueError` unless the module's `forward` has the mask and cache of the layout.

        Under other names the gates would not see them, and would compute as if there were none.
        """
        arguments = inspect.signature(self.module.forward).parameters
        for name, words in (("mask", ("mask",)), ("cache", ("past", "cache"))):
            named = getattr(self.layout, name)
            like = [
                each
                for each in arguments
                if any(word in each for word in words) and each not in _NEITHER
            ]
            if named not in arguments and like:
                raise ValueError(
                    f"{_where(self.module, name)} is {named!r}, but its forward has no such "
                    f"argument; expected the one of {', '.join(like)} that holds it"
                )


def attention_modules(
    model: nn.Module, layouts: Mapping[str, HeadLayout] | None = None
) -> list[AttentionModule]:
    """The attention modules of a model that the table knows, in the order they stand in.

    Further `layouts` go before those of the table.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model is a {type(model).__name__}, expected a model that is loaded, such as "
            f"transformers.AutoModel.from_pretrained returns"
        )
    known = {**LAYOUTS, **(layouts or {})}
    found: list[AttentionModule] = []
    stacks = [path for path, module in model.named_modules() if isinstance(module, PreTrainedModel)]
    for path, module in model.named_modules():
        # A wrapper such as FSDP makes a subclass of the module's class.
        name = next(
            (base.__name__ for base in type(module).__mro__ if base.__name__ in known), None
        )
        if name is None:
            continue
        layout = known[name]
        stack = max((s for s in stacks if not s or path.startswith(f"{s}.")), key=len, default="")
        cross = path.rpartition(".")[2] in layout.cross
        causal = _is_causal(module, layout)
        site = "decoder_cross" if cross else "decoder_self" if causal else "encoder_self"
        place = AttentionModule(path, module, layout, site, _layer(path, stack), stack)
        place.check_arguments()
        found.append(place)
    if not found:
        raise ValueError(_unknown(model, list(known)))
    return found


def _is_causal(module: nn.Module, layout: HeadLayout) -> bool:
    given = layout.is_causal
    found = given if isinstance(given, bool) else _attribute(module, given, "is_causal")
    if not isinstance(found, bool):
        raise ValueError(
            f"{_where(module, 'is_causal')} is {given!r}, which gives {found!r}, expected the path "
            f"of an attribute that is True or False, or one of these itself"
        )
    # Models whose attention is causal otherwise may be used as encoders.
    return found and bool(getattr(getattr(module, "config", None), "is_causal", True))


def _attribute(module: nn.Module, path: str, name: str) -> Any:
    """What the field `name` of a module's layout gives the path of."""
    try:
        return attrgetter(path)(module)
    except AttributeError as error:
        hint = "; expected True or False if there is none" if name == "is_causal" else ""
        raise ValueError(f"{_where(module, name)} is {path!r}, but {error}{hint}") from None


def _where(module: nn.Module, name: str) -> str:
    return f"{name} of the layout of {type(module).__name__}"


def _layer(path: str, stack: str) -> int:
    """The first number in the path of a module, from its stack."""
    names = path.removeprefix(stack).split(".")
    return next((int(name) for name in names if name.isdigit()), 0)


def _sizes(projection: nn.Module, where: str) -> tuple[int, int]:
    """Returns the width of an output projection's input, and that of its output."""
    for takes, gives in (("in_features", "out_features"), ("nx", "nf")):
        if hasattr(projection, takes):
            return getattr(projection, takes), getattr(projection, gives)
    raise ValueError(
        f"{where} is a {type(projection).__name__}, expected a linear map with in_features and "
        f"out_features"
    )


def _unknown(model: nn.Module, known: list[str]) -> str:
    names = {type(module).__name__ for module in model.modules()}
    like = sorted(name for name in names if "attention" in name.lower())
    if any(isinstance(module, System) for module in model.modules()):
        return (
            f"model is a {type(model).__name__} with systems of headwise's own, expected a "
            f"pretrained model of transformers; a model of headwise gets another system by its "
            f"with_attention"
        )
    if not like:
        return (
            f"model is a {type(model).__name__}, which has no module whose class is called "
            f"attention, expected a model with attention of one of the classes {', '.join(known)}"
        )
    return (
        f"model is a {type(model).__name__}, whose attention modules ({', '.join(like)}) are "
        f"unknown; known are {', '.join(known)}. Say where they have their heads: "
        f"layouts={{{like[0]!r}: headwise.HeadLayout(projection='out_proj', "
        f"num_heads='num_heads')}}"
    )
