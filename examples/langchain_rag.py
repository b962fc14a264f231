"""LangChain through the gateway: retrieved documents are cached for themselves and found in any order.

kvboost serve --port 8000
python examples/langchain_rag.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
from functools import partial

from corpus import DOCUMENTS, QUESTIONS, best
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from openai import OpenAI

from kvboost.client import RuntimeClient
from kvboost.client.runtime_types import ChatMessage
from kvboost.integrations.langchain import CacheAwareOrder, format_documents

SYSTEM = "Answer from the documents."


def retrieve(question: str) -> list[Document]:
    """Stand in for any retriever of LangChain's."""
    return [Document(DOCUMENTS[name], metadata={"source": name}) for name in best(question)]


def main(url: str, runtime: str | None = None) -> None:
    """Ask the questions, and print how many of each prompt's tokens were cached."""
    (served,) = OpenAI(base_url=f"{url}/v1", api_key="none").models.list()
    # Storing goes on behind an answer; a script that asks at once again waits for it.
    wait = {"kvboost": {"wait_for_store": True}}
    model = ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=served.id, temperature=0, max_tokens=48, extra_body=wait
    )
    prompt = ChatPromptTemplate([("system", SYSTEM), ("user", "{context}{question}")])
    found = RunnableLambda(retrieve)
    if runtime is not None:
        # What stands before the documents in the prompt: the system message, and a user message that begins with them.
        before = [ChatMessage("system", SYSTEM), ChatMessage("user", "")]
        order = CacheAwareOrder(order=partial(RuntimeClient(runtime).order, before=before))
        found = found | (lambda documents: order.compress_documents(documents, ""))
    context = found | format_documents
    chain = {"context": context, "question": RunnablePassthrough()} | prompt | model
    for question in QUESTIONS:
        answer = chain.invoke(question)
        usage = answer.usage_metadata
        print(f"{question}\n{answer.text}")
        print(f"cached {usage['input_token_details']['cache_read']} of {usage['input_tokens']} tokens\n")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["http://127.0.0.1:8000"])
