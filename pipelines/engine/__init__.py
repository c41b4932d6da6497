"""Engines: what runs the tasks of an epoch. `base` has the protocol; `spark` and `local` implement it."""
