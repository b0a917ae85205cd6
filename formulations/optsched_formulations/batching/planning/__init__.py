"""Parts of the planner that need a solver."""
