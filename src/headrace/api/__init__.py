"""What users import: PPO, IMPALA, Collector, evaluate_policy. An SB3 user should feel at home.

    hr.PPO(policy, env, ...) --learn--> trained --save / load / predict / evaluate_policy
    hr.Collector(env, policy) yields completed rollouts to a learner of your own

Thin: turns keyword arguments into a RunConfig and calls build, train and session.
"""
