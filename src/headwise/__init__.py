"""headwise: what to do with the heads of multi-head attention other than concatenating them.

Its names are loaded when they are used: `__init__.pyi` says from where.
"""

import lazy_loader

from headwise.auto_classes import register_when_used

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_when_used()
