"""What every test shares: our own plugin, loaded as a user has it, and the hypothesis profile."""

from hypothesis import settings

pytest_plugins = ["bus.testing.plugin", "pytester"]

# On a loaded machine a slow example means nothing; pytest's own timeout bounds the test.
settings.register_profile("bus", deadline=None, print_blob=True)
settings.load_profile("bus")
