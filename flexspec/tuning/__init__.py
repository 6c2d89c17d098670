"""Draft models tuned to a model: data that it writes itself, distillation, and reports of what came of it."""
