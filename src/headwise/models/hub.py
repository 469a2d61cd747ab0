"""The Hugging Face hub: folders of models and of gates are sent there with a card, and fetched."""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, ModelCardData
from huggingface_hub.utils import validate_repo_id

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
    """Writes the card of a model, unless the folder has one, which may be its user's work.

    Args:
        folder: where to write.
        title: the heading.
        text: what the model is.
        load: lines of Python that load it.
        data: what the hub reads of it, see `huggingface_hub.ModelCardData`.
    """
    if (folder / CARD).exists():
        return
    facts = ModelCardData(library_name="headwise", **data).to_yaml()
    made_by = (
        f"headwise {__version__}, transformers {transformers.__version__}, PyTorch "
        f"{torch.__version__}, Python {platform.python_version()}"
    )
    parts = (f"---\n{facts}\n---", f"# {title}", text, f"```python\n{load}\n```")
    write_text(folder / CARD, "\n\n".join((*parts, f"Saved with {made_by}.")) + "\n")


def send(
    folder: Path,
    repo_id: str,
    files: Sequence[str] | None = None,
    *,
    private: bool | None = None,
    token: bool | str | None = None,
    **commit: Any,
) -> str:
    """Uploads a folder to a repository of the hub, which is made if it is not there.

    A card that the repository has stays.

    Args:
        folder: the folder.
        repo_id: `user/name`.
        files: the files to upload; all of the folder by default.
        private: whether a new repository is private.
        token: as everywhere on the hub: by default that of `hf auth login`, or `HF_TOKEN`.
        commit: `commit_message`, `revision`, `create_pr` and so on of `HfApi.upload_folder`.

    Returns:
        The address of the commit.

    Raises:
        OSError: the hub cannot be reached, or does not let the user write there.
        ValueError: the name has no user.
    """
    if repo_id.count("/") != 1:  # the card says by which name the repository is loaded
        raise ValueError(f"push_to_hub is {repo_id!r}, expected a user and a name: user/name")
    api = HfApi(library_name="headwise", library_version=__version__)
    remedy = (
        f"see that the name is user/name of a user as whom you may write, log in with `hf auth "
        f"login` or set HF_TOKEN, and see that the hub can be reached; or save into a folder and "
        f"upload that later: hf upload {repo_id} FOLDER"
    )
    with _errors_of_the_hub(f"push_to_hub is {repo_id!r}, and nothing could be sent there", remedy):
        repo_id = api.create_repo(repo_id, private=private, token=token, exist_ok=True).repo_id
        has_card = api.file_exists(repo_id, CARD, revision=commit.get("revision"), token=token)
        done = api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            allow_patterns=None if files is None else [*files],
            ignore_patterns=[CARD] if has_card else None,
            token=token,
            **commit,
        )
    return str(done)


def fetch(name: str, files: Sequence[str], revision: str | None = None) -> Path:
    """Downloads files of a repository of the hub, if they are not here yet; returns their folder.

    Raises:
        OSError: the name is none of the hub, or the hub cannot be reached.
    """
    api = HfApi(library_name="headwise", library_version=__version__)
    remedy = (
        "give a folder that is there, or user/name of a repository on the hub; see that the hub "
        "can be reached, and, if the repository is private, log in with `hf auth login`"
    )
    said = f"folder is {name!r}, which is no folder here, and the hub gave nothing of that name"
    with _errors_of_the_hub(said, remedy):
        return Path(api.snapshot_download(name, allow_patterns=[*files], revision=revision))


def is_name_on_hub(name: str) -> bool:
    """Whether a text may be the name of a repository, and is no folder or file here.

    >>> is_name_on_hub("openai-community/gpt2"), is_name_on_hub("/home/me/gpt2")
    (True, False)
    """
    try:
        validate_repo_id(name)
    except ValueError:
        return False
    return not Path(name).exists()


@contextmanager
def _errors_of_the_hub(said: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # those of its connections have no class in common with its own
        raise OSError(f"{said} ({type(error).__name__}: {error}): {remedy}") from error
