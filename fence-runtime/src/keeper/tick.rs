//! The keeper's loop: at most one piece of work at a time on its connection, beside a clock that never waits for it.

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use sqlx::ConnectOptions;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout_at},
};
use tracing::{debug, info, trace, warn};

use super::{Command, roster::Roster};
use crate::{
    Backend,
    backend::{Claim, Identity, Options, Protocol, Renewal, Tables},
    lease::{FenceToken, OwnerToken},
    term::{Loss, Term},
    time::jittered,
};

/// Leases in one statement.
const CHUNK: usize = 2000;
/// How long a statement may take where no lease is in more of a hurry: sqlx has no read timeout.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a release is tried for a lease that would outlive it.
const RELEASE_PATIENCE: Duration = Duration::from_secs(30);
/// The rest after a failure: doubled after each, up to the longest, and never long for the lease that is renewed most often.
const REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(1);
const FAR: Duration = Duration::from_secs(3600);

struct Keeping<DB: Backend> {
    options: Options<DB>,
    tables: Tables,
    conn: Option<Conn<DB>>,
    working: Option<Working<DB>>,
    roster: Roster,
    /// Ordered by when to try.
    leaving: BTreeMap<(Instant, OwnerToken), Leaving>,
    /// Whose turn it is when both have something to do.
    releases_next: bool,
    trouble: Option<Trouble>,
}

struct Leaving {
    claim: Claim,
    /// `None`: it is not known whether it was acquired.
    token: Option<FenceToken>,
    patience: Duration,
    done: Option<oneshot::Sender<()>>,
    until: Instant,
}

type Conn<DB> = <DB as sqlx::Database>::Connection;
/// What was answered, and the connection to go on with.
type Answered<DB, T, E> = Result<(Conn<DB>, T), E>;
type Asking<DB, T> = Pin<Box<dyn Future<Output = Answered<DB, T, sqlx::Error>>>>;
/// Beside the answers, when they were asked for.
type Renewals = (Instant, Vec<Renewal>);

/// What is being done on the connection, which it has with it.
struct Working<DB: Backend> {
    since: Instant,
    limit: Duration,
    task: Task<DB>,
}

enum Task<DB: Backend> {
    Renew(Vec<Arc<Term>>, Asking<DB, Renewals>),
    Release(Vec<Leaving>, Asking<DB, Vec<bool>>),
}

impl<DB: Backend> Task<DB> {
    /// Of the most demanding lease in it.
    fn pace(&self) -> Option<Duration> {
        match self {
            Self::Renew(batch, _) => batch.iter().map(|term| term.terms.patience()).min(),
            Self::Release(batch, _) => batch.iter().map(|leaving| leaving.patience).min(),
        }
    }
}

/// Nothing has succeeded since.
struct Trouble {
    since: Instant,
    tries: u32,
    rest: Duration,
    last: Instant,
    told: bool,
}

pub(super) async fn keep<DB: Backend>(
    options: Options<DB>,
    tables: Tables,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let mut keeping = Keeping::<DB> {
        options,
        tables,
        conn: None,
        working: None,
        roster: Roster::default(),
        leaving: BTreeMap::new(),
        releases_next: true,
        trouble: None,
    };
    let mut closed = false;
    while !(closed && keeping.is_idle()) {
        keeping.begin_work();
        let (wake, give_up) = (keeping.next_moment(), keeping.give_up());
        let Keeping { working, .. } = &mut keeping;
        tokio::select! {
            biased;
            outcome = async { working.as_mut().expect("guarded").until(give_up).await }, if working.is_some() => {
                keeping.learn(outcome);
            }
            command = commands.recv(), if !closed => match command {
                Some(command) => keeping.obey(command),
                None => closed = true,
            },
            () = sleep_until(wake) => {}
        }
        keeping.roster.expire(Instant::now());
    }
}

enum Outcome<DB: Backend> {
    Renewed(Answered<DB, Renewals, String>),
    Released(Answered<DB, Vec<bool>, String>),
}

impl<DB: Backend> Working<DB> {
    /// Given up, the connection is gone: a statement that got no answer may still be running on it. So is it after an error, which may have
    /// left a transaction open.
    async fn until(&mut self, give_up: Instant) -> Outcome<DB> {
        match &mut self.task {
            Task::Renew(_, asking) => Outcome::Renewed(answer(asking, self.since, give_up).await),
            Task::Release(_, asking) => Outcome::Released(answer(asking, self.since, give_up).await),
        }
    }
}

async fn answer<T, E: ToString>(
    asking: impl Future<Output = Result<T, E>>,
    since: Instant,
    give_up: Instant,
) -> Result<T, String> {
    match timeout_at(give_up, asking).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {:.1?}", since.elapsed())),
    }
}

impl<DB: Backend> Keeping<DB> {
    fn is_idle(&self) -> bool {
        self.working.is_none() && self.leaving.is_empty() && self.roster.is_empty()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Keep(term) => self.roster.add(term),
            Command::Release(term, done) => {
                let now = Instant::now();
                let Identity { name, owner, token } = term.id.clone();
                let (token, patience) = (Some(token), term.terms.patience());
                let mut leaving = Leaving { claim: Claim { name, owner }, token, patience, done, until: now };
                match self.roster.remove(owner) {
                    // It may still be ours for a while.
                    Some(None | Some(Loss::Overrun(_))) => leaving.until += RELEASE_PATIENCE.min(term.terms.ttl),
                    // It may still be ours: one try, that nobody waits for.
                    Some(Some(Loss::Unconfirmed(_))) => leaving.answer(),
                    // Not ours any more; or asked twice (by `run`, then by the last handle), and the first has done it.
                    Some(Some(_)) | None => return leaving.answer(),
                }
                self.leaving.insert((now, owner), leaving);
            }
            Command::Disown(claim, terms) => {
                let now = Instant::now();
                let (owner, patience, until) = (claim.owner, terms.patience(), now + RELEASE_PATIENCE.min(terms.ttl));
                self.leaving.insert((now, owner), Leaving { claim, token: None, patience, done: None, until });
            }
        }
    }

    /// Renewals and releases take turns: somebody may be waiting for a lease, but not at the cost of the others.
    fn begin_work(&mut self) {
        let now = Instant::now();
        if self.working.is_some() || self.rests_until().is_some_and(|until| now < until) {
            return;
        }
        let release = self.leaving.first_key_value().is_some_and(|((due, _), _)| *due <= now);
        let due = self.roster.next_due();
        // Connected before the first renewal is due, which may have little time.
        let renew = due.is_some_and(|due| due <= now || self.conn.is_none());
        let task = match (release, renew) {
            (false, false) => return,
            (true, true) if self.releases_next => self.release(now),
            (_, true) => self.renew(now),
            (true, false) => self.release(now),
        };
        self.releases_next = matches!(task, Task::Renew(..));
        let limit = task.pace().map_or(PATIENCE, |pace| pace.min(PATIENCE));
        self.working = Some(Working { since: now, limit, task });
    }

    fn renew(&mut self, now: Instant) -> Task<DB> {
        let batch = self.roster.take_due(now, CHUNK);
        let asked: Vec<_> = batch.iter().map(|term| (term.id.clone(), term.terms.ttl)).collect();
        let tables = self.tables.clone();
        let asking = self.ask(async move |conn| {
            // Counted from when it was sent, and not from when there was a connection to send it on.
            let sent = Instant::now();
            match &asked[..] {
                [] => Ok((sent, Vec::new())),
                asked => Ok((sent, DB::Protocol::renew(conn, &tables, asked).await?)),
            }
        });
        Task::Renew(batch, asking)
    }

    fn release(&mut self, now: Instant) -> Task<DB> {
        let mut batch = Vec::new();
        while batch.len() < CHUNK
            && let Some(first) = self.leaving.first_entry()
            && first.key().0 <= now
        {
            batch.push(first.remove());
        }
        let claims: Vec<_> = batch.iter().map(|leaving| leaving.claim.clone()).collect();
        let tables = self.tables.clone();
        Task::Release(batch, self.ask(async move |conn| DB::Protocol::release(conn, &tables, &claims).await))
    }

    /// Asks on the keeper's connection, on a fresh one if there is none.
    fn ask<T: 'static>(
        &mut self,
        work: impl AsyncFnOnce(&mut Conn<DB>) -> Result<T, sqlx::Error> + 'static,
    ) -> Asking<DB, T> {
        let (options, conn) = (self.options.clone(), self.conn.take());
        Box::pin(async move {
            let mut conn = match conn {
                Some(conn) => conn,
                None => options.connect().await?,
            };
            let value = work(&mut conn).await?;
            Ok((conn, value))
        })
    }

    /// A connection that does not answer must not cost a lease: after one pace of the most demanding, also of one that came later, a fresh
    /// one is tried. But a connection takes its time.
    fn give_up(&self) -> Instant {
        let Some(working) = &self.working else { return Instant::now() + FAR };
        let limit = self.roster.pace().map_or(working.limit, |pace| working.limit.min(pace));
        working.since + limit.max(REST)
    }

    fn rests_until(&self) -> Option<Instant> {
        let trouble = self.trouble.as_ref()?;
        Some(trouble.last + self.roster.pace().map_or(trouble.rest, |pace| trouble.rest.min(pace / 4)))
    }

    fn next_moment(&self) -> Instant {
        let far = Instant::now() + FAR;
        let look = self.roster.next_look().unwrap_or(far);
        if self.working.is_some() {
            return look.min(far);
        }
        let release = self.leaving.first_key_value().map(|((due, _), _)| *due);
        let due = [release, self.roster.next_due()].into_iter().flatten().min().unwrap_or(far);
        let due = self.rests_until().map_or(due, |until| due.max(until));
        look.min(due).min(far)
    }

    fn learn(&mut self, outcome: Outcome<DB>) {
        let task = self.working.take().map(|working| working.task);
        match (task, outcome) {
            (Some(Task::Renew(batch, _)), Outcome::Renewed(Ok((conn, (sent, renewals))))) => {
                self.succeeded(conn);
                trace!(leases = batch.len(), took_us = sent.elapsed().as_micros(), "asked for leases");
                for (place, term) in batch.iter().enumerate() {
                    self.renewed(sent, term, renewals.get(place).unwrap_or(&Renewal::Skipped));
                }
            }
            (Some(Task::Renew(batch, _)), Outcome::Renewed(Err(error))) => {
                let (now, why) = (Instant::now(), Arc::from(error.as_str()));
                for term in &batch {
                    self.roster.unconfirmed(term, now, Arc::clone(&why));
                }
                self.failed(&error);
            }
            (Some(Task::Release(batch, _)), Outcome::Released(Ok((conn, released)))) => {
                self.succeeded(conn);
                for (place, mut leaving) in batch.into_iter().enumerate() {
                    match released.get(place) {
                        Some(true) => {
                            debug!(lease = %leaving.claim.name, token = leaving.token(), "lease released");
                            leaving.answer();
                        }
                        _ => self.release_again(leaving, "its row is locked by somebody"),
                    }
                }
            }
            (Some(Task::Release(batch, _)), Outcome::Released(Err(error))) => {
                self.failed(&error);
                batch.into_iter().for_each(|leaving| self.release_again(leaving, &error));
            }
            // The outcome is that of the task.
            _ => {}
        }
    }

    fn release_again(&mut self, mut leaving: Leaving, error: &str) {
        let now = Instant::now();
        if now < leaving.until {
            self.leaving.insert((now + jittered(REST), leaving.claim.owner), leaving);
        } else {
            warn!(lease = %leaving.claim.name, token = leaving.token(), error, "lease not released: it will expire by itself");
            leaving.answer();
        }
    }

    fn renewed(&mut self, sent: Instant, term: &Term, renewal: &Renewal) {
        let loss = match renewal {
            Renewal::Renewed(remaining) => {
                term.renewed(sent, *remaining);
                return self.roster.confirmed(term, sent);
            }
            Renewal::Gone(row) => Loss::read(&term.id, row.as_ref()),
            Renewal::Skipped => None,
        };
        match loss {
            Some(loss) => self.roster.lose(term.id.owner, loss),
            None => {
                let again = Instant::now() + jittered(REST.min(term.terms.renew / 4));
                self.roster.unconfirmed(term, again, "its row is locked by somebody".into());
            }
        }
    }

    fn succeeded(&mut self, conn: Conn<DB>) {
        self.conn = Some(conn);
        if let Some(trouble) = self.trouble.take().filter(|trouble| trouble.told) {
            info!(after = ?trouble.since.elapsed(), tries = trouble.tries, "leases are renewed again");
        }
    }

    /// The first failure may be a connection that was closed while it was idle, and no word is lost about it.
    fn failed(&mut self, error: &str) {
        let now = Instant::now();
        let trouble = self.trouble.get_or_insert(Trouble { since: now, tries: 0, rest: REST, last: now, told: false });
        trouble.tries += 1;
        trouble.last = now;
        trouble.rest = jittered(REST.saturating_mul(1 << (trouble.tries - 1).min(10)).min(LONGEST_REST));
        if trouble.tries >= 2 && !trouble.told && self.roster.is_at_stake() {
            trouble.told = true;
            let leases = self.roster.renewed();
            warn!(leases, error, "leases cannot be renewed at present: they are lost when their deadlines pass");
        } else {
            debug!(tries = trouble.tries, error, "renewal or release failed, asking again");
        }
    }
}

impl Leaving {
    fn token(&self) -> Option<i64> {
        self.token.map(FenceToken::get)
    }

    fn answer(&mut self) {
        if let Some(done) = self.done.take() {
            let _ = done.send(());
        }
    }
}
