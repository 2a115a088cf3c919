"""How property tests draw cases: the same ones in every run of the suite, new ones in `make nightly`."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("COFEM_PROFILE", "default"))
