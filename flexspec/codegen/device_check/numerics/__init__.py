"""Every kernel against its reference, on small inputs that reach all it can do."""
