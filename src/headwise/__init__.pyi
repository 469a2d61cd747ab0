"""The public names, and the modules that they are loaded from when they are used."""

from .analysis.behaviour.analysis import Analysis as Analysis
from .heads.agreement import AgreementAttention as AgreementAttention
from .heads.attention import Attention as Attention
from .heads.cache import AttentionCache as AttentionCache
from .heads.gated import GatedAttention as GatedAttention
from .heads.mae import MixtureOfAttentiveExperts as MixtureOfAttentiveExperts
from .heads.moa import MixtureOfAttentionHeads as MixtureOfAttentionHeads
from .heads.moh import MixtureOfHeads as MixtureOfHeads
from .heads.multi_head import MultiHeadAttention as MultiHeadAttention
from .heads.rule import Moment as Moment
from .heads.rule import Rule as Rule
from .heads.rule import RuleSettings as RuleSettings
from .heads.system import AttentionOutput as AttentionOutput
from .heads.system import Macs as Macs
from .heads.system import Place as Place
from .heads.system import Routing as Routing
from .heads.system import System as System
from .heads.tim import IndependentMechanismsLayer as IndependentMechanismsLayer
from .heads.weighted import BranchedAttention as BranchedAttention
from .heads.words import Words as Words
from .inspection.exploring.notebook import Explored as Explored
from .inspection.exploring.notebook import explore as explore
from .models.ablation import ablated as ablated
from .models.causal_lm import CausalLM as CausalLM
from .models.causal_lm import CausalLMConfig as CausalLMConfig
from .models.classifier import SequenceClassifier as SequenceClassifier
from .models.classifier import SequenceClassifierConfig as SequenceClassifierConfig
from .models.config import Seq2SeqConfig as Seq2SeqConfig
from .models.decisions import Decisions as Decisions
from .models.decisions import record as record
from .models.masked_lm import MaskedLM as MaskedLM
from .models.masked_lm import MaskedLMConfig as MaskedLMConfig
from .models.parameters import gate_parameters as gate_parameters
from .models.parameters import other_parameters as other_parameters
from .models.parameters import output_parameters as output_parameters
from .models.seq2seq import Seq2SeqLM as Seq2SeqLM
from .models.speech import SpeechEnhancer as SpeechEnhancer
from .models.speech import SpeechEnhancerConfig as SpeechEnhancerConfig
from .training.rules import TrainingRules as TrainingRules
from .training.rules import training_rules as training_rules
from .training.rules_mixin import RulesMixin as RulesMixin

__version__: str
