"""Addresses of servers, as both ends read them."""

from kvboost.wire.address import Address, parse_address

__all__ = ["Address", "parse_address"]
