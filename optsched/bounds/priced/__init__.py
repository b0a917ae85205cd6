"""Prices of what batches take: the cheapest paths of requests at given prices, what they prove, and the search for prices."""
