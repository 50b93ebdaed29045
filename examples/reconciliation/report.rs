//! What a worker tells about itself while it works, and the two places where the demo may hold it up.

use std::{io::Write as _, sync::Arc, time::Duration};

use fence_runtime::ErrorKind;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// One line of a worker's standard output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The process is there.
    Started { pid: u32 },
    /// The lease was acquired.
    Holds { token: i64, owner: String },
    /// The run bears our token; leftovers of previous owners are gone.
    Claimed { run: i64, removed: u64 },
    /// Some more references are compared and their differences published.
    Scanned { scanned: i64, total: i64, published: i64 },
    /// Everything is published; the success mark is what is left.
    Ready,
    /// The success mark is tried. `believes_held`: what the worker itself thinks of its lease, without asking.
    Completing { believes_held: bool },
    /// The success mark stands.
    Completed,
    /// The success mark was refused.
    Refused { by: Judge, reason: String },
    /// The job is over.
    Ended { end: End, reason: Option<String> },
}

/// Who refused a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Judge {
    /// The database, which was asked whether the lease is still ours: `FenceCtx::begin` does so whatever the worker
    /// believes, and reports as lost what the database says is lost.
    Database,
    /// The condition of the statement: the run bears another token. Then the fence had let us pass.
    Condition,
    /// Nobody: the write failed for a reason that has nothing to do with owners.
    Nobody,
}

/// How `fence.run` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Succeeded,
    Contended,
    Lost,
    Failed,
}

/// Where a job's events go.
pub(crate) struct Reporter {
    sink: Box<dyn Fn(Event) + Send + Sync>,
    /// How long the whole scan is made to take, so that a person can watch it.
    scan_time: Duration,
    gate: Option<Arc<Notify>>,
}

impl Reporter {
    pub(crate) fn new(sink: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self { sink: Box::new(sink), scan_time: Duration::ZERO, gate: None }
    }

    /// A reporter for a worker process: one line of JSON an event.
    pub(crate) fn lines(scan_time: Duration, gate: Option<Arc<Notify>>) -> Self {
        Self { scan_time, gate, ..Self::new(print_line) }
    }

    pub(crate) fn say(&self, event: Event) {
        (self.sink)(event);
    }

    /// Between two pages of a scan. No transaction is open.
    pub(crate) async fn between_pages(&self, pages: usize) {
        tokio::time::sleep(self.scan_time / u32::try_from(pages.max(1)).unwrap_or(u32::MAX)).await;
    }

    /// Before the success mark. No transaction is open; the demo lets its first worker wait here, and stops it.
    pub(crate) async fn ready(&self) {
        self.say(Event::Ready);
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
    }
}

impl Event {
    /// What a refused success mark says about itself.
    pub(crate) fn refused(error: &fence_runtime::Error) -> Self {
        let by = match error.kind() {
            ErrorKind::Lost => Judge::Database,
            ErrorKind::Unwritten => Judge::Condition,
            _ => Judge::Nobody,
        };
        Self::Refused { by, reason: error.to_string() }
    }
}

/// A worker whose listener is gone has nobody to work for.
fn print_line(event: Event) {
    let line = serde_json::to_string(&event).expect("an event is plain data");
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(crate::exit::BROKEN);
    }
}
