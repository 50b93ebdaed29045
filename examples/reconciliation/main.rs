//! Reconciles our books with the bank's statement, and shows what fence is for.
//!
//! `cargo run --example reconciliation` starts two processes on one database. The first is stopped while it holds the
//! lease, the second takes over and finishes the run, the first comes back, tries to finish it as well, and is refused.
//!
//! To read: [`job`] is the job, [`store`] its SQL, [`demo`] the show around it.

mod csv;
mod database;
mod demo;
mod heard;
mod job;
mod ledger;
mod once;
mod process;
mod report;
mod setup;
mod store;
mod timeline;
mod verdict;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

use crate::{
    database::{Address, Target},
    job::Files,
    setup::Setup,
    store::{Options, Store},
};

/// What the exit codes mean.
pub(crate) mod exit {
    pub(crate) const AS_PROMISED: i32 = 0;
    /// What was shown is not what was promised, or the show broke off.
    pub(crate) const BROKEN: i32 = 1;
    /// A file, a URL or a database is not as it must be. Nothing was started.
    pub(crate) const INPUT: i32 = 2;
    pub(crate) const INTERRUPTED: i32 = 130;
}

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reconciliation/data");

/// Reconciles our books with the bank's statement, while one of two worker processes is paused and replaced.
///
/// The last line of the output is a JSON object. Exit code: 0 as promised, 1 not as promised, 2 wrong input.
#[derive(Debug, Parser)]
#[command(name = "reconciliation")]
struct Arguments {
    /// Our books, a CSV file with the header reference,booked_on,amount_cents [default: a file of the example]
    #[arg(long, value_name = "FILE")]
    ours: Option<PathBuf>,
    /// The bank's statement, a CSV file of the same form [default: a file of the example]
    #[arg(long, value_name = "FILE")]
    bank: Option<PathBuf>,
    /// sqlite://FILE (created when missing), postgres://USER@HOST/DATABASE or mysql://…; the rows are kept [default: a
    /// SQLite file in a temporary directory, removed at the end]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Run the job once in this process, without the show
    #[arg(long)]
    once: bool,
}

/// Why the program ends without having shown what it promised.
enum Failure {
    Input(anyhow::Error),
    Broken(anyhow::Error),
    NotAsPromised,
    Interrupted,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == worker::ARGUMENT) {
        return worker::main();
    }
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    // On an interrupt the show is dropped, and with it its processes and the temporary directory.
    let outcome = runtime.block_on(async {
        tokio::select! {
            outcome = start(arguments) => outcome,
            () = interrupted() => Err(Failure::Interrupted),
        }
    });
    let code = match outcome {
        Ok(()) => exit::AS_PROMISED,
        Err(Failure::NotAsPromised) => exit::BROKEN,
        Err(Failure::Broken(error)) => say(&error, exit::BROKEN),
        Err(Failure::Input(error)) => say(&error, exit::INPUT),
        Err(Failure::Interrupted) => exit::INTERRUPTED,
    };
    ExitCode::from(code as u8)
}

fn say(error: &anyhow::Error, code: i32) -> i32 {
    eprintln!("reconciliation: {}", in_words(error));
    code
}

/// An error and its causes, each told once: some errors repeat their cause in their own text.
pub(crate) fn in_words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
    }
    text
}

async fn start(arguments: Arguments) -> Result<(), Failure> {
    let file = |given: Option<PathBuf>, name: &str| given.unwrap_or_else(|| PathBuf::from(DATA).join(name));
    let files = Files { ours: file(arguments.ours, "ours.csv"), bank: file(arguments.bank, "bank.csv") };
    let input = |error: std::io::Error| Failure::Input(anyhow::Error::new(error).context("no temporary directory"));
    let (_directory, address) = match arguments.database_url {
        Some(url) => (None, Address::Url(url)),
        None => {
            let directory = tempfile::Builder::new().prefix("fence-").tempdir().map_err(input)?;
            let file = directory.path().join("reconciliation.sqlite3");
            (Some(directory), Address::File(file))
        }
    };
    match address.target().map_err(Failure::Input)? {
        Target::MySql(options) => play::<sqlx::MySql>(address, options, files, arguments.once).await,
        Target::Postgres(options) => play::<sqlx::Postgres>(address, options, files, arguments.once).await,
        Target::Sqlite(options) => play::<sqlx::Sqlite>(address, options, files, arguments.once).await,
    }
}

async fn play<DB: Store>(address: Address, options: Options<DB>, files: Files, once: bool) -> Result<(), Failure> {
    #[cfg(not(unix))]
    if !once {
        return Err(Failure::Input(anyhow::anyhow!("{}", demo::NEEDS_UNIX)));
    }
    let setup = Setup::<DB>::prepare(address, options, files).await.map_err(Failure::Input)?;
    let kept = if once { once::run(&setup).await } else { demo::show(&setup).await };
    if kept.map_err(Failure::Broken)? { Ok(()) } else { Err(Failure::NotAsPromised) }
}

/// Ctrl-C, or whatever else asks a process politely to end.
async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        if let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(signal) {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            return;
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
