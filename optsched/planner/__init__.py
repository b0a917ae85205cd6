"""The planner: schedules in hindsight, by list scheduling on what every batch will hold, and search over its rules."""
