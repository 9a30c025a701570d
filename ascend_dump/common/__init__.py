"""What every part of the core uses: paths, logging, units, ranks, suggestions."""
