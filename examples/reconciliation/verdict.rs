//! What was shown, read back, and whether it is what was promised.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    ledger::Kind,
    report::Judge,
    store::{Run, Tally},
    timeline::grouped,
};

/// How the paused worker's success mark ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stale {
    /// As it must.
    Refused,
    /// The fence has a hole.
    Accepted,
    /// The worker never came to it.
    NotTried,
}

/// The last line of the demo. Every value comes from the database or from one of the processes.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    /// The name in the lease table.
    pub(crate) lease: String,
    pub(crate) database: &'static str,
    /// The server's own account of its version.
    pub(crate) server: String,
    pub(crate) run_id: i64,
    /// What the processes say of themselves.
    pub(crate) first_pid: u32,
    pub(crate) second_pid: u32,
    /// The token in the lease table while the first worker was stopped, and after the second had finished.
    pub(crate) first_token: i64,
    pub(crate) second_token: i64,
    /// How long the first worker was stopped.
    pub(crate) stopped_ms: u64,
    /// How many differences of the first worker the second deleted.
    pub(crate) deleted_leftovers: u64,
    /// Counted in the table of differences.
    pub(crate) differences: i64,
    pub(crate) differences_by_kind: BTreeMap<String, i64>,
    pub(crate) stale_completion: Stale,
    pub(crate) refused_by: Option<Judge>,
    /// In the words of the refused worker.
    pub(crate) refusal: Option<String>,
    /// The run or its differences changed after the first worker had been continued.
    pub(crate) changed_by_stale_worker: bool,
    pub(crate) final_status: String,
    pub(crate) final_token: i64,
}

/// The run and its differences at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) run: Run,
    pub(crate) tallies: Vec<Tally>,
}

impl Rows {
    pub(crate) fn differences(&self) -> i64 {
        self.tallies.iter().map(|tally| tally.count).sum()
    }

    pub(crate) fn by_kind(&self) -> BTreeMap<String, i64> {
        let mut kinds = BTreeMap::new();
        for tally in &self.tallies {
            *kinds.entry(tally.kind.clone()).or_default() += tally.count;
        }
        kinds
    }
}

impl Rows {
    /// The differences by kind, for a person.
    pub(crate) fn in_words(&self) -> String {
        let kinds = self.by_kind();
        let count = |kind: Kind| grouped(kinds.get(kind.as_str()).copied().unwrap_or_default());
        format!(
            "{} missing at the bank, {} missing in our books, {} with another amount",
            count(Kind::MissingAtBank),
            count(Kind::MissingInBooks),
            count(Kind::OtherAmount)
        )
    }
}

impl Verdict {
    /// Every promise that was not kept, in words.
    pub(crate) fn broken_promises(&self, rows: &Rows) -> Vec<String> {
        let mut broken = Vec::new();
        let mut promise = |kept: bool, text: String| {
            if !kept {
                broken.push(text);
            }
        };
        promise(self.first_pid != self.second_pid, "the workers are not two processes".into());
        promise(
            self.second_token == self.first_token + 1,
            format!("token {} does not follow token {}", self.second_token, self.first_token),
        );
        promise(
            self.stale_completion == Stale::Refused,
            format!("the stale success mark was not refused: {:?}", self.stale_completion),
        );
        promise(
            self.refused_by == Some(Judge::Database),
            format!("it was not the fence in the database that refused the stale success mark: {:?}", self.refused_by),
        );
        promise(!self.changed_by_stale_worker, "the stale worker changed rows".into());
        promise(self.final_status == "succeeded", format!("the run is {:?}", self.final_status));
        promise(
            self.final_token == self.second_token,
            format!("the run bears token {}, not {}", self.final_token, self.second_token),
        );
        promise(
            rows.run.differences == Some(self.differences),
            format!("the run counts {:?} differences, its table has {}", rows.run.differences, self.differences),
        );
        promise(
            rows.tallies.iter().all(|tally| tally.fence_token == self.second_token),
            "there are differences under another token than the second".into(),
        );
        broken
    }
}
