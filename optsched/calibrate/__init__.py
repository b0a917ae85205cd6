"""Cost models from measured kernel timings: fitting, the shipped profiles, their sources and errors."""
