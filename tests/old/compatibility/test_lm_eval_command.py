"""lm-evaluation-harness by its own command, on a task that is a file."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny_tasks
import yaml
from rich.console import Console

from headwise.recipes import load_recipe
from headwise.runs.evaluating import evaluate_run
from headwise.runs.one_run import train_system
from headwise.runs.preparing import claim_folder, prepare_task
from headwise.tasks.language_modelling import LanguageModelling


def commands() -> list[tuple[list[str], str]]:
    """Each way to have it find our models, see docs/other-tools.md: a command, and an argument."""
    made = [([sys.executable, "-m", "lm_eval", "run"], ",trust_remote_code=True")]
    # Plug-ins came after 0.4.13. In its source, since the command takes seconds to say so.
    source = Path(find_spec("lm_eval").origin).parent / "_cli" / "run.py"
    if "--plugins" in source.read_text(encoding="utf-8"):
        made.append(([*made[0][0], "--plugins", "headwise"], ""))
    return made


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval")
def test_its_command_scores_a_run_as_headwise_does(tmp_path):
    path = tiny_tasks.write_recipe("language-modelling", tmp_path)
    # Windows of the same length with one token of context are those of the harness.
    changes = ["evaluation.context=0", "block_length=512", "training.batch_tokens=600"]
    recipe, run = load_recipe(str(path), changes).system("moa"), tmp_path / "run"
    claim_folder(run, recipe)
    task = prepare_task(recipe, run, Console(quiet=True))
    train_system(recipe, "moa", run, task, Console(quiet=True))
    outcome = evaluate_run(run, "test", Console(quiet=True)).outcome
    (expected,) = [score.value for score in outcome.scores if score.name == "bits per byte"]

    assert isinstance(task, LanguageModelling) and len(task.test) == 1
    text = "".join(f"{line}\n" for document in task.corpus.test for line in document)
    folder = tmp_path / "tasks"
    folder.mkdir()
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}) + "\n")
    ours = {
        "task": "our_perplexity",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "text.jsonl")}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    (folder / "our_perplexity.yaml").write_text(yaml.safe_dump(ours))
    for number, (command, argument) in enumerate(commands()):
        out = tmp_path / f"out{number}"
        done = subprocess.run(
            [
                *(*command, "--model", "hf", "--device", "cpu"),
                *("--model_args", f"pretrained={run / 'model'},add_bos_token=False{argument}"),
                *("--tasks", "our_perplexity", "--include_path", str(folder)),
                *("--output_path", str(out)),
            ],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(tmp_path / "cache"),
                "CUDA_VISIBLE_DEVICES": "",
            },
        )
        assert done.returncode == 0, done.stderr
        (file,) = out.rglob("results*.json")
        found = json.loads(file.read_text())["results"]
        assert found["our_perplexity"]["bits_per_byte,none"] == pytest.approx(expected, rel=1e-5)
