//! Names of leases are bytes, whatever they are made of: each is refused with an error that says why, or kept apart from every other one.

mod random;
mod samples;
