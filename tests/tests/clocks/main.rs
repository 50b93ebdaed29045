//! Clocks that step, zones that differ, years that do not fit: what decides is the database's clock, and it decides who may start. Who may finish
//! is decided by the fencing token, whatever the clocks do.

mod steps;
mod years;
mod zones;

/// The lease of every test.
const LEASE: &str = "admin:reconciliation";
