"""Policies with memory, with the names of `sb3_contrib.common.recurrent`."""
