"""A real engine behind the same policies: a transformer with a paged KV cache, run batch by batch as decided.

Hugging Face transformers has an engine whose scheduler can be replaced (``generation.continuous_batching``, 5.23). It
cannot follow a schedule exactly:

- Evictions are not its scheduler's. ``OffloadingManager`` makes them, when an allocation fails, newest request first;
  a schedule evicts the requests that it names, also while memory is free, and also in the middle of a prefill.
- Its SDPA path, the only one without a flash-attention package, packs a batch into one mask of all queries by all keys
  read, so that attention takes the product of a batch's sums, not the sum of its requests' products.
- Its pages, its room for keys read and its padding are its own, and it runs in a thread of its own that prepares a
  batch while another one runs: there is no place at which one batch could be given, or timed.

So the loop here is our own, and small: `optsched.hardware.run.engine.Engine` has one method, `TorchEngine` runs it.
"""
