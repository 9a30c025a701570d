"""The data flow of the program on each rank, by which lines of different ranks are compared."""
