"""Made-up comparisons: folders of finished runs as `headwise compare` leaves them."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from headwise.analysis.results import ComparisonRecord, RunResult, Trial, Trials
from headwise.analysis.speed import OverRounds
from headwise.tasks.scores import Outcome, Sample, Score

# How good a system is, how long its step takes, and what its modules share their decisions among.
KNOWN = {"standard": (0.0, 1.0, 0), "mae-7": (2.0, 1.06, 8), "tim": (0.3, 1.22, 2)}
VALIDATIONS = range(50, 601, 50)


def png(width: int = 40, shade: int = 90) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, width // 2), shade).save(buffer, format="PNG")
    return buffer.getvalue()


def scores(
    system: str, seed: int, items: int, shift: float = 0.0, scale: float = 1.0
) -> list[Score]:
    """A score of which more is better, and one of which less is, on items that systems share.

    Without items there are values alone, as of a score of a whole test set.
    """
    gain, _, _ = KNOWN.get(system, (1.0, 1.31, 0))
    shared = np.random.default_rng(7).normal(size=items)
    own = np.random.default_rng([seed, len(system)]).normal(size=items)
    if not items:
        value = 50 + shift + gain + np.random.default_rng([seed, len(system)]).normal()
        return [Score(name="accuracy", value=value), Score(name="surprise", value=-value / 9)]
    good = (50 + scale * (shift + gain + 4 * shared + own + 0.1 * seed)).clip(0, 100) / 100
    costs = 3 - 0.05 * gain + 0.2 * shared + 0.02 * own
    rows = np.column_stack([good, np.ones(items)])
    return [
        Score.from_rows("accuracy", rows, "accuracy", note="nrefs:1"),
        Score.from_rows("surprise", costs[:, None], lower_is_better=True, digits=3),
    ]


def history(system: str, seed: int) -> list[dict[str, float]]:
    gain, _, units = KNOWN.get(system, (1.0, 1.31, 0))
    rows: list[dict[str, float]] = []
    for step in range(10, VALIDATIONS.stop, 10):
        rows.append({"step": step, "loss": 2 + 6 * math.exp(-step / 150) + 0.1 * math.sin(step)})
        if step % 50 == 0:
            loss = 2.2 - 0.05 * gain + 6 * math.exp(-step / (150 - 5 * gain)) + 0.01 * seed
            row: dict[str, float] = {"step": step, "eval_loss": loss}
            for place in ("encoder_self.0", "decoder_self.0") if units else ():
                row |= {f"entropy {place}": math.log(units) * (1 - step / 2000)}
                row[f"even entropy {place}"] = math.log(units)
                # Which unit is busy is another one in each run.
                shares = (1 + (u + seed) % units * step / 600 for u in range(units))
                row |= {f"share {place}/{u}": share for u, share in enumerate(shares)}
                total = sum(row[f"share {place}/{u}"] for u in range(units))
                row |= {
                    f"share {place}/{u}": row[f"share {place}/{u}"] / total for u in range(units)
                }
                row |= {f"explained {place}/side": step / 700}
            rows.append(row)
    return rows


def write_run(
    folder: Path,
    system: str,
    seed: int,
    *,
    items: int = 40,
    tests: Sequence[str] = (),
    diverged: bool = False,
    stopped: bool = False,
    undefined: bool = False,
    text: str = "fine",
    shift: float = 0.0,
    scale: float = 1.0,
    first: int = 0,
) -> None:
    """A finished run; `first` is the number of the score that ranks systems.

    Its training may have stopped early, and its first score may be undefined.
    """
    found = {
        name: scores(system, seed, items, shift - n, scale)[:: -1 if first else 1]
        for n, name in enumerate(["", *tests])
    }
    if undefined:
        found[""][0].value = math.nan
    units = KNOWN.get(system, (0, 0, 0))[2]
    records = history(system, seed)[: 9 if diverged else 36 if stopped else None]
    result = RunResult(
        system=system,
        seed=seed,
        parameters=1_534_208 + 1000 * units,
        trained_parameters=0 if system == "tim" else None,
        macs=61_200_000,
        macs_lengths={"encoder": 32, "decoder": 32},
        steps=600,
        planned_steps=600,
        seconds=123.4,
        validation_loss=math.nan if diverged else records[-1].get("eval_loss", 2.0),
        history=records,
        units=dict.fromkeys(("encoder_self.0", "decoder_self.0"), "expert") if units else {},
        scores=[score.model_copy(update={"rows": []}) for score in found[""]],
        tests={n: [s.model_copy(update={"rows": []}) for s in found[n]] for n in tests},
    )
    run = folder / f"{system}-seed{seed}"
    run.mkdir(parents=True, exist_ok=True)
    shown = [
        Sample(
            given={"Source": f"Close {n} {text}", "Reference": f"Fermer {n}"}, made=f"{made} {n}"
        )
        for n, made in enumerate(["Fermer", text, f"{system} {text}"])
    ]
    picture = base64.b64encode(png(shade=len(system) * 9)).decode()
    for name, own in found.items():
        outcome = Outcome(scores=own, samples=shown, picture=picture)
        path = run / (f"outcome-{name}.json" if name else "outcome.json")
        path.write_text(outcome.model_dump_json(), encoding="utf-8")
    (run / "result.json").write_text(result.model_dump_json(), encoding="utf-8")


def write_compared(
    folder: Path,
    systems: Sequence[str] = ("standard", "mae-7", "tim"),
    seeds: Sequence[int] = (1, 2, 3),
    *,
    diverged: Sequence[str] = (),
    missing: Sequence[str] = (),
    stopped: Sequence[str] = (),
    undefined: Sequence[str] = (),
    text: str = "fine",
    **how: Any,
) -> Path:
    """The folder of a comparison on one data set; of some of its runs all is not well."""
    runs = {f"{system}-seed{seed}": (system, seed) for seed in seeds for system in systems}
    for name, (system, seed) in runs.items():
        if name not in missing:
            how |= {"diverged": name in diverged, "stopped": name in stopped}
            write_run(folder, system, seed, undefined=name in undefined, text=text, **how)
    times = {
        s: OverRounds(value=t, low=t - 0.04, high=t + 0.06, rounds=7)
        for s in systems
        for t in [KNOWN.get(s, (0, 1.31, 0))[1]]
    }
    trials = [
        Trial(values={"training.learning_rate": x}, validation_loss=x, steps=60, seconds=9)
        for x in (0.1, 0.2)
    ]
    found = ComparisonRecord(
        title=f"Interface strings {text}",
        task="translation",
        loss_name="nats per token",
        item_name="sentences",
        systems={s: f"about {s} {text}" if s != "standard" else "" for s in systems},
        runs={name: system for name, (system, _) in runs.items()},
        tuning={
            systems[-1]: Trials(seed=1_000_000, trials=trials, chosen=0, notes=[f"the best {text}"])
        },
        step_times=times,
        decoding_times=times,
        facts={"train": {"sentences": 2541, "file": f"data {text}"}, "test": {"sentences": 300}},
        recipe=f"title: {text}\n",
        command=f"headwise compare interface-strings --seeds 1 # {text}",
        versions={"headwise": "0.1.0"},
        machine="CPU, 2 cores",
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(found.model_dump_json(), encoding="utf-8")
    return folder
