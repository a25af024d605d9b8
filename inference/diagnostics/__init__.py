"""Whether a variational posterior can be trusted, and for what."""

from .finding import Finding, Verdict

__all__ = ["Finding", "Verdict"]
