"""Prices of what batches take: the cheapest paths of requests at them, what they prove, and how good ones are found."""
