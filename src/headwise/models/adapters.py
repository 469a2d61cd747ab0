"""What peft adapts in headwise's models where its configuration names no target modules."""

import sys

# As in most decoders that peft knows, and in BART: those of these maps that a system has.
TARGET_MODULES = ["q_proj", "v_proj"]


def tell_peft(model_type: str) -> None:
    """Puts a type of models into peft's tables, if peft is imported.

    peft has a table of target modules for each kind of adapter and no way to register in all of
    them. Those that adapt Llama by the same maps, LoRA and its relatives, get the new type.
    """
    constants = sys.modules.get("peft.utils.constants")
    for name, table in vars(constants).items() if constants is not None else ():
        if name.endswith("_TARGET_MODULES_MAPPING") and table.get("llama") == TARGET_MODULES:
            table.setdefault(model_type, TARGET_MODULES)
