"""A corpus and a recipe with which a whole experiment takes a second: counting in French."""

import random
from pathlib import Path

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
FRENCH = ["un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix"]

RECIPE = """
description: counting in French
data:
  corpus: files
  train: {{source: '{folder}/train.en', target: '{folder}/train.fr'}}
  validation_fraction: 0.2
tokenizer: {{vocab_size: 280}}
model: {{embed_dim: 16, num_heads: 4, ffn_dim: 32, encoder_layers: 1, decoder_layers: 1}}
training:
  max_steps: 6
  batch_tokens: 300
  learning_rate: 3.0e-3
  warmup_steps: 2
  evaluate_every: 3
  log_every: 1
  mae: {{period: 2, unit: steps}}
evaluation: {{beam_size: 2, max_length_extra: 3}}
systems:
  standard: {{description: plain}}
  mae: {{model: {{attention: mae}}}}
  moa: {{model: {{attention: {{encoder_self: {{system: moa, size: 2K4E8D}}}}}}}}
"""


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Different sequences of one to five numerals, and their translations."""
    draw = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < count:
        digits = [draw.randrange(10) for _ in range(draw.randrange(1, 6))]
        found[" ".join(ENGLISH[d] for d in digits)] = " ".join(FRENCH[d] for d in digits)
    return list(found.items())


def write_recipe(folder: Path) -> Path:
    """Write the corpus and its recipe; returns the recipe's path."""
    sources, targets = zip(*pairs(120), strict=True)
    (folder / "train.en").write_text("\n".join(sources) + "\n", encoding="utf-8")
    (folder / "train.fr").write_text("\n".join(targets) + "\n", encoding="utf-8")
    recipe = folder / "numerals.yaml"
    recipe.write_text(RECIPE.format(folder=folder.as_posix()), encoding="utf-8")
    return recipe
