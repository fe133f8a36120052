"""What every scheme is made of: workload, mesh, a step as data, trace, schedules, how to show."""
