"""headwise: what to do with the heads of multi-head attention other than concatenating them."""

from headwise.heads.attention import AttentionOutput, MultiHeadAttention, Routing
from headwise.heads.cache import AttentionCache
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.moa import MixtureOfAttentionHeads
from headwise.models.config import Seq2SeqConfig
from headwise.models.parameters import gate_parameters, other_parameters, output_parameters
from headwise.models.seq2seq import Seq2SeqLM

__version__ = "0.1.0"

__all__ = [
    "AttentionCache",
    "AttentionOutput",
    "MixtureOfAttentionHeads",
    "MixtureOfAttentiveExperts",
    "MultiHeadAttention",
    "Routing",
    "Seq2SeqConfig",
    "Seq2SeqLM",
    "gate_parameters",
    "other_parameters",
    "output_parameters",
]
