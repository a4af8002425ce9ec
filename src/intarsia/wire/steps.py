"""The steps a server may ask a site to take; a request for any other is refused."""

STEPS = ("offer", "share", "combine", "announce", "align", "sketch", "deal", "multiply", "receive", "predict", "finish")
