//! The type probe: does a job's or a terminal write's signature hold a raw handle?
