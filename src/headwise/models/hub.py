"""The Hugging Face hub: folders of models and of gates are sent there with a card, and fetched."""

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, ModelCardData

from headwise import __version__
from headwise.files import write_text

CARD = "README.md"

# A module in the folder of a model, which transformers imports if it is trusted and does not know
# the model. Before, it tells the user to install what the module imports.
FINDER = "find_headwise"
FINDER_TEXT = '''"""Where transformers finds this model: in headwise, see `pip install headwise`."""

from {kind.__module__} import {kind.__name__}
'''


def write_card(folder: Path, title: str, text: str, load: str, **data: Any) -> None:
    """Writes a card, with lines of Python that load the model, unless its user has put one there.

    `data` is what the hub reads of it, see `huggingface_hub.ModelCardData`.
    """
    if (folder / CARD).exists():
        return
    made_by = (
        f"headwise {__version__}, transformers {transformers.__version__}, PyTorch "
        f"{torch.__version__}, Python {platform.python_version()}"
    )
    facts = ModelCardData(library_name="headwise", **data).to_yaml()
    parts = (f"---\n{facts}\n---", f"# {title}", text, f"```python\n{load}\n```")
    write_text(folder / CARD, "\n\n".join((*parts, f"Saved with {made_by}.\n")))


def send(
    folder: Path,
    repo_id: str,
    files: list[str] | None = None,
    private: bool | None = None,
    token: bool | str | None = None,
    **commit: Any,
) -> str:
    """Uploads a folder, or some files of it, to a repository, which is made if there is none.

    A card that the repository has stays. `commit` is for `HfApi.upload_folder`. Returns the address
    of the commit.
    """
    if repo_id.count("/") != 1:  # the card says by which name the repository is loaded
        raise ValueError(f"push_to_hub is {repo_id!r}, expected a user and a name: user/name")
    with _hub(
        f"push_to_hub is {repo_id!r}, and nothing could be sent there",
        f"log in with `hf auth login` as a user who may write there, and see that the hub can be "
        f"reached; or upload a saved folder later: hf upload {repo_id} FOLDER",
    ) as api:
        api.create_repo(repo_id, private=private, token=token, exist_ok=True)
        revision = commit.get("revision")
        if revision is not None and not revision.startswith("refs/pr"):
            api.create_branch(repo_id, branch=revision, token=token, exist_ok=True)
        has_card = api.file_exists(repo_id, CARD, revision=revision, token=token)
        kept = [CARD] if has_card else None
        which: dict[str, Any] = {"allow_patterns": files, "ignore_patterns": kept}
        made = api.upload_folder(
            repo_id=repo_id, folder_path=folder, token=token, **which, **commit
        )
    return str(made)


def fetch(name: str, files: list[str], revision: str | None = None) -> Path:
    """Downloads files of a repository, unless they are here already; returns their folder."""
    with _hub(
        f"folder is {name!r}, which is no folder here, and the hub gave nothing of that name",
        "give a folder that is there, or user/name of a repository on the hub; see that the hub "
        "can be reached, and, if the repository is private, log in with `hf auth login`",
    ) as api:
        return Path(api.snapshot_download(name, allow_patterns=files, revision=revision))


def is_name_on_hub(name: str) -> bool:
    """Whether a text may be the name of a repository, and is no folder or file here."""
    return bool(re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name)) and not Path(name).exists()


@contextmanager
def _hub(problem: str, remedy: str) -> Iterator[HfApi]:
    try:
        yield HfApi(library_name="headwise", library_version=__version__)
    except Exception as error:  # those of connections have no class in common with the hub's own
        raise OSError(f"{problem} ({type(error).__name__}: {error}): {remedy}") from error
