"""How far gates move the output of a pretrained model before they are trained, on random models.

    python tests/pretrained/many_configurations.py --count 200

draws that many models of each architecture, with random sizes, padding and attention, and prints
for each architecture the largest difference of the output, relative to the largest output. The
second column is that of `generate()`, with cache, greedily or by beams, its texts being the same.
"""

import argparse
import random
from typing import NamedTuple

import torch
from architectures import (
    ARCHITECTURES,
    GENERATING,
    inputs,
    random_sizes,
    set_attention,
    source,
    tiny,
)
from torch import Tensor

import headwise as hw


class Differences(NamedTuple):
    """The largest differences, relative to the largest output, and whether texts were the same."""

    forward: float
    generating: float
    same_texts: bool


def differences(name: str, seed: int) -> Differences:
    """Of one random model."""
    draw = random.Random(f"{name} {seed}")
    model = tiny(name, seed, random_sizes(draw))
    set_attention(model, draw.choice(["sdpa", "eager"]))
    time = draw.randint(2, 12)
    batch = draw.randint(1, 4)
    given = inputs(model, draw, batch=batch, time=time)
    read = source(model, draw, batch=batch, time=time, side="left")
    generates = name in GENERATING
    beams = draw.choice([1, 3])

    def outputs() -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            logits = model(**given).logits
        if not generates:
            return logits, torch.zeros(1), torch.zeros(1)
        made = model.generate(
            **read,
            max_new_tokens=5,
            num_beams=beams,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        return logits, torch.stack(made.logits), made.sequences

    before = outputs()
    hw.gate_heads(model)
    after = outputs()
    return Differences(
        relative(before[0], after[0]),
        relative(before[1], after[1]),
        torch.equal(before[2], after[2]),
    )


def relative(before: Tensor, after: Tensor) -> float:
    return ((before - after).abs().max() / before.abs().max().clamp(min=1e-30)).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="models of each architecture")
    count = parser.parse_args().count
    torch.set_num_threads(1)
    print(f"| architecture | models | forward | generate() | same texts |\n{'|---' * 5}|")
    for name in ARCHITECTURES:
        found = [differences(name, seed) for seed in range(count)]
        generating = f"{max(f.generating for f in found):.1e}" if name in GENERATING else "–"
        same = f"{sum(f.same_texts for f in found)}" if name in GENERATING else "–"
        largest = max(f.forward for f in found)
        print(f"| {name} | {count} | {largest:.1e} | {generating} | {same} |", flush=True)


if __name__ == "__main__":
    main()
