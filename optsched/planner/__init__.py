"""The planner: schedules for known lengths and arrivals, by list scheduling and a search over its rules.

From the inside out: five schemes of list scheduling, compiled (`forward`, `backward`, `evicting`, `responsive`,
`first_tokens`, with `steps` shared), make `plan.ScheduleArrays` of an instance, a rule and an order of its requests
(`ranking`). `search` looks for the best rule and order; `neighbourhood` proposes orders by an exact model.
`formulation` and `policy` are thin entries: the method and the policy of the name ``planner``.
"""
