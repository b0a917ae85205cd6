"""Claims about policies and optima, decided over families of instances."""
