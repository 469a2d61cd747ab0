"""The pages say what the code does."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torchrun import on_processes
from transformers import GPT2Config, GPT2LMHeadModel

import headwise as hw
from headwise.recipes import load_recipe, shipped_recipes
from headwise.recipes.catalogue import TASKS
from headwise.recipes.keys import keys_page, shared_sections, task_sections

ROOT = Path(__file__).parents[2]
# Those with examples in Python.
PAGES = (
    "README.md",
    "docs/adapters.md",
    "docs/analysis.md",
    "docs/drop-in.md",
    "docs/explore.md",
    "docs/models.md",
    "docs/own-loop.md",
    "docs/pretrained.md",
)
# Others whose links are checked here.
LINKING = (
    "docs/examples.md",
    "docs/index.md",
    "docs/look-inside.md",
    "docs/project.md",
    "docs/reference/index.md",
    "docs/scale.md",
    "docs/tutorial.md",
)


def test_the_page_of_keys_has_a_section_for_every_task() -> None:
    headings = re.findall(r"^## (.+)$", keys_page(), flags=re.MULTILINE)
    assert headings == ["All tasks", *TASKS]


@pytest.mark.parametrize("task", TASKS)
def test_every_key_says_what_it_means(task: str) -> None:
    sections = [*shared_sections(), *task_sections(task)]
    keys = [key for section in sections for key in section.keys]
    assert {"training.max_steps", "model.attention", "evaluation.ablation"} < {k.name for k in keys}
    for key in keys:
        assert key.meaning, key.name


@pytest.mark.parametrize("name", shipped_recipes())
def test_the_keys_of_shipped_recipes_are_among_them(name: str) -> None:
    recipe = load_recipe(name).recipe
    sections = [*shared_sections(), *task_sections(recipe.task)]
    known = {key.name for section in sections for key in section.keys}
    for part in ("data", "model", "evaluation"):
        for key in type(getattr(recipe, part)).model_fields:
            assert f"{part}.{key}" in known


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    examples = (ROOT / page).read_text(encoding="utf-8").split("```python\n")[1:]
    assert examples
    for example in examples:
        exec(compile(example.split("```")[0], page, "exec"), {})


def test_the_cards_of_the_start_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = torch.randint(0, 100, (1, 20))
    config = GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=8)
    cards = (ROOT / "docs/index.md").read_text(encoding="utf-8").split("```python\n")[1:]
    names = [
        {
            "layer": nn.TransformerEncoderLayer(512, 8, batch_first=True),
            "x": torch.zeros(1, 4, 512),
        },
        {"layer": "transformer.h.1.attn", "text": text},
        {"layer": "transformer.h.1.attn"},
    ]
    for card, given in zip(cards, names, strict=True):
        exec(card.split("```")[0], {"hw": hw, "model": GPT2LMHeadModel(config).eval(), **given})


def test_the_sidebar_has_at_most_fifteen_pages() -> None:
    trees = re.findall(
        r"```{toctree}\n(.*?)```", (ROOT / "docs/index.md").read_text(encoding="utf-8"), re.DOTALL
    )
    pages = [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]
    assert 0 < len(pages) <= 15


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700


def test_readme_and_metadata_name_one_address() -> None:
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (address,) = re.findall(r'^Repository = "(.+)"$', metadata, flags=re.MULTILINE)
    for page, times in (("README.md", 2), ("docs/index.md", 2)):
        text = (ROOT / page).read_text(encoding="utf-8")
        found = re.findall(r"(?:git\+|git clone |`)(https://[\w./-]+)", text)
        assert found == [address] * times


@pytest.mark.parametrize("page", [*PAGES, *LINKING])
def test_pages_name_files_and_headings_that_exist(page: str) -> None:
    path = ROOT / page
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [part.split(")")[0] for part in prose.split("](")[1:]]
    local = [link.partition("#") for link in links if not link.startswith("http")]
    assert any(file for file, _, _ in local)
    for file, _, heading in local:
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not heading or heading in anchors(target), f"{file}#{heading}"


def test_no_page_leads_to_one_that_is_made_with_the_site() -> None:
    made = {"keys.md", "claims.md"}
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        links = re.findall(r"\]\((?:docs/)?([\w-]+\.md)", page.read_text(encoding="utf-8"))
        assert page.name in made or not made & set(links), page


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them on the site and on code hosts."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_print_what_the_guide_shows(sharded: bool, tmp_path: Path) -> None:
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"\*\*train_parallel\.py\*\*\n\n```py\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"Both print\n\n```\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train_parallel.py").write_text(script, encoding="utf-8")
    printed = on_processes(2, tmp_path / "train_parallel.py", *(["--shard"] if sharded else []))
    expected, found = (
        [float(number) for number in re.findall(r"[\d.]+", text)] for text in (shown, printed)
    )
    assert found == pytest.approx(expected, abs=2e-3)
