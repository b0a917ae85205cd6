"""Tables for people and for papers."""
