"""`python -m elastane` is the `elastane` command."""

from elastane.cli.app import main

main()
