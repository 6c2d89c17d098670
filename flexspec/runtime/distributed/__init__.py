"""A model on several devices: one rank of a replica schedules, drafts and decides; the others run their part of every pass."""
