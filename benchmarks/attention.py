"""Speed of each system's attention beside `nn.MultiheadAttention`, forward and backward.

    python benchmarks/attention.py                      # d=512, batch 16, time 128, float32
    python benchmarks/attention.py --device cuda --dtype bfloat16 --batch 64 --time 512

Every round runs all modules on the same input, one after the other, and takes each time over that
of `nn.MultiheadAttention(need_weights=False)` in the same round; the table shows the median over
rounds and the range of the middle half. MoA stands at equal head budget, top_k × head_dim =
embed_dim. Where transformers has JetMoE, its mixture of attention heads runs on the same work
(with one key and value head, and its rotary positions set to no rotation).
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from layers import ratios_table, sizes
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

import headwise as hw

SIZES = ((8, 8), (8, 32), (8, 64))  # top_k, experts
Run = Callable[[Tensor], Tensor]


def main() -> None:
    """Measure and print."""
    options = parse_options()
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    contenders = {
        "nn.MultiheadAttention": torch_attention(options),
        **our_attentions(options),
        **jetmoe_attentions(options),
    }
    for _, module in contenders.values():
        module.to(options.device, getattr(torch, options.dtype)).train()
    x = torch.randn(options.batch, options.time, options.dim, device=options.device)
    x = x.to(getattr(torch, options.dtype))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in track(range(options.rounds + options.warmup), "measuring", transient=True):
        for name, (run, module) in contenders.items():
            taken = forward_backward(run, module, x)
            if round_number >= options.warmup:
                seconds[name].append(taken)
    measured = f"{sizes(options)}{', causal' if options.causal else ''}, {options.rounds} rounds"
    over = "nn.MultiheadAttention"
    Console().print(ratios_table(seconds, "attention", measured, over=over, speed=False))


def torch_attention(options: argparse.Namespace) -> tuple[Run, nn.Module]:
    """The baseline of every ratio."""
    module = nn.MultiheadAttention(options.dim, options.heads, batch_first=True)
    mask = None
    if options.causal:
        mask = nn.Transformer.generate_square_subsequent_mask(options.time, device=options.device)
        mask = mask.to(getattr(torch, options.dtype))
    run = lambda x: module(x, x, x, need_weights=False, attn_mask=mask, is_causal=options.causal)[0]  # noqa: E731
    return run, module


def our_attentions(options: argparse.Namespace) -> dict[str, tuple[Run, nn.Module]]:
    """The systems of headwise; MAE mixes all of its experts, and once draws one."""
    dim, heads = options.dim, options.heads
    drawing = hw.MixtureOfAttentiveExperts(dim, heads)
    drawing.step = "expert"
    modules: dict[str, nn.Module] = {
        "standard": hw.MultiHeadAttention(dim, heads),
        f"MAE-{heads - 1}": hw.MixtureOfAttentiveExperts(dim, heads),
        f"MAE-{heads - 1}, F step": drawing,
        f"MAE-{heads - 2}": hw.MixtureOfAttentiveExperts(dim, heads, dropped_heads=2),
    }
    for top_k, experts in SIZES:
        module = hw.MixtureOfAttentionHeads(dim, experts, top_k, dim // top_k)
        nn.init.normal_(module.router.weight)  # tokens spread over the experts, as in training
        modules[f"MoA {top_k}K{experts}E{dim // top_k}D"] = module
    return {
        name: ((lambda x, m=module: m(x, is_causal=options.causal).output), module)
        for name, module in modules.items()
    }


def jetmoe_attentions(options: argparse.Namespace) -> dict[str, tuple[Run, nn.Module]]:
    """transformers' mixture of attention heads, of the same sizes, if there is one."""
    contenders = {}
    for top_k, experts in SIZES:
        head_dim = options.dim // top_k
        module = jetmoe_attention(options.dim, top_k, experts, head_dim)
        if module is None:
            return {}
        module.is_causal = options.causal
        contenders[f"JetMoE {top_k}K{experts}E{head_dim}D"] = (
            lambda x, m=module: run_jetmoe(m, x),
            module,
        )
    return contenders


def jetmoe_attention(dim: int, top_k: int, experts: int, head_dim: int) -> Any:
    """One of transformers' mixtures of attention heads; None where it has none."""
    try:
        from transformers import JetMoeConfig
        from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention
    except ImportError:
        return None
    config = JetMoeConfig(
        hidden_size=dim,
        num_key_value_heads=1,
        kv_channels=head_dim,
        num_local_experts=experts,
        num_experts_per_tok=top_k,
        attn_implementation="sdpa",
    )
    module = JetMoeAttention(config, layer_idx=0)
    module.is_causal = False
    for name, parameter in module.named_parameters():
        # It leaves weights to its model, which is not built here.
        nn.init.normal_(parameter, std=1.0 if "router" in name else 0.02)
    return module


def run_jetmoe(module: Any, x: Tensor) -> Tensor:
    """Its output where its rotary positions are no rotation."""
    still = x.new_ones(1, x.size(1), module.head_dim)
    return module(x, position_embeddings=(still, torch.zeros_like(still)))[0]


def forward_backward(run: Run, module: nn.Module, x: Tensor) -> float:
    """Seconds of one forward and backward pass, gradients of input and weights."""
    x = x.detach().requires_grad_()
    synchronize(x)
    start = time.perf_counter()
    run(x).sum().backward()
    synchronize(x)
    seconds = time.perf_counter() - start
    module.zero_grad(set_to_none=True)
    return seconds


def synchronize(x: Tensor) -> None:
    """Wait for the device."""
    if x.is_cuda:
        torch.cuda.synchronize()


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dim", type=int, default=512, help="embed_dim")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--time", type=int, default=128, help="length of the sequences")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before those")
    parser.add_argument("--threads", type=int, default=0, help="of PyTorch; 0 for its default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
