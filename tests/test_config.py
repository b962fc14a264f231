"""Configuration: layers, origins, and what is refused."""

from __future__ import annotations

import inspect
import math
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvboost.client import CacheClient
from kvboost.config import Config, SegmentConfig, default_file, load, to_toml
from kvboost.config.values import format_size, known_fields
from kvboost.errors import ConfigError, InputError, PolicyError
from kvboost.policy import ReusePolicy
from kvboost.segment import Segmenter
from kvboost.types import Tier


def write(folder: Path, text: str) -> Path:
    path = folder / "given.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load(env={})
    assert loaded.config == Config()
    assert set(loaded.origins) == set(known_fields())
    assert set(loaded.origins.values()) == {"default"}


def test_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kvboost.toml").write_text("[policy]\nmin_span = 5\n")
    monkeypatch.chdir(tmp_path)
    loaded = load(env={})
    assert loaded.config.policy.min_span == 5
    assert loaded.origins["policy.min_span"] == "kvboost.toml"


def test_each_layer_goes_over_the_one_before(tmp_path: Path) -> None:
    path = write(tmp_path, "[policy]\nthreshold = 0.1\nmin_span = 3\n[segment]\nmin_tokens = 9\n")
    env = {"KVBOOST_POLICY__THRESHOLD": "0.2", "KVBOOST_POLICY__MIN_SPAN": "4", "UNRELATED": "x"}
    loaded = load(path, env, {"policy.threshold": 0.3, "policy.shift": None})
    assert (loaded.config.policy.threshold, loaded.origins["policy.threshold"]) == (0.3, "argument")
    assert (loaded.config.policy.min_span, loaded.origins["policy.min_span"]) == (4, "KVBOOST_POLICY__MIN_SPAN")
    assert (loaded.config.segment.min_tokens, loaded.origins["segment.min_tokens"]) == (9, str(path))
    assert (loaded.config.policy.shift, loaded.origins["policy.shift"]) == (True, "default")


def test_variables_are_read_in_the_type_of_their_field() -> None:
    env = {
        "KVBOOST_POLICY__TIERS": "exact, prefix",
        "KVBOOST_POLICY__SHIFT": "off",
        "KVBOOST_CACHE__MAX_BYTES": "1.5GiB",
        "KVBOOST_CLIENT__MATCH_TIMEOUT_S": "1e-1",
        "KVBOOST_CACHE__TENANT": "7",
    }
    config = load(env=env).config
    assert config.policy.tiers == (Tier.PREFIX, Tier.EXACT)
    assert config.policy.shift is False
    assert config.cache.max_bytes == 3 * 2**29
    assert config.client.match_timeout_s == pytest.approx(0.1)
    assert config.cache.tenant == "7"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[polcy]\nthreshold = 1", ["[polcy]", "did you mean [policy]?"]),
        ("[polcy]", ["[polcy]", "did you mean [policy]?"]),
        ("[policy]\ntreshold = 1", ["'treshold'", "did you mean threshold?"]),
        ("[policy]\nqqq = 1", ["'qqq'", "known keys are", "min_span"]),
        ("[policy.more]\nx = 1", ["'more'", "[policy]"]),
        ("threshold = 1", ["threshold stands outside any section"]),
        ("[policy", ["not valid TOML"]),
        ('[policy]\nthreshold = "high"', ["policy.threshold must be a number", "'high'"]),
        ('[policy]\nthreshold = "0.9"', ["policy.threshold must be a number"]),
        ("[policy]\nthreshold = true", ["policy.threshold must be a number"]),
        ("[policy]\nmin_span = 2.5", ["policy.min_span must be a whole number"]),
        ("[policy]\nshift = 1", ["policy.shift must be true or false"]),
        ('[policy]\ntiers = "prefix"', ["policy.tiers must be a list of names"]),
        ("[policy]\ntiers = [1]", ["policy.tiers must be a list of names"]),
        ("[policy]\nthreshold = nan", ["threshold NaN", "[0, 1]"]),
        ("[policy]\nthreshold = 1.01", ["threshold 1.01", "[0, 1]"]),
        ('[cache]\nmax_bytes = "2 gigs"', ["cache.max_bytes must be", '"2GiB"']),
        ("[cache]\nmax_bytes = 0", ["max_bytes 0 must be at least 1"]),
        ('[cache]\naddress = "localhost"', ["address 'localhost'", "host:port"]),
        ('[server]\ncache_address = "h:70000"', ["cache_address", "65535"]),
        ("[segment]\nmin_tokens = 65", ["max_tokens 64", "min_tokens 65"]),
        ('[segment]\nboundaries = "magic"', ["boundaries 'magic'", "sentence"]),
        ('[model]\ndtype = "int8"', ["dtype 'int8'", "bfloat16"]),
        ("[client]\nput_timeout_s = inf", ["put_timeout_s"]),
        ('[embedder]\nmodel = ""', ["model must not be empty"]),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, wanted: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, env={})
    assert str(path) in str(caught.value)
    for part in wanted:
        assert part in str(caught.value)


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read"):
        load(tmp_path / "gone.toml", env={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path, env={})


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"KVBOOST_POLICY__TRESHOLD": "1"}, "KVBOOST_POLICY__TRESHOLD .*did you mean KVBOOST_POLICY__THRESHOLD"),
        ({"KVBOOST_POLICY_THRESHOLD": "1"}, "did you mean KVBOOST_POLICY__THRESHOLD"),
        ({"KVBOOST_XX__YY": "1"}, "KVBOOST_XX__YY is not a setting"),
        ({"KVBOOST_POLICY__THRESHOLD": "nan"}, r"KVBOOST_POLICY__THRESHOLD: \[policy\] threshold NaN"),
        ({"KVBOOST_POLICY__SHIFT": "maybe"}, "KVBOOST_POLICY__SHIFT: policy.shift must be true or false"),
    ],
)
def test_bad_variables_are_refused_by_name(env: dict[str, str], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        load(env=env)


def test_variables_of_others_are_left_alone() -> None:
    assert load(env={"KVBOOST_HOME": "/x"}).config == Config()


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"section\.key.*did you mean policy\.threshold"):
        load(env={}, overrides={"threshold": "1"})
    with pytest.raises(ConfigError, match=r"argument: policy\.threshold must be a number, not \[1\]"):
        load(env={}, overrides={"policy.threshold": [1]})


def test_the_value_at_fault_is_blamed_where_several_were_set(tmp_path: Path) -> None:
    path = write(tmp_path, "[policy]\nmin_span = 3\n")
    with pytest.raises(ConfigError, match=r"^KVBOOST_POLICY__REPAIR: .*'magic'"):
        load(path, {"KVBOOST_POLICY__REPAIR": "magic"}, {"policy.threshold": 0.5})


texts = st.text(st.characters(codec="utf-8"), max_size=20)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tenant=texts,
    tiers=st.lists(st.sampled_from(["prefix", "exact", "similar"])),
    threshold=st.floats(0, 1),
    size=st.integers(1, 2**50),
)
def test_what_is_shown_loads_to_the_same(
    tmp_path: Path, tenant: str, tiers: list[str], threshold: float, size: int
) -> None:
    overrides = {
        "cache.tenant": tenant,
        "cache.max_bytes": size,
        "policy.tiers": tiers,
        "policy.threshold": threshold,
    }
    config = load(env={}, overrides=overrides).config
    assert config.cache.tenant == tenant
    assert load(write(tmp_path, to_toml(config)), env={}).config == config


@given(st.integers(0, 2**60))
def test_sizes_read_back(size: int) -> None:
    assert load(env={"KVBOOST_CACHE__MAX_BYTES": format_size(size + 1)}).config.cache.max_bytes == size + 1


def test_default_file_sets_nothing_and_explains_everything(tmp_path: Path) -> None:
    text = default_file()
    loaded = load(write(tmp_path, text), env={})
    assert set(loaded.origins.values()) == {"default"}
    lines = text.splitlines()
    for key in known_fields():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"#{key.partition('.')[2]} = "))
        assert lines[at - 1].startswith("# "), key
    uncommented = "\n".join(line.removeprefix("#") for line in lines if not line.startswith("# "))
    assert tomllib.loads(uncommented) == tomllib.loads(to_toml(Config()))


def test_learned_boundaries_need_an_embedder() -> None:
    overrides = {"segment.boundaries": "embedding"}
    assert load(env={}, overrides=overrides).config.segment.boundaries == "embedding"
    with pytest.raises(ConfigError, match=r"segment\.boundaries .* embedder\.model"):
        load(env={}, overrides=overrides | {"embedder.model": "none"})


def test_defaults_are_those_of_the_classes_they_configure() -> None:
    client = inspect.signature(CacheClient).parameters
    of_the_request = {"request_timeout_s"}  # a bound on several calls together, which no client has of itself
    wanted = {name: value for name, value in asdict(Config().client).items() if name not in of_the_request}
    assert {name: client[name].default for name in wanted} == wanted
    segmenter = inspect.signature(Segmenter).parameters
    assert {name: segmenter[name].default for name in asdict(Config().segment)} == asdict(Config().segment)


def test_sections_refuse_bad_values_without_a_file() -> None:
    with pytest.raises(ConfigError, match="min_tokens 0"):
        SegmentConfig(min_tokens=0)


@pytest.mark.parametrize("threshold", [-0.01, 1.01, math.nan, math.inf, "0.5", True, None])
def test_policy_refuses_thresholds_that_are_no_cosine(threshold: object) -> None:
    with pytest.raises(PolicyError, match=r"threshold .* \[0, 1\]"):
        ReusePolicy(threshold=threshold)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings_", "wanted"),
    [
        ({"tiers": ["prefix", "exakt"]}, "tier 'exakt' is unknown; choose from prefix, exact, similar, substitute"),
        ({"tiers": ["computed"]}, "tier 'computed' is unknown"),
        ({"tiers": "prefix"}, "must be a list"),
        ({"tiers": 3}, "must be a list"),
        ({"repair": "magic"}, "repair 'magic' is unknown; choose one of none, head, "),
        ({"recompute_ratio": 1.5}, "recompute_ratio 1.5"),
        ({"recompute_ratio": math.nan}, "recompute_ratio NaN"),
        ({"min_span": 0}, "min_span 0"),
        ({"min_span": 1.5}, "min_span 1.5"),
        ({"shift": 1}, "shift 1"),
        ({"worth_it": "yes"}, "worth_it 'yes'"),
        ({"max_nominees": 0}, "max_nominees 0"),
        ({"question_tokens": True}, "question_tokens True"),
    ],
)
def test_policy_refuses_by_name(settings_: dict[str, object], wanted: str) -> None:
    with pytest.raises(PolicyError, match=wanted) as caught:
        ReusePolicy(**settings_)  # type: ignore[arg-type]
    assert isinstance(caught.value, InputError)


def test_policy_normalises_tiers() -> None:
    assert ReusePolicy(tiers=["similar", Tier.PREFIX, "similar"]).tiers == (Tier.PREFIX, Tier.SIMILAR)  # type: ignore[arg-type, list-item]
    assert ReusePolicy(tiers=()).tiers == ()
    assert ReusePolicy(threshold=1).threshold == 1.0
