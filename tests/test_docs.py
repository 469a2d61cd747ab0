"""The pages say what the code does."""

import re
from pathlib import Path

import pytest
from torchrun import on_processes

from headwise.recipes import load_recipe, shipped_recipes
from headwise.recipes.catalogue import TASKS
from headwise.recipes.keys import keys_page, shared_sections, task_sections

ROOT = Path(__file__).parent.parent
# Those with examples in Python.
PAGES = (
    "README.md",
    "docs/adapters.md",
    "docs/analysis.md",
    "docs/drop-in.md",
    "docs/explore.md",
    "docs/index.md",
    "docs/models.md",
    "docs/own-loop.md",
    "docs/pretrained.md",
)
# Others whose links are checked here.
LINKING = ("docs/examples.md", "docs/look-inside.md", "docs/scale.md", "docs/tutorial.md")


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
