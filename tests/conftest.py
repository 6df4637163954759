"""What every test shares: the hypothesis profile."""

from hypothesis import settings

# On a loaded machine a slow example means nothing; pytest's own timeout bounds the test.
settings.register_profile("bus", deadline=None, print_blob=True)
settings.load_profile("bus")
