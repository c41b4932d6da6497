"""Engines: what runs the tasks of an epoch. `base` says what an epoch asks; `spark` and `local` answer it."""
