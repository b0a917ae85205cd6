"""A trial of the word "optimal": claims held against an exhaustive search that shares no code with what it tries."""
