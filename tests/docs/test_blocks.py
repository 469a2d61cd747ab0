"""All that README, docs and examples tell a reader to type works, and links lead somewhere."""

import importlib
import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
import yaml

import headwise as hw
from headwise.cli import app
from headwise.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[2]
PAGES = [
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
]
# Blocks that need a tool of others, which `make nightly ONLY=tools` installs.
OF_TOOLS = {"peft": "from peft import", "pytorch_lightning": "import pytorch_lightning"}
# A page whose blocks go on with the names of those before, and what is made shorter in it.
IN_ONE_SESSION = {"docs/what-the-heads-do.md": ("steps = 400", "steps = 4")}


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def fences(page: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text(page), re.DOTALL | re.MULTILINE)


def files(page: str) -> dict[str, str]:
    """Blocks under the name of a file, such as **scaled_heads.py**."""
    return dict(re.findall(r"\*\*(\S+\.\w+)\*\*\n\n```\w+\n(.*?)```", text(page), re.DOTALL))


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(kind == "python" for kind, _ in fences(p))]
)
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, content in files(page).items():
        Path(name).write_text(content, encoding="utf-8")
    session: dict[str, object] = {"__name__": "page"}
    for kind, code in fences(page):
        missing = [tool for tool, said in OF_TOOLS.items() if said in code and not find_spec(tool)]
        if kind != "python" or missing:
            continue
        if page not in IN_ONE_SESSION:
            session = {"__name__": "page"}
        exec(compile(code.replace(*IN_ONE_SESSION.get(page, ("", ""))), page, "exec"), session)
    tests = [name for name in files(page) if name.startswith("test_")]
    assert not tests or pytest.main(["-q", "-p", "no:cacheprovider", *tests]) == 0


def commands() -> list[tuple[str, str]]:
    """Each line of a block that begins with `headwise`, with the page that has it."""
    found = []
    for page in PAGES:
        for _, block in fences(page):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.search(r"(?:^|\| )(headwise .*?)(?: [|>] |$)", line.strip())
                if command and not re.search(r"\s\[|\.\.\.|…", command[1]):
                    found.append((page, command[1]))
    return found


def test_commands_have_the_options_that_pages_give_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # where `--import` finds the systems of the pages
    for name, content in ((n, c) for page in PAGES for n, c in files(page).items() if "/" not in n):
        (tmp_path / name).write_text(content, encoding="utf-8")
    group = typer.main.get_command(app)
    refused = []
    for page, line in commands():
        try:
            words = shlex.split(line, comments=True)[1:]
            context = group.make_context("headwise", list(words), resilient_parsing=True)
            if words == ["--version"]:
                continue
            _, command, rest = group.resolve_command(context, words)
            command.make_context(words[0], list(rest), parent=context)
        except typer.Exit:  # `--help` prints and ends
            continue
        except Exception as error:  # whatever a command's parser raises
            refused.append(f"{page}: {line}: {error}")
    assert not refused
    assert len(commands()) > 30


RECIPES = [(page, block) for page in PAGES for kind, block in fences(page) if kind == "yaml"]


@pytest.mark.parametrize(("page", "block"), RECIPES, ids=[page for page, _ in RECIPES])
def test_recipes_are_valid_with_every_system_and_data_set(page, block, tmp_path, monkeypatch):
    """What is a part of a recipe is read as a change of a shipped one."""
    monkeypatch.syspath_prepend(tmp_path)
    for module in {module for module, _ in re.findall(r"\b(\w+):([A-Z]\w+)", block)}:
        (tmp_path / f"{module}.py").write_text(files(page)[f"{module}.py"], encoding="utf-8")
        importlib.import_module(module)
    keys = yaml.safe_load(block)
    recipe = keys if "task" in keys else {"base": "mae-wmt14-en-de", **keys}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    file = load_recipe(str(tmp_path / "recipe.yaml"))
    for system in file.system_names:
        for dataset in file.dataset_names or [None]:
            file.system(system, dataset)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them on the site and on code hosts."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            file, _, heading = link.partition("#")
            target = (ROOT / page).parent / file if file else ROOT / page
            if link.startswith(("http", "mailto:")):
                continue
            if not target.exists() or (heading and heading not in anchors(target)):
                broken.append(f"{page}: {link}")
    assert not broken


def test_the_reference_describes_every_public_name_once() -> None:
    described = re.findall(
        r"^\.\. auto(?:class|function):: (\w+)$", text("docs/reference.md"), flags=re.MULTILINE
    )
    public = {name: getattr(hw, name) for name in hw.__all__}
    own = [name for name, of in public.items() if of.__name__ == name]  # no module, no short name
    assert sorted(described) == sorted(own)


EXAMPLES = ROOT / "examples"
# What is changed in each to make it short.
SHORT = {
    "drop_in_attention": {"SEEDS": "(1, 2)", "EPOCHS": "1"},
    "gate_a_pretrained_model": {
        "PACKAGES": '("rich", "typer")',
        "STEPS, PRETRAINING_STEPS": "2, 2",
    },
    "what_the_heads_do": {"PACKAGES": '("rich", "pydantic", "typer")', "STEPS": "2"},
    "a_system_of_your_own": {
        "PACKAGES": '["rich", "pydantic", "typer"]',
        "STEPS": "3",
        "SEEDS": "[1, 2]",
    },
}


def shortened(name: str) -> str:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    for setting, value in SHORT[name].items():
        text, count = re.subn(rf"^{setting} = [^#\n]*", f"{setting} = {value}  ", text, flags=re.M)
        assert count == 1, f"{name}.py has no setting {setting}"
    return text


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_runs(name, tmp_path, monkeypatch):
    script = tmp_path / f"{name}.py"
    script.write_text(shortened(name), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
