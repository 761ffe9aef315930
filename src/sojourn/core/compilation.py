"""JAX's persistent compilation cache, on by default: the second start of the same job does not compile."""

import os
from pathlib import Path

import jax
import platformdirs


def use_compilation_cache() -> None:
    """Turns the cache on, unless the user has chosen one or said SOJOURN_COMPILATION_CACHE=off (or another place)."""
    wish = os.environ.get("SOJOURN_COMPILATION_CACHE", "")
    if wish == "off" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    place = Path(wish) if wish else Path(platformdirs.user_cache_dir("sojourn")) / "compiled"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written costs compile time, nothing else
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
