"""The files under ``deploy/``: there is no Docker engine here, so everything they say is checked against the code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from kvboost.client import CacheClient
from kvboost.services.cli import _parser
from kvboost.wire.address import parse_address
from tests.contracts.chunks import namespace, offer, words
from tests.scripted_runtime import scripted_runtime
from tests.servers import cache_server, gateway_server

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "kvboost"}
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "kvboost.json").read_text())
_NOT_LABELS = {"le"}


def listening_port(service: dict[str, Any]) -> int:
    command: list[str] = service["command"]
    return parse_address(command[command.index("--address") + 1]).port


def test_compose_runs_what_the_cli_takes() -> None:
    assert {service["command"][0] for service in OURS.values()} == {"serve-cache", "serve-runtime", "serve-gateway"}
    for service in OURS.values():
        _parser(service["command"]).parse_args(service["command"])  # exits on what it does not know


def test_there_are_two_runtimes_on_one_cache() -> None:
    runtimes = [service for service in OURS.values() if service["command"][0] == "serve-runtime"]
    assert len(runtimes) == 2
    assert len({tuple(service["command"]) for service in runtimes}) == 1


def test_every_address_is_a_service_that_listens_there() -> None:
    asked = []
    for service in OURS.values():
        command = service["command"]
        for option, value in pairwise(command):
            if option in ("--cache", "--runtime"):
                asked.append(parse_address(value))
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    targets = [target for job in scrape for entry in job["static_configs"] for target in entry["targets"]]
    asked += [parse_address(target) for target in targets]
    assert targets == ["gateway:8000"]
    assert {address.host for address in asked} == set(OURS)  # each is used by another one
    for address in asked:
        assert address.port == listening_port(SERVICES[address.host]), address


def test_servers_listen_on_all_interfaces_and_are_published_on_this_machine_only() -> None:
    for name, service in OURS.items():
        command = service["command"]
        assert command[command.index("--address") + 1].startswith("0.0.0.0:"), name
    for name, service in SERVICES.items():
        for published in service.get("ports", ()):
            host, outside, inside = published.split(":")
            assert host == "127.0.0.1", name
            assert outside == inside
            if name in OURS:
                assert int(inside) == listening_port(service)


def test_health_checks_ask_the_own_port_with_what_the_image_has() -> None:
    for name, service in OURS.items():
        kind, program, *arguments = service["healthcheck"]["test"]
        assert kind == "CMD"
        text = " ".join(arguments)
        assert f"127.0.0.1:{listening_port(service)}" in text, name
        if program == "kvboost":
            _parser(arguments).parse_args(arguments)
        else:
            assert program == "python"
            compile(arguments[1], name, "exec")


def test_who_is_waited_for_and_what_is_mounted_exists() -> None:
    for service in SERVICES.values():
        for other in service.get("depends_on", {}):
            assert "healthcheck" in SERVICES[other]
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source


def test_variables_are_settings() -> None:
    from kvboost.config.values import known_fields

    for service in OURS.values():
        for name in service.get("environment", {}):
            assert name.removeprefix("KVBOOST_").replace("__", ".").lower() in known_fields(), name


def test_the_image_is_built_from_what_is_there() -> None:
    build = OURS["cache"]["build"]
    context = DEPLOY / build["context"]
    dockerfile = (context / build["dockerfile"]).read_text().replace("\\\n", " ")
    lines = [shlex.split(line) for line in dockerfile.splitlines() if line and not line.startswith("#")]
    for words_ in lines:
        if words_[0] == "COPY":
            for source in words_[1:-1]:
                assert (context / source).exists(), source
    assert 'ENTRYPOINT ["kvboost"]' in dockerfile
    user = next(words_[1] for words_ in lines if words_[0] == "USER")
    assert user not in ("root", "0")
    base = next(words_[1] for words_ in lines if words_[0] == "FROM")
    assert base.startswith("python:3.11")
    cache_home = re.search(r"XDG_CACHE_HOME=(\S+)", dockerfile)
    assert cache_home
    for name, service in OURS.items():
        mounted = [volume.split(":")[1] for volume in service.get("volumes", ())]
        assert mounted == ([] if name == "gateway" else [cache_home.group(1)])


def test_grafana_is_told_of_prometheus_and_of_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    published = SERVICES["prometheus"]["ports"][0].split(":")[-1]
    assert source["url"] == f"http://prometheus:{published}"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "kvboost.yaml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert any(target.startswith(provider["options"]["path"] + "/") for target in mounted)


@pytest.fixture(scope="module")
def labels_by_metric() -> Iterator[dict[str, set[str]]]:
    """Every sample of a gateway that has served, with the names of its labels."""
    with scripted_runtime() as runtime, cache_server() as cache:
        writer = CacheClient(cache.address)
        writer.open(namespace("ann"))
        writer.put(offer(namespace("ann").key, [words("a")]))
        writer.close()
        with gateway_server([runtime.address], cache.address) as gateway:
            client = OpenAI(base_url=f"{gateway.address}/v1", api_key="none", max_retries=0, timeout=60)
            client.completions.create(model="scripted", prompt="ok 2")
            found: dict[str, set[str]] = {}
            for family in text_string_to_metric_families(client._client.get(f"{gateway.address}/metrics").text):
                for sample in family.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
            client.close()
            yield found


def queries() -> list[str]:
    variables = [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())] + variables


def test_every_query_names_a_metric_that_exists(labels_by_metric: dict[str, set[str]]) -> None:
    assert len(queries()) > 20
    for query in queries():
        names = re.findall(r"kvboost_\w+", query)
        assert names, query
        for name in names:
            assert name in labels_by_metric, f"{name} in {query}"


def test_every_query_names_labels_that_its_metric_has(labels_by_metric: dict[str, set[str]]) -> None:
    legends = [
        (target["expr"], target["legendFormat"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())
    ]
    for query, legend in [*legends, *((query, "") for query in queries())]:
        (known,) = {frozenset(labels_by_metric[name]) for name in re.findall(r"kvboost_\w+", query)[:1]}
        groups = re.findall(r"by \(([^)]*)\)", query)
        grouped = {label.strip() for group in groups for label in group.split(",")}
        matched = set(re.findall(r"(\w+)=~?\"", query)) | set(re.findall(r"(\w+)!=", query))
        assert grouped | matched <= known, query
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert shown <= (grouped - _NOT_LABELS if groups else known), query
        if "sum" in query and not groups:
            assert not shown, query


def test_the_figures_to_operate_by_exist(labels_by_metric: dict[str, set[str]]) -> None:
    promised = {
        "kvboost_cache_hit_tokens_total": {"tier", "tenant"},
        "kvboost_prompt_tokens_total": {"tier", "tenant"},
        "kvboost_recomputed_tokens_total": {"tenant"},
        "kvboost_saved_seconds_total": {"tenant"},
        "kvboost_ttft_seconds_bucket": {"tier", "le"},
        "kvboost_cache_stored_bytes": set(),
        "kvboost_cache_namespace_bytes": {"tenant"},
        "kvboost_cache_tier_bytes": {"tenant", "tier"},
        "kvboost_cache_evicted_chunks_total": {"tenant"},
        "kvboost_declined_total": {"tenant"},
        "kvboost_runtime_batch_requests": {"runtime", "state"},
        "kvboost_fallbacks_total": {"tenant"},
        "kvboost_audit_kl_nats": {"tier"},
    }
    for name, labels in promised.items():
        assert labels <= labels_by_metric[name], name


def test_the_metrics_that_the_documentation_names_exist(labels_by_metric: dict[str, set[str]]) -> None:
    named = set(re.findall(r"`(kvboost_\w+)`", (ROOT / "docs" / "operating.md").read_text()))
    assert len(named) > 15
    histograms = {name.removesuffix("_bucket") for name in labels_by_metric}
    assert named <= labels_by_metric.keys() | histograms


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
