"""Predicted beside measured: batch by batch, and request by request."""
