"""Lower bounds that scale, each a theorem with a certificate that `optsched.check` recomputes.

Every bound is a file with its proof: `volume` (batches and work), `alone` (each request by itself), `machine` (requests
share the machine's time), `late` (how many can be in time), `percentile` (within which time enough are), `congestion`
(a price of machine time that follows the load; its parts are in `congested`), `waiting` (the same where prompts queue;
in `queued`), `inflow` (batches are not full while requests come in; in `rented`), `ramp` (nor are they at first and at
last; in `priced`). `catalogue` finds them by name.
"""
