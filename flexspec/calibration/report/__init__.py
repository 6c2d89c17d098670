"""`python -m flexspec.calibration.report`: what the strategy search predicts, beside what is measured here and what was published."""
