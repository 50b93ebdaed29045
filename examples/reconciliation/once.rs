//! The job without the show: one process, one run.

use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::{
    job,
    report::{End, Event, Reporter},
    setup::Setup,
    store::Store,
    timeline::{Timeline, Who},
    worker,
};

/// Runs the job once. `Ok(true)` when it has succeeded.
pub(crate) async fn run<DB: Store>(setup: &Setup<DB>) -> anyhow::Result<bool> {
    let timeline = Timeline::new();
    setup.announce(&timeline)?;
    let timeline = Arc::new(Mutex::new(timeline));
    let shown = timeline.clone();
    let show = move |event: Event| {
        let mut timeline = shown.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Nobody reads any more: the run goes on all the same.
        let _ = timeline.event(Who::Job, &event);
    };
    show(Event::Started { pid: std::process::id() });
    let report = Reporter::new(show);
    let result = setup.fence.run(job::reconcile(setup.run, setup.files.clone(), &report)).await;
    let (end, reason) = worker::outcome(result);
    report.say(Event::Ended { end, reason });

    let (lease, rows) = (setup.lease().await?, setup.rows().await?);
    let timeline = timeline.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    timeline.line(Who::Demo, rows.in_words())?;
    timeline.last_line(&json!({
        "lease": lease.lease,
        "database": DB::WORD,
        "server": setup.server,
        "run_id": rows.run.run_id,
        "differences": rows.differences(),
        "differences_by_kind": rows.by_kind(),
        "final_status": rows.run.status,
        "final_token": rows.run.fence_token,
    }))?;
    Ok(end == End::Succeeded)
}
