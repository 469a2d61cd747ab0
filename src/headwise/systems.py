"""What a system of your own is made of; docs/own-system.md goes through it step by step.

    import headwise as hw

    class MySystem(hw.systems.Attention): ...

`headwise.testing` checks what you have made.
"""

from headwise.heads.ablation import edits_of
from headwise.heads.attention import Attention, Inputs
from headwise.heads.rules import Moment, Rule, RuleSettings
from headwise.heads.system import System

__all__ = ["Attention", "Inputs", "Moment", "Rule", "RuleSettings", "System", "edits_of"]
