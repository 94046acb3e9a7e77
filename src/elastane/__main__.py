"""`python -m elastane` is the `elastane` command."""

from elastane.cli.app import main

if __name__ == "__main__":  # Not in a process that the command makes, which imports this too.
    main()
