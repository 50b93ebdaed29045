//! What expansions of the macros call. Not part of the public interface: it may change in any release.
