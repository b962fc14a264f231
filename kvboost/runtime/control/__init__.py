"""How strict the policy is now, and the counters that everybody adds to."""
