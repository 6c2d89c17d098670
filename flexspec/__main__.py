"""`python -m flexspec`."""

from flexspec.cli.main import run

if __name__ == "__main__":
    run()
