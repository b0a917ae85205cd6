"""What the theorems of several kinds of certificates have in common, and the limits of what is computed."""
