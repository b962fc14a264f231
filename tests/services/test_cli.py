"""The command line, as a user calls it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvboost import __version__
from kvboost.config import Config, load, to_toml
from kvboost.services import cli
from kvboost.services.progress import bar, step


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("KVBOOST_")]:
        monkeypatch.delenv(name)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_help_names_every_command_without_loading_torch() -> None:
    code = (
        "import sys\nfrom kvboost.services import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit as e:\n    assert e.code == 0\n"
        "print('loaded:', sorted({'torch', 'faiss', 'grpc', 'transformers'} & set(sys.modules)))"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert "loaded: []" in done.stdout
    for name in cli.COMMANDS:
        assert re.search(rf"^  {name.replace('_', '-')}\s", done.stdout, re.MULTILINE), name


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([name.replace("_", "-"), "--help"])
    assert caught.value.code == 0
    assert f"example:\n  kvboost {name.replace('_', '-')}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"kvboost {__version__}\n"


def test_the_module_runs_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvboost.services.cli", "config", "show"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "[policy]" in done.stdout


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["cofnig"])
    assert caught.value.code == 2
    assert "cofnig" in capsys.readouterr().err


def test_errors_are_one_sentence_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--set", "policy.threshold=2"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("kvboost: argument: [policy] threshold 2.0")
    assert shown.err.count("\n") == 1


def test_an_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvboost.services.commands.config.load_from_arguments", interrupted)
    assert cli.main(["config", "show"]) == 130


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as sink:
        done = subprocess.run(
            [sys.executable, "-m", "kvboost.services.cli", "config", "show"],
            stdout=sink,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_config_show_says_where_values_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text("[segment]\nmax_tokens = 48\n")
    monkeypatch.setenv("KVBOOST_CACHE__TENANT", "a")
    assert cli.main(["config", "show", "--config", "mine.toml", "--set", "policy.tiers=prefix"]) == 0
    rows = {line.split(" = ")[0]: line for line in capsys.readouterr().out.splitlines() if " = " in line}
    assert rows["max_tokens"].split() == ["max_tokens", "=", "48", "#", "mine.toml"]
    assert rows["tenant"].split() == ["tenant", "=", '"a"', "#", "KVBOOST_CACHE__TENANT"]
    assert rows["tiers"].split() == ["tiers", "=", '["prefix"]', "#", "argument"]
    assert rows["min_span"].endswith("# default")
    assert len({line.index("#") for line in rows.values()}) == 1


def test_config_show_is_a_file_that_loads(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["config", "show", "--set", "segment.min_tokens=3"])
    Path("again.toml").write_text(capsys.readouterr().out)
    assert load("again.toml", env={}).config.segment.min_tokens == 3


def test_config_show_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--json", "--set", "cache.max_bytes=1MiB"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cache"]["max_bytes"] == {"value": 2**20, "origin": "argument"}
    assert shown["policy"]["tiers"] == {"value": ["prefix", "exact", "similar"], "origin": "default"}


@pytest.mark.parametrize("setting", ["policy.threshold", "=3", "policy.=3", ".=1"])
def test_config_show_refuses_bad_settings(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "--set", setting]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_config_init_never_overwrites_unless_forced(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "init"]) == 0
    assert load("kvboost.toml", env={}).config == Config()
    Path("kvboost.toml").write_text(to_toml(Config()))
    assert cli.main(["config", "init"]) == 2
    assert "--force" in capsys.readouterr().err
    assert Path("kvboost.toml").read_text() == to_toml(Config())
    assert cli.main(["config", "init", "--force"]) == 0
    assert Path("kvboost.toml").read_text() != to_toml(Config())
    assert cli.main(["config", "init", "no/such/folder.toml"]) == 2


def test_quick_steps_show_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with step("Thinking"):
        pass
    assert list(bar(range(3), "Counting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_slow_step_is_one_line_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with step("Thinking", delay_s=0.0):
        time.sleep(0.05)
    shown = capsys.readouterr().err
    assert shown.startswith("Thinking ... 0.")
    assert shown.endswith(" s\n")


def test_a_slow_step_is_redrawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with step("Thinking", delay_s=0.0):
        time.sleep(0.5)
    assert "Thinking: 0 s" in terminal.getvalue()
    assert "\r" in terminal.getvalue()


def test_a_step_that_fails_ends_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with step("Thinking", delay_s=0.0):
            time.sleep(0.05)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert capsys.readouterr().err.endswith("\n")
