"""LlamaIndex through the gateway: retrieved nodes are cached for themselves and found in any order.

    kvboost serve --port 8000
    python examples/llamaindex_rag.py http://127.0.0.1:8000 [RUNTIME ADDRESS]

With the address of the runtime, which ``kvboost serve`` prints, documents are put into an order of which more is
cached. LlamaIndex's own OpenAI packages ask for older releases of ``openai`` than the one here, or for older
``transformers`` than KVBoost works with; its ``CustomLLM`` around OpenAI's client does without them.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from corpus import DOCUMENTS, QUESTIONS, best
from llama_index.core import PromptTemplate, QueryBundle
from llama_index.core.llms import CompletionResponse, CompletionResponseGen, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from openai import OpenAI

from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import ChatMessage
from kvboost.integrations.llamaindex import MarkDocuments

TEMPLATE = PromptTemplate("{context_str}\n\n{query_str}")


class Retriever(BaseRetriever):
    """Stands in for any retriever of LlamaIndex's."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        names = best(query_bundle.query_str)
        return [
            NodeWithScore(node=TextNode(text=DOCUMENTS[n], id_=n), score=1.0 / (i + 1)) for i, n in enumerate(names)
        ]


class Gateway(CustomLLM):
    """The gateway as LlamaIndex's language model."""

    client: Any
    model: str
    last_usage: Any = None

    @property
    def metadata(self) -> LLMMetadata:
        """Say how much fits into a prompt."""
        return LLMMetadata(context_window=2048, num_output=48, model_name=self.model)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer one prompt as a chat of one turn."""
        made = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=48,
            # Storing goes on behind an answer; a script that asks at once again waits for it.
            extra_body={"kvboost": {"wait_for_store": True}},
        )
        self.last_usage = made.usage
        return CompletionResponse(text=made.choices[0].message.content or "")

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Answer in one piece."""
        yield self.complete(prompt, formatted, **kwargs)


def main(url: str, runtime: str | None = None) -> None:
    """Ask the questions, and print how many of each prompt's tokens were cached."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    (served,) = client.models.list()
    model = Gateway(client=client, model=served.id)
    # The prompt is one user message that begins with the documents.
    order = None if runtime is None else partial(RuntimeClient(runtime).order, before=[ChatMessage("user", "")])
    engine = RetrieverQueryEngine.from_args(
        Retriever(), llm=model, text_qa_template=TEMPLATE, node_postprocessors=[MarkDocuments(order=order)]
    )
    for question in QUESTIONS:
        print(f"{question}\n{engine.query(question)}")
        usage = model.last_usage
        print(f"cached {usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} tokens\n")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["http://127.0.0.1:8000"])
