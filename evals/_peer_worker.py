"""One backend of the comparison, in a process of its own: reads commands and writes results, one JSON object a line.

It is run as a file by the interpreter of the environment that the backend is installed in.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# Last: no module of this folder may stand before a package of the environment.
sys.path.append(str(Path(__file__).parent))
from _peer_backends import BACKENDS, Plain


def _together(backend: Plain, prompts: list[str], new_tokens: int) -> list[dict[str, Any]]:
    """Answer all prompts at the same time, one thread each; an error is that prompt's answer."""
    answers: list[dict[str, Any]] = [{} for _ in prompts]

    def one(at: int) -> None:
        try:
            answers[at] = backend.generate(prompts[at], new_tokens)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises in a thread is its result
            answers[at] = {"error": f"{type(error).__name__}: {error}"}

    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def main() -> None:
    """Serve the commands on standard input until it ends."""
    # Libraries print; the results need a line of their own.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    settings = json.loads(sys.argv[1])
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    tokenizer = AutoTokenizer.from_pretrained(settings["model"])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32).eval()
    backend = BACKENDS[settings["backend"]](model, tokenizer, settings)
    print(json.dumps({"ready": True}), file=results, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answers: list[dict[str, Any]] = []
        if command["do"] == "reset":
            backend.reset()
        elif len(command["prompts"]) == 1:
            answers = [backend.generate(command["prompts"][0], command["new_tokens"])]
        else:
            answers = _together(backend, command["prompts"], command["new_tokens"])
        backend.settle()
        print(json.dumps({"answers": answers}), file=results, flush=True)
    backend.close()


if __name__ == "__main__":
    main()
