"""From a prompt to a slab with everything reused in place, its report, and the check at start-up."""
