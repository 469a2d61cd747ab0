"""Runs `headwise`, also as `python -m headwise`, so that `torchrun -m headwise train ...` works."""

import sys

from headwise.threads import sleep_while_waiting

# What the commands need beside what the modules need: the extra `train`, by the names of modules.
_TRAIN = (
    *("PIL", "accelerate", "datasets", "filelock", "jinja2", "matplotlib", "rich", "sacrebleu"),
    *("scipy", "sklearn", "tokenizers", "typer", "yaml"),
)


def main() -> None:
    """Runs the command of `sys.argv`; without the extra `train`, says how to install it."""
    sleep_while_waiting()
    try:
        from headwise.cli import app

        app(prog_name="headwise")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _TRAIN:
            raise
        sys.exit(
            f"error: the commands need {missing}, which is not installed: "
            f"pip install 'headwise[train]'"
        )


if __name__ == "__main__":
    main()
