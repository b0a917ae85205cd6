"""How far is a cost model from a machine? Measure, fit, run, compare.

1. **Measure** (`optsched.hardware.measure`, ``optsched profile``): a transformer's kernels and whole batches are timed
   on this machine, over a grid of sizes.
2. **Fit** (`optsched.calibrate`, ``optsched calibrate``): measured times, ours or those of others, become a cost
   profile.
3. **Run** (`optsched.hardware.run`, ``optsched execute``): a real engine runs what a policy decides, or a schedule
   says, batch by batch, and each batch is timed.
4. **Compare** (`optsched.hardware.compare`): predicted batch times beside measured ones; the simulator beside the run
   of another engine.

Steps 1 and 3 use the same model (`optsched.hardware.transformer`) on the same device (`optsched.hardware.machine`):
what is timed is what is run.
"""
