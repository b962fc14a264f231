"""Documents from files, folders and patterns."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvboost.errors import InputError
from kvboost.texts import check_text, read_text

SUFFIXES = (".txt", ".md", ".rst", ".jsonl")
"""What is read of a folder; a file that is named itself may end as it likes."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text, and where it came from: a file, or a line of one."""

    name: str
    text: str


def read_documents(names: Sequence[str]) -> list[Document]:
    """Read text files, and JSONL files with a document per line in the field ``text``.

    Parameters
    ----------
    names
        Files, folders (read with their subfolders, hidden ones left out) and patterns such as ``docs/**/*.md``.
        A file that is reached twice is read once.

    Raises
    ------
    InputError
        If nothing is found, or something cannot be read or holds no text; the sentence names it.
    """
    paths = dict.fromkeys(path for name in names for path in _paths(name))
    return [document for path in paths for document in _read(path)]


def _paths(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return _or_refuse(sorted(_inside(path)), f"{name} holds no file that ends in {', '.join(SUFFIXES)}")
    if path.exists() or not glob.has_magic(name):
        return [path]
    found = (Path(match) for match in glob.glob(name, recursive=True))
    return _or_refuse(sorted(one for one in found if one.is_file()), f"{name} matches no file")


def _inside(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
            yield path


def _or_refuse(paths: list[Path], what: str) -> list[Path]:
    if not paths:
        raise InputError(f"{what}; name the files themselves")
    return paths


def _read(path: Path) -> Iterable[Document]:
    text = read_text(path)
    if path.suffix.lower() == ".jsonl":
        lines = enumerate(text.split("\n"), 1)
        return [_of_line(f"{path}:{number}", line) for number, line in lines if line.strip()]
    if not text.strip():
        raise InputError(f"{path} is empty; leave it out")
    return [Document(str(path), text)]


def _of_line(name: str, line: str) -> Document:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{name} is not JSON ({error.msg}); write one object with a field text per line") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} holds a number or a nesting that no text needs; leave it out") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise InputError(f'{name} has no text; each line must hold an object such as {{"text": "..."}}')
    check_text(text, f"{name}: text")
    return Document(name, text)
