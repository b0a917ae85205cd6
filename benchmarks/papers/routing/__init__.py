"""What papers report of several machines (`cluster_findings.py`)."""
