"""Generated gRPC code for package ``kvboost.v1``; written by ``make proto``."""
