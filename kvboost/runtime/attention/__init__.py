"""Attention functions and masks of our own, and what a question attends to."""
