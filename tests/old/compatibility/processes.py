"""Two processes, with the model sharded or whole, take the steps that one takes on all of a batch.

Run by torchrun; writes how far the weights are apart, by system, to the file named on the command
line. `test_pytorch.py` reads it.
"""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), *(str(FOLDER.parent / other) for other in ("", "models"))]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from compatible import PLANS, tiny_model  # noqa: E402
from tiny import tokens  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import headwise as hw  # noqa: E402
from headwise.heads.mae.rule import GateSettings  # noqa: E402
from headwise.ops.replicas import alone  # noqa: E402

# A G step before each F step.
SETTINGS = {"mae": {"mae": GateSettings(period=1, unit="steps", learning_rate=0.1)}}
STEPS = 2


def model_without_dropout(system: str, *, seed: int = 0, **options: Any) -> Any:
    """A language model in training, which draws nothing."""
    plan = PLANS[system]
    if plan == "mae":
        plan = {"decoder_self": {"system": "mae", "gate_dropout": 0.0}}
    return tiny_model("causal", system, seed=seed, attention=plan, **options).train()


def train(model: nn.Module, system: str, ids: Tensor, wrap: Callable[[nn.Module], nn.Module]):
    """A few steps by the rules of training; returns all weights and statistics."""
    torch.manual_seed(1)  # the experts that F steps draw
    wrapped = wrap(model)
    rules = hw.training_rules(model, 4, settings=SETTINGS.get(system))
    optimizer = torch.optim.SGD(rules.parameter_groups(lr=0.05))
    for _ in range(STEPS):
        rules.before_step(lambda: model(ids, labels=ids).loss)
        with rules.step(optimizer):
            wrapped(ids, labels=ids).loss.backward()
        optimizer.step()
        rules.after_step()
        optimizer.zero_grad()
    for rule in rules.rules.values():
        rule.record()
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def shard(model: Any) -> nn.Module:
    """As its users do: each layer, then the rest."""
    for layer in model.decoder.layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def in_parallel(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True)


def apart(system: str) -> dict[str, Any]:
    """How far the weights are from those of one process, by the way they are shared."""
    torch.manual_seed(0)
    ids = tokens(4, 5)
    model = model_without_dropout(system).double()  # it would be drawn by each process
    before = {name: value.clone() for name, value in model.state_dict().items()}
    half = ids.chunk(2)[dist.get_rank()]
    shared = {
        name: train(copy.deepcopy(model), system, half, wrap)
        for name, wrap in (("fully_shard", shard), ("DDP", in_parallel))
    }
    with alone():
        expected = train(model, system, ids, lambda model: model)
    still = [name for name, value in expected.items() if torch.equal(before[name], value)]
    # It adds the same to all logits of a query.
    assert all(name.endswith("k_proj.bias") for name in still), (system, still)
    return {
        way: max(float((state[name] - expected[name]).abs().max()) for name in expected)
        for way, state in shared.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {system: apart(system) for system in PLANS}
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
