//! A worker process: it takes its order from standard input and tells its story on standard output.

use std::{io::BufRead as _, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use fence_runtime::{Fence, RunError};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::{
    database::{Address, Target},
    exit, in_words,
    job::{self, Files},
    report::{End, Event, Reporter},
    store::{self, Options, Store},
};

/// The hidden argument that makes a process a worker.
pub(crate) const ARGUMENT: &str = "worker";
/// The line that lets a held-up worker go on to its success mark.
pub(crate) const GO_ON: &str = "go on";

/// The first line of a worker's standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) address: Address,
    pub(crate) files: Files,
    pub(crate) run: i64,
    pub(crate) scan_millis: u64,
    /// Wait for [`GO_ON`] before the success mark.
    pub(crate) gated: bool,
}

/// Runs as a worker until the job is over, or until whoever started us is gone.
pub(crate) fn main() -> ExitCode {
    match order() {
        // Whoever started us went away before it said what to do.
        Ok(None) => ExitCode::from(exit::BROKEN as u8),
        Ok(Some(order)) => {
            let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
            runtime.block_on(work(order))
        }
        Err(error) => {
            eprintln!("reconciliation worker: {}", in_words(&error));
            ExitCode::from(exit::INPUT as u8)
        }
    }
}

fn order() -> anyhow::Result<Option<Order>> {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).context("no order on the standard input")? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).context("the order cannot be read: workers are started by the demo")
}

async fn work(order: Order) -> ExitCode {
    let gate = order.gated.then(|| Arc::new(Notify::new()));
    follow_orders(gate.clone());
    let report = Reporter::lines(Duration::from_millis(order.scan_millis), gate);
    report.say(Event::Started { pid: std::process::id() });
    let outcome = match order.address.target() {
        Ok(Target::MySql(options)) => run::<sqlx::MySql>(options, &order, &report).await,
        Ok(Target::Postgres(options)) => run::<sqlx::Postgres>(options, &order, &report).await,
        Ok(Target::Sqlite(options)) => run::<sqlx::Sqlite>(options, &order, &report).await,
        Err(error) => Err(error),
    };
    let (end, reason) = match outcome {
        Ok((end, reason)) => (end, reason),
        Err(error) => (End::Failed, Some(in_words(&error))),
    };
    report.say(Event::Ended { end, reason });
    ExitCode::from(if end == End::Succeeded { exit::AS_PROMISED } else { exit::BROKEN } as u8)
}

/// Hears `go on`, and ends the process when its standard input does: then the demo is gone.
fn follow_orders(gate: Option<Arc<Notify>>) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            match line {
                Ok(line) if line == GO_ON => gate.iter().for_each(|gate| gate.notify_one()),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        std::process::exit(exit::BROKEN)
    });
}

async fn run<DB: Store>(
    options: Options<DB>,
    order: &Order,
    report: &Reporter,
) -> anyhow::Result<(End, Option<String>)> {
    // The pool moves into the fence: what the process does with the database is fenced, or says `unfenced`.
    let holder = format!("{}, pid {}", order.name, std::process::id());
    let fence = Fence::builder(store::pool::<DB>(options)).holder(holder).build().await?;
    Ok(outcome(fence.run(job::reconcile(order.run, order.files.clone(), report)).await))
}

/// How a run ended, for a program and for a person.
pub(crate) fn outcome(result: Result<(), RunError<anyhow::Error>>) -> (End, Option<String>) {
    match result {
        Ok(()) => (End::Succeeded, None),
        // The job has told already what refused it.
        Err(RunError::Lost { job: Some(_), .. }) => (End::Lost, None),
        Err(error) if error.is_lost() => (End::Lost, Some(error.to_string())),
        Err(error) if error.is_contended() => (End::Contended, Some(error.to_string())),
        Err(error) => (End::Failed, Some(error.to_string())),
    }
}
