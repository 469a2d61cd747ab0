"""headwise: what to do with the heads of multi-head attention other than concatenating them."""

from headwise.analysis.behaviour.analysis import Analysis
from headwise.heads.agreement import AgreementAttention
from headwise.heads.attention import Attention
from headwise.heads.cache import AttentionCache
from headwise.heads.gated import GatedAttention
from headwise.heads.mae import MixtureOfAttentiveExperts
from headwise.heads.mae.parameters import gate_parameters, other_parameters, output_parameters
from headwise.heads.moa import MixtureOfAttentionHeads
from headwise.heads.moh import MixtureOfHeads
from headwise.heads.multi_head import MultiHeadAttention
from headwise.heads.rule import Moment, Rule, RuleSettings
from headwise.heads.system import AttentionOutput, Macs, Place, Routing, System
from headwise.heads.tim import IndependentMechanismsLayer
from headwise.heads.weighted import BranchedAttention
from headwise.heads.words import Words
from headwise.inspection.exploring.notebook import Explored, explore
from headwise.models.ablation import ablated
from headwise.models.causal_lm import CausalLM, CausalLMConfig
from headwise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from headwise.models.config import Seq2SeqConfig
from headwise.models.decisions import Decisions, record
from headwise.models.masked_lm import MaskedLM, MaskedLMConfig
from headwise.models.seq2seq import Seq2SeqLM
from headwise.models.speech import SpeechEnhancer, SpeechEnhancerConfig
from headwise.pretrained.attaching import gate_heads, remove
from headwise.pretrained.layouts import HeadLayout
from headwise.training.rules import TrainingRules, training_rules
from headwise.training.rules_mixin import RulesMixin

__version__ = "0.1.0"

__all__ = [
    "AgreementAttention",
    "Analysis",
    "Attention",
    "AttentionCache",
    "AttentionOutput",
    "BranchedAttention",
    "CausalLM",
    "CausalLMConfig",
    "Decisions",
    "Explored",
    "GatedAttention",
    "HeadLayout",
    "IndependentMechanismsLayer",
    "Macs",
    "MaskedLM",
    "MaskedLMConfig",
    "MixtureOfAttentionHeads",
    "MixtureOfAttentiveExperts",
    "MixtureOfHeads",
    "Moment",
    "MultiHeadAttention",
    "Place",
    "Routing",
    "Rule",
    "RuleSettings",
    "RulesMixin",
    "Seq2SeqConfig",
    "Seq2SeqLM",
    "SequenceClassifier",
    "SequenceClassifierConfig",
    "SpeechEnhancer",
    "SpeechEnhancerConfig",
    "System",
    "TrainingRules",
    "Words",
    "ablated",
    "explore",
    "gate_heads",
    "gate_parameters",
    "other_parameters",
    "output_parameters",
    "record",
    "remove",
    "training_rules",
]
