"""The problem in code: instances, schedules, objectives, results, and their documents."""
