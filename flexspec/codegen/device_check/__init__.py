"""`python -m flexspec.codegen.device_check`: whether everything works on a GPU, and how fast. A program; nothing imports it."""
