//! The show: a worker is paused past its lease, another takes over and finishes, the first comes back and is refused.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::{
    heard::Heard,
    process::Worker,
    report::Event,
    setup::Setup,
    store::Store,
    timeline::{Timeline, Who},
    verdict::Verdict,
    worker::{GO_ON, Order},
};

/// What is said where no process can be stopped.
#[cfg(not(unix))]
pub(crate) const NEEDS_UNIX: &str =
    "the demo stops a process with SIGSTOP, which only Unix systems have: use --once to run the job without the show";

/// How long a scan is made to take, so that it can be watched.
const SCAN: Duration = Duration::from_millis(1200);

/// Runs the show. `Ok(true)` when everything was as promised.
pub(crate) async fn show<DB: Store>(setup: &Setup<DB>) -> anyhow::Result<bool> {
    let mut timeline = Timeline::new();
    setup.announce(&timeline)?;

    let mut a = Worker::start(&order(setup, "A", true)).await?;
    let mut heard_a = Heard::of(&a);
    heard_a.listen(Who::A, &mut a, &mut timeline, |event| matches!(event, Event::Ready)).await?;

    let tries = pause(setup, &a).await?;
    let stopped = Instant::now();
    // It will find this line when it wakes up, as it would have found the next statement of its code.
    a.send(GO_ON).await?;
    let lease = setup.lease().await?;
    let again = if tries == 1 { String::new() } else { format!(" at try {tries}, for something was locked before") };
    timeline.line(Who::Demo, format!("stops A (SIGSTOP){again}; no lock is held, so that others can write"))?;
    timeline.line(
        Who::Demo,
        format!(
            "the lease {:?} is A's, token {}, for another {:.1} s by the database's clock: nobody gets it before",
            lease.lease,
            lease.fence_token,
            lease.remaining.unwrap_or_default().as_secs_f64()
        ),
    )?;
    let first_token = lease.fence_token;

    timeline.line(Who::Demo, "starts B, which waits for it to expire")?;
    let mut b = Worker::start(&order(setup, "B", false)).await?;
    let mut heard_b = Heard::of(&b);
    heard_b.listen(Who::B, &mut b, &mut timeline, |event| matches!(event, Event::Ended { .. })).await?;
    b.gone().await?;
    let (lease, before) = (setup.lease().await?, setup.rows().await?);

    timeline.line(
        Who::Demo,
        format!("continues A (SIGCONT), which stood still for {:.1} s", stopped.elapsed().as_secs_f64()),
    )?;
    let stopped_ms = u64::try_from(stopped.elapsed().as_millis())?;
    a.resume()?;
    heard_a.listen(Who::A, &mut a, &mut timeline, |event| matches!(event, Event::Ended { .. })).await?;
    a.gone().await?;
    let after = setup.rows().await?;

    timeline.line(
        Who::Demo,
        format!(
            "reads back: run {} is {:?} under token {}, with {} differences; {}",
            after.run.run_id,
            after.run.status,
            after.run.fence_token,
            after.differences(),
            if before == after { "A changed nothing" } else { "A CHANGED ROWS" }
        ),
    )?;
    timeline.line(Who::Demo, after.in_words())?;
    let verdict = Verdict {
        lease: lease.lease,
        database: DB::WORD,
        server: setup.server.clone(),
        run_id: after.run.run_id,
        first_pid: heard_a.pid.context("worker A did not say its process id")?,
        second_pid: heard_b.pid.context("worker B did not say its process id")?,
        first_token,
        second_token: lease.fence_token,
        stopped_ms,
        deleted_leftovers: heard_b.deleted,
        differences: after.differences(),
        differences_by_kind: after.by_kind(),
        stale_completion: heard_a.stale(),
        refused_by: heard_a.refused,
        refusal: heard_a.refusal.clone(),
        changed_by_stale_worker: before != after,
        final_status: after.run.status.clone(),
        final_token: after.run.fence_token,
    };
    let mut broken = verdict.broken_promises(&after);
    for (who, heard, token) in [("A", &heard_a, first_token), ("B", &heard_b, lease.fence_token)] {
        if heard.pid != heard.started {
            broken.push(format!("{who} says that it is process {:?}, started was {:?}", heard.pid, heard.started));
        }
        if heard.token != Some(token) {
            broken.push(format!("{who} says that it held {:?}, the lease table said {token}", heard.token));
        }
    }
    for promise in &broken {
        eprintln!("not as promised: {promise}");
    }
    timeline.last_line(&verdict)?;
    Ok(broken.is_empty())
}

fn order<DB: Store>(setup: &Setup<DB>, name: &str, gated: bool) -> Order {
    Order {
        name: format!("worker {name}"),
        address: setup.address.clone(),
        files: setup.files.clone(),
        run: setup.run,
        scan_millis: SCAN.as_millis() as u64,
        gated,
    }
}

/// Stops a worker at a moment when it holds no lock, and returns how many tries that took.
///
/// Its code waits outside any transaction, but the keeper's thread may be renewing the lease. On SQLite a holder that
/// stands still in a write would block the whole file, and nobody could take over: so look, and if need be try again.
async fn pause<DB: Store>(setup: &Setup<DB>, worker: &Worker) -> anyhow::Result<u32> {
    const TRIES: u32 = 50;
    for tried in 1..=TRIES {
        worker.stop().await?;
        match DB::look(&setup.options, setup.lease.as_str(), setup.run).await {
            Ok(()) => return Ok(tried),
            Err(error) if tried == TRIES => {
                return Err(error).context("worker A could not be stopped without a lock in its hands");
            }
            Err(_) => {
                worker.resume()?;
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        }
    }
    unreachable!("the last try returns")
}
