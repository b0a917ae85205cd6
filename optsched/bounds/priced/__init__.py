"""Prices of what batches take: the cheapest lives at given prices, what they prove, and the search for good ones."""
