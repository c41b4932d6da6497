"""How long properties are searched: quickly by default, `--hypothesis-profile=long` for an evening."""

from hypothesis import settings

# A shared machine is no clock: how long one example took says nothing.
settings.register_profile("quick", deadline=None)
settings.register_profile("long", deadline=None, max_examples=5_000)
settings.load_profile("quick")
