"""gpudoctor: names the one root cause when a GPU pod on Kubernetes is not well.

Raw input becomes facts, facts become findings, findings become a diagnosis, and a
diagnosis becomes a report; each step is a package or module here and imports run one way.
"""

__version__ = "0.1.0"

PREFIX = "gpudoctor.io"
"""The one prefix of our labels, annotations, API groups and schema names."""
