"""The epoch, the only unit of work: plan, operate, commit, publish. Tests can stop between any two steps."""
