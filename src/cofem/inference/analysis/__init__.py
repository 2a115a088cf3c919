"""Fits in analysis form: the unknown is an array, and what an operator makes of it is sparse."""
