"""The verbs: what can be done with a strategy and a workload."""
