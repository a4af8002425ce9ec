"""The networked carrier, on NVIDIA FLARE: mutual TLS, one certificate per site, pre-installed classes only.

The engine brings messages and nothing else: no model, no table, no key and no sampler is in a job. `server_side` runs at the
server, `site_side` at a site; `requests` and `certificates` make the kits, `hardening` tightens their settings and tries them
out, `guard` stands around the engine at a site, `engine` starts processes and submits `jobs`.
"""
