"""Token ids decide: from matches to spans that are reused or computed."""
