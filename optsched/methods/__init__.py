"""Methods that answer an instance with a checked result: simulating a policy, solving for the optimum."""
