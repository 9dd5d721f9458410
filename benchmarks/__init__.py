"""What does it cost, against what? ``python -m benchmarks`` asks; docs/performance.md has the answers."""
