"""Looking at a boosted model from outside: start-up figures, explanations, dry runs, scores."""
