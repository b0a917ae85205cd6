"""Where instances come from: generators with published parameters."""
