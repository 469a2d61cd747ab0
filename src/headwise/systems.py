"""What a system of your own is made of; docs/own-system.md goes through it step by step.

    import headwise as hw

    class MySystem(hw.systems.Attention): ...

`headwise.testing` checks what you have made.
"""

from headwise.heads.ablation import ablations_of
from headwise.heads.attention import Attention, AttentionInputs
from headwise.heads.rules import Rule, RuleSettings, TrainingProgress
from headwise.heads.system import System

__all__ = [
    "Attention",
    "AttentionInputs",
    "Rule",
    "RuleSettings",
    "System",
    "TrainingProgress",
    "ablations_of",
]
