"""What every test starts from."""

from hypothesis import settings

# A test never asserts on time: on a machine that others use too, any example can be slow.
settings.register_profile("graphcache", deadline=None)
settings.load_profile("graphcache")
