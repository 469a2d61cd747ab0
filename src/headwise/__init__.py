"""headwise: what to do with the heads of multi-head attention other than concatenating them.

Its names are imported when they are used. `import headwise.models` registers the models with
transformers' Auto classes.
"""

import lazy_loader

__version__ = "0.1.0"

_NAMES = {
    "analysis.importance": ["HeadImportance", "head_importance"],
    "heads.agreement": ["AgreementAttention"],
    "heads.attention": ["MultiHeadAttention"],
    "heads.cache": ["AttentionCache"],
    "heads.differential": ["DifferentialAttention"],
    "heads.gated": ["GatedAttention"],
    "heads.mae": ["MAE", "MixtureOfAttentiveExperts"],
    "heads.moa": ["MixtureOfAttentionHeads", "MoA"],
    "heads.moh": ["MixtureOfHeads", "MoH"],
    "heads.rules": ["TrainingWarning"],
    "heads.system": ["AttentionOutput", "Routing", "auxiliary_loss"],
    "heads.tim": ["TIM", "IndependentMechanismsLayer"],
    "heads.weighted": ["BranchedAttention"],
    "models.config": [
        *("CausalLMConfig", "MaskedLMConfig", "Seq2SeqLMConfig"),
        *("SequenceClassifierConfig", "SpeechEnhancerConfig"),
    ],
    "models.text": ["CausalLM", "MaskedLM", "Seq2SeqLM", "SequenceClassifier"],
    "models.inspect": ["find_systems"],
    "models.parameters": ["gate_parameters", "non_gate_parameters", "output_parameters"],
    "models.speech": ["SpeechEnhancer"],
    "pretrained.ablate": ["ablated"],
    "pretrained.conversion": ["from_transformers"],
    "pretrained.gates": ["fold_gates", "gate_heads", "load_gates", "remove_gates", "save_gates"],
    "pretrained.layouts": ["HeadLayout"],
    "pretrained.pruning": ["load_pruned", "prune_heads"],
    "pretrained.record": ["Decisions", "record"],
    "report.analysing": ["analyse"],
    "report.analysis": ["Analysis"],
    "report.explore": ["ExplorerPage", "explore"],
    "training.rules": ["RulesMixin", "TrainingRules"],
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["systems", "testing"], _NAMES)
