"""The pages say what the code does."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from headwise.tasks.corpora import FilesCorpus, HubCorpus, InterfaceStringsCorpus
from headwise.tasks.metrics import TranslationEvaluation
from headwise.tasks.settings import SystemSettings
from headwise.tasks.tokenization import TokenizerSettings
from headwise.tasks.translation import TranslationModel, TranslationRecipe
from headwise.training.settings import BranchSettings, GateSettings, TrainingSettings

ROOT = Path(__file__).parent.parent


SETTINGS = [
    ("", TranslationRecipe),
    ("data.", InterfaceStringsCorpus),
    ("data.", FilesCorpus),
    ("data.", HubCorpus),
    ("tokenizer.", TokenizerSettings),
    ("model.", TranslationModel),
    ("training.", TrainingSettings),
    ("training.gates.", GateSettings),
    ("training.branches.", BranchSettings),
    ("evaluation.", TranslationEvaluation),
    ("systems.NAME.", SystemSettings),
]


@pytest.mark.parametrize(("prefix", "settings"), SETTINGS)
def test_every_key_of_a_recipe_is_documented(prefix: str, settings: type[BaseModel]) -> None:
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8").splitlines()
    for name, field in settings.model_fields.items():
        rows = [line for line in page if line.startswith(f"| `{prefix}{name}` |")]
        assert field.description, f"{prefix}{name} has no description"
        assert any(row.endswith(f"| {field.description} |") for row in rows), prefix + name


def test_documented_keys_exist() -> None:
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    page = page[page.index("## Keys") :]
    documented = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    known = {prefix + name for prefix, settings in SETTINGS for name in settings.model_fields}
    assert set(documented) == known


def test_readme_example_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = readme.split("```python\n")[1:]
    assert examples
    for example in examples:
        exec(compile(example.split("```")[0], "README.md", "exec"), {})


def test_readme_names_files_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [part.split(")")[0] for part in readme.split("](")[1:]]
    local = [link.partition("#")[0] for link in links if not link.startswith("http")]
    assert local
    for link in local:
        assert (ROOT / link).exists(), link
