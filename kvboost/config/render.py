"""Writing a configuration as TOML."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from dataclasses import fields

from kvboost.config.schema import Config
from kvboost.config.values import format_size, known_fields

_ATTRIBUTE = re.compile(r"^(\w+)\n((?:    .*\n?)+)", re.MULTILINE)


def to_toml(config: Config) -> str:
    """Return ``config`` as a TOML file that loads to the same values."""
    sections = []
    for section in fields(config):
        values = getattr(config, section.name)
        lines = [f"{each.name} = {toml_value(config, f'{section.name}.{each.name}')}" for each in fields(values)]
        sections.append("\n".join([f"[{section.name}]", *lines, ""]))
    return "\n".join(sections)


def toml_value(config: Config, key: str) -> str:
    """Return the value of one setting as TOML writes it."""
    section, _, name = key.partition(".")
    value = getattr(getattr(config, section), name)
    if known_fields()[key].kind == "size":
        return json.dumps(format_size(value))
    if isinstance(value, tuple):
        return f"[{', '.join(_text(str(item)) for item in value)}]"
    if isinstance(value, str):
        return _text(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def default_file() -> str:
    """Return a configuration file that sets nothing: every setting is there, explained and commented out."""
    config = Config()
    head = (
        "# KVBoost configuration. Every line shows a default; remove the # to change it.\n"
        "# Environment variables go over this file (KVBOOST_POLICY__THRESHOLD=0.9), arguments over both.\n"
    )
    sections = []
    for section in fields(config):
        kind = type(getattr(config, section.name))
        lines = [f"# {(inspect.getdoc(kind) or '').splitlines()[0]}", f"[{section.name}]"]
        for name, text in _attribute_docs(kind).items():
            lines += textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"#{name} = {toml_value(config, f'{section.name}.{name}')}")
        sections.append("\n".join([*lines, ""]))
    return "\n".join([head, *sections])


def _attribute_docs(kind: type) -> dict[str, str]:
    """Return what the class's docstring says of each field, on one line each."""
    found = dict(_ATTRIBUTE.findall(inspect.getdoc(kind) or ""))
    return {each.name: " ".join(found.get(each.name, "").replace("``", "").split()) for each in fields(kind)}


def _text(value: str) -> str:
    # JSON and TOML agree on basic strings, except that TOML wants DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
