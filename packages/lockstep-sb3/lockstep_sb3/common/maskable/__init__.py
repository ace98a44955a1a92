"""Action masks with the names of `sb3_contrib.common.maskable`."""
