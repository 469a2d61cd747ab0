"""The check of the formula of what a system costs."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headwise.testing.subject import Subject


def check_macs(subject: Subject) -> None:
    # Wider and longer, so that what is no product with weights does not count for much.
    width, time, keys = 64, 16, 12
    place = subject.place._replace(embed_dim=width, ffn_dim=2 * width)
    module = subject._replace(place=place).build(dtype=torch.float32)
    is_causal = subject.place.site == "decoder_self"
    reads_memory = subject.place.site == "decoder_cross" or (
        subject.system.replaces == "layer" and subject.place.cross_attention
    )
    try:
        counted = sum(module.macs(time, keys if reads_memory else time, is_causal=is_causal))
    except NotImplementedError:
        return  # whoever counts then measures
    # The plain kernel, whose products the counter sees one by one.
    with (
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
    ):
        subject.call(module, torch.randn(1, time, width), torch.randn(1, keys, width))
    measured = counter.get_total_flops() // 2
    subject.expect(
        abs(counted - measured) <= 0.02 * measured,
        f"macs says {counted:,} for a sequence of {time}, and PyTorch's flop counter {measured:,}",
        "add what the system multiplies by matrices of its own, as super().macs(...) + Macs(...)",
    )
