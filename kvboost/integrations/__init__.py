"""Adapters to frameworks for retrieval; each module needs its framework, and nothing else imports it."""
