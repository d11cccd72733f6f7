"""The zoo: norms broken on purpose, each after a fault that some published code really had, and beside it the sound collection.

A fault is a few lines of torch or numpy that claim to be a norm and are not. The kinds K01 .. K33 are those of the catalogue of
public reports from which normcheck was built. Adding one is adding a decorated function to a module of this package.
"""

from normcheck.faults.catalogue import Fault, faults, sound, sound_warnings

__all__ = ["Fault", "faults", "sound", "sound_warnings"]
