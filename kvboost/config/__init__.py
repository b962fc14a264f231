"""Configuration: one TOML file, environment variables over it, explicit arguments over those."""

from kvboost.config.load import LoadedConfig, load
from kvboost.config.render import default_file, to_toml
from kvboost.config.schema import (
    CacheConfig,
    ClientConfig,
    Config,
    EmbedderConfig,
    ModelConfig,
    SegmentConfig,
    ServerConfig,
)

__all__ = [
    "CacheConfig",
    "ClientConfig",
    "Config",
    "EmbedderConfig",
    "LoadedConfig",
    "ModelConfig",
    "SegmentConfig",
    "ServerConfig",
    "default_file",
    "load",
    "to_toml",
]
