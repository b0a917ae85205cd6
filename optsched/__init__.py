"""optsched: how far is this LLM-serving scheduler from optimal?"""
