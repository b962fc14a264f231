"""The HTTP gateway: OpenAI's API over runtimes that reuse cached K/V, metrics, and a page that shows both."""
