"""The demo: a cache server, a model runtime, and what they do to real requests."""
