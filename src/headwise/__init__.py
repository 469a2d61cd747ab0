"""headwise: what to do with the heads of multi-head attention other than concatenating them."""

from headwise.heads.agreement import AgreementAttention
from headwise.heads.attention import Attention, MultiHeadAttention
from headwise.heads.cache import AttentionCache
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.moa import MixtureOfAttentionHeads
from headwise.heads.system import AttentionOutput, Macs, Place, Routing, System
from headwise.heads.tim import IndependentMechanismsLayer
from headwise.heads.weighted import BranchedAttention, branches_weighed
from headwise.models.config import Seq2SeqConfig
from headwise.models.parameters import gate_parameters, other_parameters, output_parameters
from headwise.models.seq2seq import Seq2SeqLM

__version__ = "0.1.0"

__all__ = [
    "AgreementAttention",
    "Attention",
    "AttentionCache",
    "AttentionOutput",
    "BranchedAttention",
    "IndependentMechanismsLayer",
    "Macs",
    "MixtureOfAttentionHeads",
    "MixtureOfAttentiveExperts",
    "MultiHeadAttention",
    "Place",
    "Routing",
    "Seq2SeqConfig",
    "Seq2SeqLM",
    "System",
    "branches_weighed",
    "gate_parameters",
    "other_parameters",
    "output_parameters",
]
