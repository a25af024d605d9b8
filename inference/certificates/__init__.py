"""Certificates: a network or posterior and known rows in, a limit of its error on new rows out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .certificate import ByFile, ByPosterior, ByTest, Certificate, Through, certify

__all__ = ["ByFile", "ByPosterior", "ByTest", "Certificate", "Through"]

__getattr__, __dir__ = lazy_names(__name__)
