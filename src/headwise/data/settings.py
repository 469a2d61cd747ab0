"""The settings of data: the files or the dataset, the columns, and the splits.

One class serves all tasks; a task adds its own keys by a subclass.

    data: {files: {train: reviews.tsv}, columns: {text: review, label: stars}}
    data: {files: {train: {source: train.en, target: train.de}}}
    data: {path: wmt/wmt14, name: de-en, columns: {source: translation.en, target: translation.de}}
    data: {path: interface-strings, options: {language: de}}
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from headwise.messages import expected_one_of
from headwise.settings import FrozenSettings, merge

SPLITS = ("train", "validation", "test")


def absolute(path: str) -> str:
    """Makes a path absolute, since a run may be evaluated from another folder; URLs stay."""
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _absolute_folder(path: str) -> str:
    return absolute(path) if Path(path).expanduser().is_dir() else path


File = Annotated[str, AfterValidator(absolute)]
Files = File | list[File] | dict[str, File | list[File]]
# A name becomes part of a folder's name, and the command line separates names by commas.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w+-]*$")]
# The keys that describe a source of data: another source inherits none of them.
_SOURCE_KEYS = ("path", "name", "revision", "files", "split", "columns", "options")


class Data(FrozenSettings):
    """The data of a run, with the arguments of `datasets.load_dataset`."""

    path: Annotated[str, AfterValidator(_absolute_folder)] | None = None
    """Name of a dataset on the Hugging Face hub, a folder that holds one, or the name of data that
    are installed with headwise; `headwise recipes --keys TASK` lists these."""
    name: str | None = None
    """Configuration (subset) of the dataset."""
    revision: str | None = None
    """Tag or commit of the dataset, which pins its content."""
    files: dict[str, Files] = {}
    """Files in place of `path`: each split (`train`, `validation`, `test`) has a file, a list of
    files, a folder of images or recordings, or a file for each column, whose lines of equal number
    belong together. Plain text has a row in each line; .csv, .tsv, .json, .jsonl and .parquet have
    named columns, and all but .parquet may be compressed (.gz, .bz2, .xz)."""
    split: dict[str, str | None] = {}
    """The name that the dataset has for each split, `test: test[:1000]`; by default the same name.
    With null the split is a share of the training data."""
    columns: dict[str, str] = {}
    """The names that the columns have in the data: `{source: translation.en}`."""
    options: dict[str, Any] = {}
    """Further arguments of the data that `path` names."""
    streaming: bool = False
    """Whether the training split is read and encoded during the training, and is never stored.
    It has no length then: training.max_steps ends the training."""
    window: int = Field(10_000, ge=1)
    """With streaming, the number of rows that each process has in memory and shuffles."""
    held_out: int = Field(1000, ge=1)
    """With streaming, the number of rows at the head of the data that are the validation split, and
    again the test split, where these are not given."""
    validation_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the training data that becomes the validation split if none is given."""
    test_fraction: float = Field(0.1, gt=0, lt=0.5)
    """Share of the training data that becomes the test split if none is given."""
    train_fraction: float = Field(1.0, gt=0, le=1)
    """Share of the training split that is used. It is the same for all systems and seeds, and a
    larger share contains a smaller one."""
    tests: dict[Name, dict[str, Any]] = {}
    """Further test sets: each name has the keys of `data` that differ, of those that say where the
    rows are. Only their test split is read, and the training does not depend on them, so that they
    can be added later."""

    # The keys on which the rows depend, and those that a further test set may change. All others
    # belong to the model, which reads all sets alike.
    source_keys: ClassVar[tuple[str, ...]] = _SOURCE_KEYS
    test_keys: ClassVar[tuple[str, ...]] = _SOURCE_KEYS

    @model_validator(mode="after")
    def _check(self) -> Self:
        for split in {*self.files, *self.split} - {*SPLITS}:
            raise ValueError(f"there is no split {split!r}, expected one of {', '.join(SPLITS)}")
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
        for name, keys in self.tests.items():
            if name in SPLITS:
                raise ValueError(f"tests.{name} has the name of a split, expected another name")
            for key in keys:
                if key not in self.test_keys:
                    raise ValueError(
                        f"tests.{name}.{key} cannot be set for a test set alone, "
                        f"{expected_one_of(key, self.test_keys)}"
                    )
            try:
                checked = self.test_set(name).model_dump()
            except ValidationError as error:
                problem = error.errors()[0]
                key = ".".join(map(str, ("tests", name, *problem["loc"])))
                message = problem["msg"].removeprefix("Value error, ")
                raise ValueError(f"{key}: {message}") from error
            for key, value in keys.items():  # with absolute paths
                new = checked[key]
                keys[key] = {x: new[x] for x in value} if isinstance(value, Mapping) else new
        return self

    def test_set(self, name: str) -> Self:
        """Returns the data whose test split is a further test set."""
        shared = self.model_dump(exclude={"tests", "streaming"}, exclude_defaults=True)
        return type(self).model_validate(merge_data(shared, self.tests[name]))

    def has_rows_of(self, other: Self) -> bool:
        """Whether the rows are those of other data."""
        return all(getattr(self, key) == getattr(other, key) for key in self.source_keys)

    @property
    def display_name(self) -> str:
        """The name of the dataset, or of the training files, for pages and messages."""
        if self.path:
            return " ".join(filter(None, (Path(self.path).name, self.name)))
        return ", ".join(Path(file).name for file in files_of(self.files["train"]))


def merge_data(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of data with changes; a change of the source drops the keys of the old one.

    Another source is another `path`, training files in place of a path, or the reverse.

    >>> merge_data({"path": "wmt/wmt14", "name": "de-en", "window": 5}, {"path": "my/folder"})
    {'window': 5, 'path': 'my/folder'}
    >>> merge_data({"files": {"train": "a.tsv"}}, {"files": {"test": "b.tsv"}})
    {'files': {'train': 'a.tsv', 'test': 'b.tsv'}}
    """
    path, files, new_files = data.get("path"), data.get("files"), changes.get("files")
    is_other_source = path is not None and changes.get("path", path) != path
    is_other_source |= path is not None and isinstance(new_files, Mapping) and "train" in new_files
    is_other_source |= files is not None and changes.get("path") is not None
    dropped = (*_SOURCE_KEYS, "tests") if is_other_source else ()
    return merge({key: value for key, value in data.items() if key not in dropped}, changes)


def files_of(files: Files) -> list[str]:
    """Returns the paths of the files of a split, column after column."""
    if isinstance(files, str):
        return [files]
    values = files.values() if isinstance(files, dict) else files
    return [path for value in values for path in files_of(value)]
