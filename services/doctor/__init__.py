"""What ``kvboost doctor`` looks at, one file for each area."""
