"""The simulator: runs a policy on an instance, batch by batch, with the cost model's batch times."""
