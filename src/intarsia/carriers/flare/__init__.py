"""The networked carrier, on NVIDIA FLARE: mutual TLS, one certificate a site, pre-installed classes only.

The engine brings messages and nothing else: no model, no table, no key and no sampler is in a job. `controller` runs
at the server, `executor` at a site, `kit` makes and hardens the certificates and configurations, `run` starts processes
and submits jobs.
"""
