"""Reading the configuration, layer over layer, and remembering where each value came from."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from kvboost.config.schema import Config
from kvboost.config.values import coerce, known_fields
from kvboost.errors import ConfigError, InputError
from kvboost.texts import read_text

DEFAULT_PATH = Path("kvboost.toml")
_PREFIX = "KVBOOST_"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and the origin of each value.

    ``origins`` maps every ``section.key`` to ``default``, the file's path, the variable's name or ``argument``.
    """

    config: Config
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Setting:
    key: str
    value: object
    origin: str
    from_text: bool = True


def load(
    path: str | Path | None = None,
    env: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """Read the configuration.

    Parameters
    ----------
    path
        A TOML file that must exist; None for ``./kvboost.toml`` where there is one.
    env
        Variables named ``KVBOOST_SECTION__KEY`` go over the file: ``KVBOOST_POLICY__THRESHOLD=0.9``.
    overrides
        Values by ``section.key``; they go over everything else. None stands for "not given".

    Raises
    ------
    ConfigError
        If a file is missing or malformed, a section or key is unknown, or a value does not fit.
    """
    values = {key: field.default for key, field in known_fields().items()}
    origins = dict.fromkeys(values, "default")
    for setting in [*_from_file(path), *_from_env(env), *_from_arguments(overrides or {})]:
        field = known_fields().get(setting.key)
        if field is None:
            raise ConfigError(_unknown(setting))
        values[setting.key] = coerce(field, setting.value, setting.origin, setting.from_text)
        origins[setting.key] = setting.origin
    return LoadedConfig(_build(values, origins), origins)


def _from_file(path: str | Path | None) -> Iterator[_Setting]:
    file = Path(path) if path is not None else DEFAULT_PATH
    if path is None and not file.is_file():
        return
    try:
        tables = tomllib.loads(read_text(file, f"configuration file {file}", ConfigError))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"configuration file {file} is not valid TOML: {error}") from error
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{file}: {section} stands outside any section; put it below a header such as [policy]")
        if not table and section not in _sections():
            raise ConfigError(_unknown(_Setting(f"{section}.", None, str(file))))
        for key, value in table.items():
            yield _Setting(f"{section}.{key}", value, str(file), from_text=False)


def _from_env(env: Mapping[str, str]) -> Iterator[_Setting]:
    names = {_variable(key): key for key in known_fields()}
    for name in sorted(n for n in env if n.startswith(_PREFIX)):
        if name in names:
            yield _Setting(names[name], env[name], name)
            continue
        # A name without "__" may belong to something else, unless it looks like a slip.
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6 if "__" in name else 0.85)
        if near or "__" in name:
            raise ConfigError(f"environment variable {name} is not a setting{_did_you_mean(near)}")


def _from_arguments(overrides: Mapping[str, object]) -> Iterator[_Setting]:
    for key, value in overrides.items():
        if value is not None:
            yield _Setting(key, value, "argument")


def _build(values: Mapping[str, object], origins: Mapping[str, str]) -> Config:
    sections = {}
    for section in fields(Config):
        prefix = f"{section.name}."
        own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        kind = type(getattr(Config(), section.name))
        try:
            sections[section.name] = kind(**own)
        except InputError as error:
            raise ConfigError(f"{_blame(kind, prefix, own, origins)}: [{section.name}] {error}") from error
    return Config(**sections)


def _blame(kind: type, prefix: str, own: Mapping[str, object], origins: Mapping[str, str]) -> str:
    """Return the origin of the value that the section refuses, or of all that were set."""
    changed = [name for name in own if origins[prefix + name] != "default"]
    for name in changed:
        try:
            kind(**{name: own[name]})
        except InputError:
            return origins[prefix + name]
    return ", ".join(dict.fromkeys(origins[prefix + name] for name in changed))


def _unknown(setting: _Setting) -> str:
    section, dot, key = setting.key.partition(".")
    if not dot:
        near = [name for name in known_fields() if name.endswith(f".{section}")]
        return f"{setting.origin}: {section!r} must have the form section.key{_did_you_mean(near[:1])}"
    if section not in _sections():
        near = difflib.get_close_matches(section, _sections(), n=1)
        return f"{setting.origin}: section [{section}] is unknown{_did_you_mean(f'[{n}]' for n in near)}"
    keys = [name.partition(".")[2] for name in known_fields() if name.startswith(f"{section}.")]
    near = difflib.get_close_matches(key, keys, n=1)
    if near:
        return f"{setting.origin}: key {key!r} in [{section}] is unknown{_did_you_mean(near)}"
    return f"{setting.origin}: key {key!r} in [{section}] is unknown; known keys are {', '.join(keys)}"


def _sections() -> list[str]:
    return [section.name for section in fields(Config)]


def _variable(key: str) -> str:
    return _PREFIX + key.replace(".", "__").upper()


def _did_you_mean(near: Iterable[str]) -> str:
    return "".join(f"; did you mean {name}?" for name in near)
