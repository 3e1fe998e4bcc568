"""The caches of what tests start lie in a folder of their own."""

from caches import own_cache as own_cache
