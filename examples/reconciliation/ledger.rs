//! The comparison: what our books have, what the bank has, and where the two differ.

use std::collections::{BTreeMap, BTreeSet};

/// The entries of one side by their references.
pub(crate) type Ledger = BTreeMap<String, Entry>;

/// One booking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// A date as `2026-03-31`. The two sides may book on different days: that is no difference.
    pub(crate) booked_on: String,
    /// Cents, so that no rounding can make or hide a difference.
    pub(crate) amount_cents: i64,
}

/// How the two sides differ about a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// We booked it, the bank did not.
    MissingAtBank,
    /// The bank booked it, we did not.
    MissingInBooks,
    /// Both booked it, with different amounts.
    OtherAmount,
}

impl Kind {
    /// The word in the database.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::MissingAtBank => "missing_at_bank",
            Self::MissingInBooks => "missing_in_books",
            Self::OtherAmount => "other_amount",
        }
    }
}

/// A reference about which the two sides differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) reference: String,
    pub(crate) kind: Kind,
    /// The day of our booking, or the bank's where we have none.
    pub(crate) booked_on: String,
    pub(crate) ours_cents: Option<i64>,
    pub(crate) bank_cents: Option<i64>,
}

/// Both sides, ready to be compared.
pub(crate) struct Ledgers {
    pub(crate) ours: Ledger,
    pub(crate) bank: Ledger,
}

/// Some references, compared.
pub(crate) struct Page {
    /// How many references have been compared, this page included.
    pub(crate) scanned: i64,
    pub(crate) differences: Vec<Difference>,
}

impl Ledgers {
    /// How many references there are on either side.
    pub(crate) fn references(&self) -> i64 {
        self.union().len() as i64
    }

    /// Compares page by page, so that a long reconciliation can publish and report as it goes.
    pub(crate) fn pages(&self, size: usize) -> Vec<Page> {
        let union: Vec<&String> = self.union().into_iter().collect();
        let mut scanned = 0;
        let mut pages = Vec::new();
        for references in union.chunks(size) {
            scanned += references.len() as i64;
            let differences = references.iter().filter_map(|reference| self.compare(reference)).collect();
            pages.push(Page { scanned, differences });
        }
        pages
    }

    fn union(&self) -> BTreeSet<&String> {
        self.ours.keys().chain(self.bank.keys()).collect()
    }

    fn compare(&self, reference: &str) -> Option<Difference> {
        let (ours, bank) = (self.ours.get(reference), self.bank.get(reference));
        let kind = match (ours, bank) {
            (Some(ours), Some(bank)) if ours.amount_cents == bank.amount_cents => return None,
            (Some(_), Some(_)) => Kind::OtherAmount,
            (Some(_), None) => Kind::MissingAtBank,
            (None, Some(_)) => Kind::MissingInBooks,
            (None, None) => return None,
        };
        Some(Difference {
            reference: reference.to_owned(),
            kind,
            booked_on: ours.or(bank).map(|entry| entry.booked_on.clone())?,
            ours_cents: ours.map(|entry| entry.amount_cents),
            bank_cents: bank.map(|entry| entry.amount_cents),
        })
    }
}
