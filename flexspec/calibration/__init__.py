"""Measuring this machine for the strategy search: operators as compiled models run them, collectives, and the host's share of a step."""
