//! The keeper's loop: at most one piece of work at a time on its connection, beside a clock that never waits for it.

use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use sqlx::ConnectOptions;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::Command;
use crate::{
    Backend,
    backend::{Options, Protocol, Renewal, Tables},
    lease::OwnerToken,
    term::{Loss, Term},
    time::jittered,
};

/// Leases in one statement.
const CHUNK: usize = 1000;
/// How long a release is tried for a lease that would outlive it.
const RELEASE_PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(100);
const FAR: Duration = Duration::from_secs(3600);

struct Kept {
    term: Arc<Term>,
    due: Instant,
    /// Not renewed any more, but not released either before its job has ended.
    lost: Option<Loss>,
}

struct Leaving {
    term: Arc<Term>,
    done: Option<oneshot::Sender<()>>,
    until: Instant,
    due: Instant,
}

type Conn<DB> = <DB as sqlx::Database>::Connection;
type Work<DB> = Pin<Box<dyn Future<Output = (Option<Conn<DB>>, Outcome)>>>;

enum Outcome {
    Renewed(Instant, Vec<Arc<Term>>, Result<Vec<Renewal>, String>),
    Released(Leaving, Result<(), String>),
}

struct Keeping<DB: Backend> {
    options: Options<DB>,
    tables: Tables,
    conn: Option<Conn<DB>>,
    kept: HashMap<OwnerToken, Kept>,
    leaving: Vec<Leaving>,
}

pub(super) async fn keep<DB: Backend>(
    options: Options<DB>,
    tables: Tables,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let mut keeping = Keeping::<DB> { options, tables, conn: None, kept: HashMap::new(), leaving: Vec::new() };
    let mut work: Option<Work<DB>> = None;
    let mut closed = false;
    while !(closed && work.is_none() && keeping.leaving.is_empty() && keeping.kept.is_empty()) {
        if work.is_none() {
            work = keeping.next_work();
        }
        let wake = keeping.next_moment(work.is_some());
        tokio::select! {
            biased;
            (conn, outcome) = async { work.as_mut().expect("guarded").await }, if work.is_some() => {
                work = None;
                keeping.conn = conn;
                keeping.learn(outcome);
            }
            command = commands.recv(), if !closed => match command {
                Some(command) => keeping.obey(command),
                None => closed = true,
            },
            () = sleep_until(wake) => {}
        }
        keeping.expire();
    }
}

impl<DB: Backend> Keeping<DB> {
    fn obey(&mut self, command: Command) {
        match command {
            Command::Keep(term) => {
                let due = Instant::now() + jittered(term.terms.renew);
                self.kept.insert(term.id.owner, Kept { term, due, lost: None });
            }
            Command::Release(term, done) => {
                let now = Instant::now();
                let mut leaving = Leaving { term, done, until: now, due: now };
                match self.kept.remove(&leaving.term.id.owner) {
                    // Asked twice (by `run`, then by the last handle): the first has done it.
                    None => leaving.finish(),
                    Some(Kept { lost: None, .. }) => {
                        leaving.until += RELEASE_PATIENCE.min(leaving.term.terms.ttl);
                        self.leaving.push(leaving);
                    }
                    // It may still be ours: one try, that nobody waits for.
                    Some(Kept { lost: Some(Loss::Unconfirmed), .. }) => {
                        leaving.answer();
                        self.leaving.push(leaving);
                    }
                    Some(Kept { lost: Some(_), .. }) => leaving.finish(),
                }
            }
        }
    }

    /// Releases first: somebody may be waiting for the lease.
    fn next_work(&mut self) -> Option<Work<DB>> {
        let now = Instant::now();
        if let Some(place) = self.leaving.iter().position(|leaving| leaving.due <= now) {
            let leaving = self.leaving.swap_remove(place);
            let (options, tables, conn) = (self.options.clone(), self.tables.clone(), self.conn.take());
            return Some(Box::pin(async move {
                let id = leaving.term.id.clone();
                let limit = leaving.term.terms.renew;
                let (conn, result) = on::<DB, _>(options, conn, limit, async move |conn| {
                    DB::Protocol::release(conn, &tables, &id).await
                })
                .await;
                (conn, Outcome::Released(leaving, result))
            }));
        }
        if !self.renewable().any(|kept| kept.due <= now) {
            return None;
        }
        // Whatever would be due soon goes into the same statement.
        let batch: Vec<_> = self
            .renewable()
            .filter(|kept| kept.due <= now + kept.term.terms.renew / 4)
            .take(CHUNK)
            .map(|kept| kept.term.clone())
            .collect();
        let limit = batch.iter().map(|term| term.terms.renew).min()?;
        let (options, tables, conn) = (self.options.clone(), self.tables.clone(), self.conn.take());
        let asked: Vec<_> = batch.iter().map(|term| (term.id.clone(), term.terms.ttl)).collect();
        Some(Box::pin(async move {
            let sent = Instant::now();
            let (conn, result) =
                on::<DB, _>(options, conn, limit, async move |conn| DB::Protocol::renew(conn, &tables, &asked).await)
                    .await;
            (conn, Outcome::Renewed(sent, batch, result))
        }))
    }

    fn renewable(&self) -> impl Iterator<Item = &Kept> {
        self.kept.values().filter(|kept| kept.lost.is_none())
    }

    fn next_moment(&self, busy: bool) -> Instant {
        let deadlines = self.renewable().filter_map(|kept| kept.term.deadline());
        let far = Instant::now() + FAR;
        let next = deadlines.min().unwrap_or(far).min(far);
        if busy {
            return next;
        }
        let due = self.renewable().map(|kept| kept.due).chain(self.leaving.iter().map(|leaving| leaving.due));
        due.min().unwrap_or(far).min(next)
    }

    fn learn(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Released(leaving, Ok(())) => {
                debug!(lease = %leaving.term.id.name, token = %leaving.term.id.token, "lease released");
                leaving.finish();
            }
            Outcome::Released(mut leaving, Err(error)) => {
                let now = Instant::now();
                if now < leaving.until {
                    leaving.due = now + jittered(RETRY);
                    self.leaving.push(leaving);
                } else {
                    let id = &leaving.term.id;
                    warn!(lease = %id.name, token = %id.token, %error, "lease not released: it will expire by itself");
                    leaving.finish();
                }
            }
            Outcome::Renewed(sent, batch, Ok(renewals)) => {
                for (place, term) in batch.iter().enumerate() {
                    self.renewed(sent, term, renewals.get(place).unwrap_or(&Renewal::Skipped));
                }
            }
            Outcome::Renewed(_, batch, Err(error)) => {
                for term in &batch {
                    self.postpone(term);
                }
                debug!(leases = batch.len(), %error, "renewal failed: unknown, asking again");
            }
        }
    }

    fn renewed(&mut self, sent: Instant, term: &Arc<Term>, renewal: &Renewal) {
        match renewal {
            Renewal::Renewed(remaining) => {
                term.renewed(sent, *remaining);
                if let Some(kept) = self.kept.get_mut(&term.id.owner) {
                    kept.due = sent + jittered(term.terms.renew);
                }
            }
            Renewal::Skipped => self.postpone(term),
            Renewal::Gone(row) => match Loss::read(&term.id, row.as_ref()) {
                // Released while the renewal was in flight: that is not a loss.
                Some(_) if !self.kept.contains_key(&term.id.owner) => {}
                Some(loss) => self.lose(term, loss),
                None => self.postpone(term),
            },
        }
    }

    /// Unknown is not lost: ask again soon, until the deadline.
    fn postpone(&mut self, term: &Arc<Term>) {
        if let Some(kept) = self.kept.get_mut(&term.id.owner) {
            kept.due = Instant::now() + jittered(RETRY.min(term.terms.renew / 4));
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let expired: Vec<_> = self
            .renewable()
            .filter(|kept| kept.term.deadline().is_some_and(|deadline| deadline <= now))
            .map(|kept| kept.term.clone())
            .collect();
        for term in expired {
            self.lose(&term, Loss::Unconfirmed);
        }
    }

    fn lose(&mut self, term: &Arc<Term>, loss: Loss) {
        if term.lose(loss.clone()) {
            info!(lease = %term.id.name, token = %term.id.token, job = term.job, %loss, "lease lost");
        }
        if let Some(kept) = self.kept.get_mut(&term.id.owner) {
            kept.lost = Some(loss);
        }
    }
}

impl Leaving {
    fn answer(&mut self) {
        if let Some(done) = self.done.take() {
            let _ = done.send(());
        }
    }

    fn finish(mut self) {
        self.answer();
    }
}

/// Does something on the keeper's connection, a fresh one if there is none. After an error or too long a time the connection is gone: sqlx has
/// no read timeout, and a statement that failed may have left a transaction open.
async fn on<DB: Backend, T>(
    options: Options<DB>,
    conn: Option<Conn<DB>>,
    limit: Duration,
    work: impl AsyncFnOnce(&mut Conn<DB>) -> Result<T, sqlx::Error>,
) -> (Option<Conn<DB>>, Result<T, String>) {
    let done = timeout(limit, async move {
        let mut conn = match conn {
            Some(conn) => conn,
            None => options.connect().await?,
        };
        let value = work(&mut conn).await?;
        Ok::<_, sqlx::Error>((conn, value))
    });
    match done.await {
        Ok(Ok((conn, value))) => (Some(conn), Ok(value)),
        Ok(Err(error)) => (None, Err(error.to_string())),
        Err(_) => (None, Err(format!("no answer within {limit:?}"))),
    }
}
