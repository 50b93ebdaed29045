//! Everything that can be wrong is found here, before a process is started.

use anyhow::Context as _;
use fence_runtime::{Fence, FencedJob as _, Lease as _, LeaseName, LeaseStatus};
use sqlx::Pool;

use crate::{
    database::Address,
    job::{self, Files},
    report::Reporter,
    store::{self, Options, Plan, Store},
    timeline::{Timeline, Who, grouped},
    verdict::Rows,
};

/// A scheduled run on a database that is ready for it.
pub(crate) struct Setup<DB: Store> {
    pub(crate) address: Address,
    pub(crate) options: Options<DB>,
    pub(crate) files: Files,
    pub(crate) fence: Fence<DB>,
    /// For what is no terminal write: ordering a run, reading results.
    pub(crate) pool: Pool<DB>,
    pub(crate) server: String,
    pub(crate) plan: Plan,
    pub(crate) run: i64,
    pub(crate) lease: LeaseName,
}

impl<DB: Store> Setup<DB> {
    /// Reads both files, opens the database, creates what is missing in it, and schedules a run.
    pub(crate) async fn prepare(address: Address, options: Options<DB>, files: Files) -> anyhow::Result<Self> {
        let place = address.target()?.place();
        let reading = files.clone();
        let ledgers = tokio::task::spawn_blocking(move || reading.read()).await??;
        let reach = || format!("the {} database {place} cannot be used", <DB as sqlx::Database>::NAME);
        let fence = Fence::builder(store::pool::<DB>(options.clone()))
            .holder(format!("demo, pid {}", std::process::id()))
            .migrate()
            .build()
            .await
            .with_context(reach)?;
        let pool = fence.unfenced("the demo orders runs and reads results; it finishes none");
        DB::create_tables(&pool).await.with_context(reach)?;
        let server = DB::version(&pool).await.with_context(reach)?;
        let plan = Plan {
            ours_entries: ledgers.ours.len() as i64,
            bank_entries: ledgers.bank.len() as i64,
            total: ledgers.references(),
        };
        let run = DB::schedule(&pool, &plan).await.with_context(reach)?;
        // The job knows its lease; nobody else should have to repeat the name.
        let lease = job::reconcile::<DB>(run, files.clone(), &Reporter::new(drop)).lease().lease_name()?;
        Ok(Self { address, options, files, fence, pool, server, plan, run, lease })
    }

    /// The first lines of every timeline.
    pub(crate) fn announce(&self, timeline: &Timeline) -> anyhow::Result<()> {
        timeline.heading(format!("fence · reconciliation on {}, {}", self.server, self.address.target()?.place()))?;
        timeline.line(
            Who::Demo,
            format!(
                "schedules run {}: {} entries in our books, {} in the bank's statement",
                self.run,
                grouped(self.plan.ours_entries),
                grouped(self.plan.bank_entries)
            ),
        )?;
        Ok(())
    }

    /// The lease as it stands.
    pub(crate) async fn lease(&self) -> anyhow::Result<LeaseStatus> {
        self.fence.inspect(&self.lease).await?.with_context(|| format!("nobody has ever held the lease {}", self.lease))
    }

    /// The run and its differences as they stand.
    pub(crate) async fn rows(&self) -> sqlx::Result<Rows> {
        Ok(Rows { run: DB::run(&self.pool, self.run).await?, tallies: DB::tallies(&self.pool, self.run).await? })
    }
}
