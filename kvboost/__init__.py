"""KVBoost: a semantic chunk cache service for the K/V tensors of Hugging Face models."""

__version__ = "0.1.0"
