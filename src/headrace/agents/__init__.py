"""LLM agents: many multi-turn text environments share one inference engine.

    tickets (groups) -> scheduler -> workers: prompt -> engine -> tokens -> parse -> env.step -> ... -> records

A group is `group_size` episodes of one task with one reset seed, scored together. It is the unit of seed, scheduling,
lag, failure and emission: every group that was handed out comes back exactly once, returned or failed.
"""
