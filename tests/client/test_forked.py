"""A client in a forked child says so at once, where gRPC would wait for ever; its parent goes on."""

import subprocess
import sys

import pytest

from tests.servers import cache_server

FORKED = """
import os, sys
from kvboost.client import CacheClient
from kvboost.client.runtime_client import RuntimeClient
from kvboost.errors import CacheUnavailableError, RuntimeUnavailableError
client, runtime = CacheClient(sys.argv[1]), RuntimeClient(sys.argv[1])
client.stats(), client.handover
pid = os.fork()
if pid == 0:
    calls = [client.stats, client.describe, lambda: client.evict("n", [1]), lambda: list(client.fetch("n", [1]))]
    told = []
    for call, kind in [*((call, CacheUnavailableError) for call in calls), (runtime.describe, RuntimeUnavailableError)]:
        try:
            call()
        except kind as error:
            told.append(str(error))
    client.close(), runtime.close()
    right = all(f"made in process {os.getppid()}, and this is process {os.getpid()}" in each for each in told)
    os._exit(0 if right and len(told) == 5 else 3)
_, status = os.waitpid(pid, 0)
print("child", os.waitstatus_to_exitcode(status), "parent", client.stats().max_bytes > 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not fork")
def test_a_forked_child_is_told_and_the_parent_goes_on():
    with cache_server() as server:
        done = subprocess.run(
            [sys.executable, "-c", FORKED, server.address], capture_output=True, text=True, timeout=240, check=False
        )
    assert done.stdout.split() == ["child", "0", "parent", "True"], done.stderr
