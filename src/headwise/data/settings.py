"""The settings of data: which files or dataset, which columns, and how they are divided into parts.

One class serves all tasks; a task adds its own keys by a subclass.

    data: {files: {train: reviews.tsv}, columns: {text: review, label: stars}}
    data: {files: {train: {source: train.en, target: train.de}}}
    data: {path: wmt/wmt14, name: de-en, columns: {source: translation.en, target: translation.de}}
    data: {path: interface-strings, options: {language: de}}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from headwise.messages import did_you_mean
from headwise.settings import FrozenSettings, merge

PARTS = ("train", "validation", "test")


def absolute(path: str) -> str:
    """A run may be evaluated from another folder than the one in which it was started."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _absolute_folder(path: str) -> str:
    return absolute(path) if Path(path).expanduser().is_dir() else path


File = Annotated[str, AfterValidator(absolute)]
Files = File | list[File] | dict[str, File | list[File]]
# It becomes a part of the name of a folder, and the command line separates names by commas.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w+-]*$")]
# Keys that say which data are read. Data from another source have none of those of the first.
_OF_SOURCE = ("path", "name", "revision", "files", "split", "columns", "options", "tests", "title")


class Data(FrozenSettings):
    """Which data a run reads, with the arguments of `datasets.load_dataset`."""

    title: str = ""
    """What pages call the data. Default: the name of the dataset, or of the training files."""
    path: Annotated[str, AfterValidator(_absolute_folder)] | None = None
    """Name of a dataset on the Hugging Face hub, a folder that holds one, or the name of data that
    are there once headwise is installed; `headwise recipes --keys TASK` lists these."""
    name: str | None = None
    """Configuration (subset) of the dataset."""
    revision: str | None = None
    """Tag or commit of the dataset, which pins its content."""
    files: dict[str, Files] = {}
    """Files in place of `path`: each part (`train`, `validation`, `test`) has a file, a list of
    files, a folder, or a file for each column, of which lines of equal number belong together.
    Plain text has a row in each line; .csv, .tsv, .json, .jsonl and .parquet have named columns,
    and all but .parquet may be compressed (.gz, .bz2, .xz)."""
    split: dict[str, str | None] = {}
    """Split of the dataset for each part, `test: test[:1000]`; by default the parts' own names.
    With null the part is a share of the training data."""
    columns: dict[str, str] = {}
    """What the columns are called in the data: `{source: translation.en}`."""
    options: dict[str, Any] = {}
    """Further arguments of the data that `path` names."""
    streaming: bool = False
    """Whether the training part is read and encoded while the model is trained on it, and is never
    stored. It has no length then: training.max_steps ends the training."""
    window: int = Field(10_000, ge=1)
    """With streaming, how many rows each process has in memory at once, which are shuffled."""
    held_out: int = Field(1000, ge=1)
    """With streaming, how many rows at the head of the data are the validation part, and as many
    the test part, where these are not given."""
    validation_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the training data that becomes the validation part if none is given."""
    test_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the training data that becomes the test part if none is given."""
    train_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the training part that is used. It is the same for all systems and seeds, and a
    larger share contains a smaller one."""
    tests: dict[Name, dict[str, Any]] = {}
    """Further test sets: each name has the keys of `data` that differ; of them the test part is
    read. They have no part in training, so that they can be added later."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for part in {*self.files, *self.split} - {*PARTS}:
            raise ValueError(f"there is no part {part!r}, expected one of {', '.join(PARTS)}")
        if (self.path is None) == ("train" not in self.files):
            raise ValueError(
                f"{'both' if self.path else 'neither'} of path and files.train is given, expected "
                f"one of them: data.path names a dataset, data.files.train a file or folder"
            )
        if self.streaming and self.train_fraction < 1.0:
            raise ValueError(
                f"train_fraction is {self.train_fraction} and streaming is true, expected one of "
                f"them: no share of a stream is known before its end; set training.max_steps"
            )
        for name, given in self.tests.items():
            if name in PARTS:
                raise ValueError(f"tests.{name} has the name of a part, expected another name")
            try:
                self.test_set(name)
            except ValidationError as error:
                problem = error.errors()[0]
                key = ".".join(map(str, problem["loc"]))
                hint = did_you_mean(key, type(self).model_fields)
                raise ValueError(f"tests.{name}.{key}: {problem['msg']}{hint}") from error
            if "files" in given:
                given["files"] = TypeAdapter(dict[str, Files]).validate_python(given["files"])
        return self

    def test_set(self, name: str) -> Self:
        """Returns the settings of the data whose test part is a further test set."""
        mine = self.model_dump(exclude={"tests", "streaming"}, exclude_defaults=True)
        return type(self).model_validate(merge_data(mine, self.tests[name]))

    @property
    def called(self) -> str:
        """What pages call the data."""
        if self.title or self.path:
            return self.title or " ".join(filter(None, (Path(self.path or "").name, self.name)))
        return ", ".join(Path(file).name for file in files_of(self.files["train"]))


def merge_data(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of data with changes; keys of another source than before are left out.

    Another source is another `path`, training files in place of a path, or the reverse.

    >>> merge_data({"path": "wmt/wmt14", "name": "de-en", "window": 5}, {"path": "my/folder"})
    {'window': 5, 'path': 'my/folder'}
    >>> merge_data({"files": {"train": "a.tsv"}}, {"files": {"test": "b.tsv"}})
    {'files': {'train': 'a.tsv', 'test': 'b.tsv'}}
    """
    path, files, others = under.get("path"), under.get("files"), over.get("files")
    is_other = path is not None and over.get("path", path) != path
    is_other |= path is not None and isinstance(others, Mapping) and "train" in others
    is_other |= files is not None and over.get("path") is not None
    merged = {key: value for key, value in under.items() if not (is_other and key in _OF_SOURCE)}
    return merge(merged, over)


def files_of(given: Files) -> list[str]:
    """Returns the paths that stand in the value of a part, column after column."""
    if isinstance(given, str):
        return [given]
    values = given.values() if isinstance(given, dict) else given
    return [path for each in values for path in files_of(each)]
