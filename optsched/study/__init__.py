"""Many methods on many instances, and keeping what is finished."""
