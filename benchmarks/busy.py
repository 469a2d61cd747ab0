"""What it is worth that threads sleep while they wait, on a busy machine and on a quiet one.

    python benchmarks/busy.py                 # 5 rounds of three systems: about 25 minutes
    python benchmarks/busy.py --programs 4    # beside four programs; by default, one a core

Every round trains each system of the demo twice, for a few steps: once with threads that sleep
while they wait, as the commands have them do, and once with threads that spin first, as the
libraries do by default. Both orders come in turn. Then the same beside programs that compute
without end. The figures are seconds of training, without the start, the data and the evaluation:
medians over rounds, and the median of the ratio within a round with the lowest and the highest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from headwise.threads import VARIABLES

# What GNU's and LLVM's library do where nothing is said: 300,000 turns of a loop, and 200 ms.
WAITING = {
    "sleeping": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spinning": {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"},
}
PROGRAM = "while True: pass"


def main() -> None:
    """Measure and print."""
    options = parse_options()
    systems = options.systems.split(",")
    seconds: dict[tuple[str, int, str], list[float]] = {}
    rounds = [
        (system, programs, number)
        for number in range(options.rounds)
        for programs in (0, options.programs)
        for system in systems
    ]
    for system, programs, number in track(rounds, "measuring", transient=True):
        with busy(programs):
            for waiting in sorted(WAITING, reverse=number % 2 == 1):
                taken = train(system, WAITING[waiting], options.steps)
                seconds.setdefault((system, programs, waiting), []).append(taken)
                if options.record:
                    with options.record.open("a", encoding="utf-8") as file:
                        print(json.dumps([number, system, programs, waiting, taken]), file=file)
    Console().print(ratios_table(seconds, systems, options))


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """Has this many programs compute in the meantime."""
    running = [subprocess.Popen([sys.executable, "-c", PROGRAM]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def train(system: str, waiting: dict[str, str], steps: int) -> float:
    """Seconds that a short training of a system of the demo takes."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "headwise", "train", "interface-strings"]
        command += ["--system", system, "--output", f"{folder}/run"]
        for change in (f"training.max_steps={steps}", "evaluation.beam_size=1"):
            command += ["--set", change]
        done = subprocess.run(
            command, env={**environment, **waiting}, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stderr)
        result = json.loads(Path(folder, "run", "result.json").read_text(encoding="utf-8"))
    return result["seconds"]


def ratios_table(
    seconds: dict[tuple[str, int, str], list[float]],
    systems: list[str],
    options: argparse.Namespace,
) -> Table:
    """Medians, and how much longer threads that spin take."""
    table = Table(
        title=f"seconds for {options.steps} steps of the demo, {options.rounds} rounds",
        caption=f"{os.cpu_count()} cores, {os.environ.get('OMP_NUM_THREADS', 'all')} threads",
    )
    for heading in ("system", "beside it", *WAITING, "ratio", "lowest to highest"):
        left = heading in ("system", "beside it")
        table.add_column(heading, justify="left" if left else "right")
    for system in systems:
        for programs in (0, options.programs):
            sleeping, spinning = (seconds[system, programs, waiting] for waiting in WAITING)
            ratios = [spun / slept for slept, spun in zip(sleeping, spinning, strict=True)]
            table.add_row(
                system,
                f"{programs} busy programs" if programs else "nothing",
                f"{statistics.median(sleeping):.1f}",
                f"{statistics.median(spinning):.1f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            )
    return table


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--systems", default="standard,agreement,moa", help="of the demo")
    parser.add_argument("--programs", type=int, default=os.cpu_count(), help="busy programs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="of training")
    parser.add_argument("--record", type=Path, help="a file to append every figure to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
