"""The data flow of the program on each rank, for a comparison of the lines of different ranks."""
