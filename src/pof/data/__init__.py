"""Datasets that need no download."""

from __future__ import annotations

from pof.data.digits import digits

__all__ = ["digits"]
