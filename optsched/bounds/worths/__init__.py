"""How `optsched.bounds.worth` finds worths of requests and weights of rates."""
