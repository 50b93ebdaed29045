//! The job: reconcile our books with the bank's statement, one run at a time in the whole fleet.

use std::path::PathBuf;

use fence_runtime::{FenceCtx, fenced_job};

use crate::{
    csv,
    ledger::Ledgers,
    report::{Event, Reporter},
    store::Store,
};

/// How many references are compared and published in one fenced transaction.
const PAGE: usize = 500;

/// The two files that are reconciled.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Files {
    pub(crate) ours: PathBuf,
    pub(crate) bank: PathBuf,
}

impl Files {
    pub(crate) fn read(&self) -> Result<Ledgers, csv::BadFile> {
        Ok(Ledgers { ours: csv::read(&self.ours)?, bank: csv::read(&self.bank)? })
    }
}

/// Carries out a scheduled run: claims it, compares page by page, publishes, and marks it as succeeded.
///
/// `on_lost = "signal"`: a worker that wakes up after its lease went to another goes on as if nothing had happened, as
/// code that knows nothing of leases would. What stops it is the database, at its next fenced transaction.
#[fenced_job(lease = "admin:reconciliation", ttl = "3s", wait = "20s", on_lost = "signal")]
pub(crate) async fn reconcile<DB: Store>(
    ctx: &FenceCtx<DB>,
    run: i64,
    files: Files,
    report: &Reporter,
) -> anyhow::Result<()> {
    report.say(Event::Holds { token: ctx.fence_token().get(), owner: ctx.owner_token().to_string() });

    // First of all the run becomes ours: its row bears our token, and what a previous owner left half done is gone.
    let removed = ctx
        .transaction(async |tx| {
            let _claimed = DB::claim(tx, run).await?;
            DB::delete_leftovers(tx, run).await
        })
        .await?
        .rows();
    report.say(Event::Claimed { run, removed });

    // Long work: no transaction is open, and the lease is renewed meanwhile.
    let ledgers = tokio::task::spawn_blocking(move || files.read()).await??;
    let (total, pages) = (ledgers.references(), ledgers.pages(PAGE));
    let mut published = 0;
    for page in &pages {
        let _advanced = ctx
            .transaction(async |tx| {
                if !page.differences.is_empty() {
                    let _published = DB::publish(tx, run, &page.differences).await?;
                }
                DB::advance(tx, run, page.scanned).await
            })
            .await?;
        published += page.differences.len() as i64;
        report.say(Event::Scanned { scanned: page.scanned, total, published });
        report.between_pages(pages.len()).await;
    }

    report.ready().await;
    report.say(Event::Completing { believes_held: !ctx.is_lost() });
    match ctx.transaction(async |tx| DB::finish(tx, run).await).await {
        Ok(_) => report.say(Event::Completed),
        Err(error) => {
            report.say(Event::refused(&error));
            return Err(error.into());
        }
    }
    Ok(())
}
