"""Full prefill in the shadow for a sampled share of requests."""
