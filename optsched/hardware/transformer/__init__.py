"""A decoder-only transformer with a paged KV cache: what is measured, and what runs."""
