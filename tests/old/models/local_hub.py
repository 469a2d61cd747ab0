"""A hub that is a folder, in the place of `huggingface_hub.HfApi`."""

import shutil
from pathlib import Path
from types import SimpleNamespace

from huggingface_hub.utils import filter_repo_objects


class LocalHub:
    """Does what `HfApi` does that headwise asks of it; `calls` has what it was asked."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.calls = []

    def create_repo(self, repo_id, *, private=None, token=None, exist_ok=False):
        (self.folder / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        self.calls.append({"made": repo_id, "private": private})
        return SimpleNamespace(repo_id=repo_id)

    def create_branch(self, repo_id, *, branch, token=None, exist_ok=False):
        self.calls.append({"branch": branch, "of": repo_id, "exist_ok": exist_ok})

    def file_exists(self, repo_id, filename, *, revision=None, token=None):
        return (self.folder / repo_id / filename).is_file()

    def upload_folder(
        self,
        *,
        repo_id,
        folder_path,
        allow_patterns=None,
        ignore_patterns=None,
        token=None,
        commit_message=None,
        revision=None,
    ):
        paths = [str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*")]
        sent = list(
            filter_repo_objects(
                paths, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            )
        )
        for name in sent:
            shutil.copy(Path(folder_path, name), self.folder / repo_id / name)
        asked = {"message": commit_message, "revision": revision, "token": token}
        self.calls.append({"sent": sorted(sent), **asked})
        return f"https://hub/{repo_id}/commit/1"

    def snapshot_download(self, repo_id, *, revision=None, allow_patterns=None):
        if not (self.folder / repo_id).is_dir():
            raise FileNotFoundError("Repository Not Found")
        self.calls.append({"fetched": sorted(allow_patterns), "revision": revision})
        return str(self.folder / repo_id)
