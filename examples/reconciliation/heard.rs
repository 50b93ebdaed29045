//! What the demo learns from a worker's events.

use anyhow::bail;

use crate::{
    process::Worker,
    report::{End, Event, Judge},
    timeline::{Timeline, Who},
    verdict::Stale,
};

/// What the demo has learned from the events of a worker.
#[derive(Default)]
pub(crate) struct Heard {
    /// The number of the process that was started.
    pub(crate) started: Option<u32>,
    /// What the process says of itself.
    pub(crate) pid: Option<u32>,
    pub(crate) token: Option<i64>,
    pub(crate) deleted: u64,
    pub(crate) completed: bool,
    pub(crate) refused: Option<Judge>,
    pub(crate) refusal: Option<String>,
    pub(crate) end: Option<End>,
}

impl Heard {
    /// Nothing yet.
    pub(crate) fn of(worker: &Worker) -> Self {
        Self { started: worker.id(), ..Self::default() }
    }

    /// Shows and remembers what a worker says, until `enough`.
    pub(crate) async fn listen(
        &mut self,
        who: Who,
        worker: &mut Worker,
        timeline: &mut Timeline,
        enough: fn(&Event) -> bool,
    ) -> anyhow::Result<()> {
        loop {
            let event = worker.event().await?;
            timeline.event(who, &event)?;
            match &event {
                Event::Started { pid } => self.pid = Some(*pid),
                Event::Holds { token, .. } => self.token = Some(*token),
                Event::Claimed { removed, .. } => self.deleted = *removed,
                Event::Completed => self.completed = true,
                Event::Refused { by, reason } => {
                    self.refused = Some(*by);
                    self.refusal = Some(reason.clone());
                }
                Event::Ended { end, .. } => self.end = Some(*end),
                Event::Scanned { .. } | Event::Ready | Event::Completing { .. } => {}
            }
            if enough(&event) {
                return Ok(());
            }
            if self.end.is_some() {
                bail!("worker {who:?} ended too early");
            }
        }
    }

    /// How a success mark ended that came too late.
    pub(crate) fn stale(&self) -> Stale {
        match (self.completed, self.refused) {
            (true, _) => Stale::Accepted,
            (false, Some(Judge::Database | Judge::Condition)) => Stale::Refused,
            (false, _) => Stale::NotTried,
        }
    }
}
