"""The single-client coordinator: closures, and the workers that come and go to run them. Free of frameworks."""
