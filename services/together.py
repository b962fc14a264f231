"""Cache, runtime and gateway as processes of this machine, started and stopped together."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvboost.config import Config
from kvboost.config.render import to_toml
from kvboost.errors import InputError, KVBoostError

from .fetching import fetch_assets, with_absolute_paths
from .processes import Child, started
from .progress import step

_READY_TIMEOUT_S = 60.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be served.

    Attributes
    ----------
    config
        Of all three; with ``cache.address`` set, that cache service is used, and none is started.
    threads
        CPU threads of the runtime; None for torch's own number.
    gateway_arguments
        Options of ``kvboost serve-gateway`` that go to it as they are.
    logs
        Where the logs go; None for a folder that is removed at the end.
    """

    config: Config
    threads: int | None = None
    gateway_arguments: Sequence[str] = ()
    logs: Path | None = None


@dataclass(frozen=True)
class Together:
    """The running servers, the gateway's URL, the addresses of runtime and cache, and the models that are served."""

    url: str
    runtime: str
    cache: str
    models: tuple[str, ...]
    _children: tuple[Child, ...]

    def welcome(self) -> str:
        """Say where everything is, with a request to try."""
        model = self.models[0]
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "What is a cache?"}]})
        request = f"curl {self.url}/v1/chat/completions -H 'Content-Type: application/json'"
        return (
            f"serving {model} at {self.url}/v1\n"
            f"page and reuse maps at {self.url}/, metrics at {self.url}/metrics\n\n"
            f"try it:\n  {request} \\\n    -d '{body}'\n\n"
            f"documents into the cache before the first question:\n  kvboost warm FILES --runtime {self.runtime}\n\n"
            f"the cache's figures, live:\n  kvboost stats {self.cache} --watch\n\n"
            "Ctrl-C stops it"
        )

    def watch(self) -> None:
        """Wait until interrupted.

        Raises
        ------
        KVBoostError
            If one of the servers ends.
        """
        try:
            while True:
                for child in self._children:
                    child.check()
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            return


@contextmanager
def running_together(wanted: Wanted) -> Iterator[Together]:
    """Run the servers until the block ends, and give them once an answer could be had.

    Raises
    ------
    KVBoostError
        If one of them ends before; its last words are in the message.
    """
    config = with_absolute_paths(wanted.config)
    logs = _folder(wanted.logs)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvboost-")))
        (folder / "kvboost.toml").write_text(to_toml(config), encoding="utf-8")
        cache = config.cache.address or f"unix:{folder}/cache.sock"
        runtime = f"unix:{folder}/runtime.sock"

        def start(*command: str) -> Child:
            child = stack.enter_context(started(command, folder, logs))
            children.append(child)
            return child

        children: list[Child] = []
        # The gateway first: that its port is taken should not be found out after the model was loaded.
        gateway = start("serve-gateway", "--runtime", runtime, "--cache", cache, *wanted.gateway_arguments)
        url = gateway.wait_until_listening()
        fetch_assets(config)
        if not config.cache.address:
            with step("Starting the cache server"):
                start("serve-cache", "--no-tcp", "--unix", f"{folder}/cache.sock").wait_until_listening()
        threads = ["--threads", str(wanted.threads)] if wanted.threads else []
        command = ["serve-runtime", "--no-tcp", "--unix", f"{folder}/runtime.sock", "--cache", cache, *threads]
        with step("Starting the runtime, which loads the model"):
            start(*command).wait_until_listening()
            models = _wait_until_served(url, children)
        yield Together(url, runtime, cache, models, tuple(children))


def _folder(logs: Path | None) -> Path | None:
    if logs is None:
        return None
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{logs} cannot be made ({error.strerror}); give another folder to --logs") from error
    return logs.resolve()


def _wait_until_served(url: str, children: Sequence[Child]) -> tuple[str, ...]:
    """Wait until the gateway has a runtime, and return the names of its models."""
    end = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < end:
        for child in children:
            child.check()
        if names := [model["id"] for model in _models(url)]:
            return tuple(names)
        time.sleep(_POLL_S)
    raise KVBoostError(f"the gateway at {url} found no runtime within {_READY_TIMEOUT_S:.0f} s; look into --logs DIR")


def _models(url: str) -> list[dict[str, Any]]:
    # Not urllib: it would ask a proxy for the web.
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", "/v1/models")
        found: list[dict[str, Any]] = json.loads(connection.getresponse().read())["data"]
        return found
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()
