"""What a system of your own is made of; docs/add-a-system.md goes through it step by step.

    import headwise as hw

    class MySystem(hw.systems.Attention): ...

`headwise.testing` checks what you have made.
"""

from headwise.heads.attention import Attention, Inputs, Projected
from headwise.heads.rule import Moment, Rule, RuleSettings
from headwise.heads.system import Macs, Place, System, Words
from headwise.models.trust import register_system

__all__ = [
    "Attention",
    "Inputs",
    "Macs",
    "Moment",
    "Place",
    "Projected",
    "Rule",
    "RuleSettings",
    "System",
    "Words",
    "register_system",
]
