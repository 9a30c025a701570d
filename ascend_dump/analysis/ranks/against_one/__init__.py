"""Judge the origins of a comparison of several ranks with one, or with fewer."""
